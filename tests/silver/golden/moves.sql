WITH changes AS (
  SELECT commit_lsn, seq, commit_ts, op, new, old, unchanged, old_is_key
  FROM delta.`/lake/bronze/changes` VERSION AS OF 9
  WHERE relation_id = 16384
    AND commit_lsn > 100
    AND commit_lsn <= 200
    AND op IN ('insert', 'update', 'delete')
),
events AS (
  SELECT commit_lsn,
    seq,
    commit_ts,
    CASE WHEN old_is_key = false AND unchanged IS NOT NULL THEN transform(array('id', 'status', 'total', 'days'), (c, i) -> CASE WHEN array_contains(unchanged, c) THEN old[i] ELSE new[i] END) ELSE new END AS image,
    CASE WHEN old_is_key = false THEN NULL ELSE unchanged END AS unchanged,
    event.kind,
    event.here.key_0,
    event.before
  FROM (
    SELECT *, explode(CASE WHEN there IS NOT NULL AND there <> here THEN array(named_struct('kind', 'leave', 'here', there, 'before', CASE WHEN false THEN there END), named_struct('kind', 'arrive', 'here', here, 'before', there)) ELSE array(named_struct('kind', op_kind, 'here', here, 'before', CASE WHEN false THEN there END)) END) AS event
    FROM (
      SELECT *,
        CASE op WHEN 'delete' THEN 'leave' WHEN 'update' THEN 'change' ELSE 'arrive' END AS op_kind,
        named_struct('key_0', CASE WHEN coalesce(new, old)[0] IS NOT NULL AND try_cast(coalesce(new, old)[0] AS INT) IS NULL THEN raise_error(concat('deltasmelt:key-unrepresentable:', coalesce('column id, value ', 'NULL'), coalesce(coalesce(new, old)[0], 'NULL'), ':deltasmelt')) ELSE try_cast(coalesce(new, old)[0] AS INT) END) AS here,
        CASE WHEN op = 'update' AND old IS NOT NULL THEN named_struct('key_0', CASE WHEN old[0] IS NOT NULL AND try_cast(old[0] AS INT) IS NULL THEN raise_error(concat('deltasmelt:key-unrepresentable:', coalesce('column id, value ', 'NULL'), coalesce(old[0], 'NULL'), ':deltasmelt')) ELSE try_cast(old[0] AS INT) END) END AS there
      FROM changes
    )
  )
),
links AS (
  SELECT struct(commit_lsn, seq) AS place, before, 0 AS emptied
  FROM events
  WHERE kind = 'arrive' AND before IS NOT NULL AND unchanged IS NOT NULL
),
sources AS (
  SELECT links.before AS here, links.emptied, max(CASE WHEN t.`id` IS NULL THEN 0 ELSE 1 END) AS initial
  FROM links LEFT JOIN delta.`/lake/silver/orders` VERSION AS OF 3 AS t ON links.emptied = 0 AND t.`id` = links.before.key_0
  GROUP BY links.before, links.emptied
),
history AS (
  SELECT struct(e.commit_lsn, e.seq) AS place, e.kind, e.image, e.unchanged,
    s.here, s.emptied, s.initial,
    count_if(e.kind = 'arrive') OVER so_far AS arrivals,
    count_if(e.kind = 'leave') OVER so_far AS leaves
  FROM events AS e JOIN sources AS s ON e.key_0 = s.here.key_0 AND s.emptied = 0
  WINDOW so_far AS (
    PARTITION BY s.here, s.emptied ORDER BY e.commit_lsn, e.seq ROWS UNBOUNDED PRECEDING
  )
),
departed AS (
  SELECT h.place, h.here, h.emptied, h.leaves - h.initial AS occupant
  FROM history AS h LEFT SEMI JOIN links ON links.place = h.place
  WHERE h.kind = 'leave'
),
origins AS (
  SELECT d.place, CASE WHEN d.emptied = 0 THEN d.here END AS home,
    max(h.place) FILTER (WHERE h.kind = 'arrive') AS parent,
    max_by(struct(h.image[3] AS text), h.place) FILTER (WHERE h.kind <> 'leave' AND NOT coalesce(array_contains(h.unchanged, 'days'), false)) AS toast_3
  FROM departed AS d
  LEFT JOIN history AS h ON h.here = d.here AND h.emptied = d.emptied AND h.arrivals = d.occupant AND h.place < d.place
  GROUP BY d.place, d.here, d.emptied
)
SELECT *
FROM origins

-- each round
SELECT o.place, CASE WHEN o.parent IS NULL THEN o.home ELSE p.home END AS home, p.parent,
  coalesce(o.toast_3, p.toast_3) AS toast_3
FROM smelt_origins AS o LEFT JOIN smelt_origins AS p ON p.place = o.parent
