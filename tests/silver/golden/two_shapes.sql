WITH changes AS (
  SELECT commit_lsn, seq, commit_ts, op, CASE WHEN new IS NULL THEN NULL WHEN (commit_lsn > 150 OR commit_lsn = 150 AND lsn > 140) AND columns = array('id', 'status', 'total', 'days') THEN new WHEN (commit_lsn > 20 OR commit_lsn = 20 AND lsn > 0) AND NOT (commit_lsn > 150 OR commit_lsn = 150 AND lsn > 140) AND columns = array('id', 'state', 'total') THEN array(new[0], new[1], new[2], CAST(NULL AS STRING)) ELSE raise_error(concat('deltasmelt:unknown-shape:', coalesce('columns ', 'NULL'), coalesce(array_join(columns, ', '), 'NULL'), ':deltasmelt')) END AS new, CASE WHEN (commit_lsn > 20 OR commit_lsn = 20 AND lsn > 0) AND NOT (commit_lsn > 150 OR commit_lsn = 150 AND lsn > 140) AND columns = array('id', 'state', 'total') THEN filter(transform(unchanged, c -> CASE c WHEN 'state' THEN 'status' ELSE c END), c -> c IS NOT NULL) ELSE unchanged END AS unchanged, old_is_key
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
    new AS image,
    unchanged,
    CASE op WHEN 'delete' THEN 'leave' WHEN 'update' THEN 'change' ELSE 'arrive' END AS kind,
    CASE WHEN new[0] IS NOT NULL AND try_cast(new[0] AS INT) IS NULL THEN raise_error(concat('deltasmelt:key-unrepresentable:', coalesce('column id, value ', 'NULL'), coalesce(new[0], 'NULL'), ':deltasmelt')) ELSE try_cast(new[0] AS INT) END AS key_0
  FROM changes
),
folded AS (
  SELECT key_0,
    sum(CASE kind WHEN 'arrive' THEN 1 WHEN 'leave' THEN -1 ELSE 0 END) AS gained,
    min_by(kind, struct(commit_lsn, seq)) AS first_kind,
    max(struct(commit_lsn, seq, commit_ts)) FILTER (WHERE kind <> 'leave') AS last_event,
    max_by(image, struct(commit_lsn, seq)) FILTER (WHERE kind <> 'leave') AS image,
    max(struct(commit_lsn, seq)) FILTER (WHERE kind = 'arrive') AS arrived,
    max_by(struct(struct(commit_lsn, seq) AS place, image[1] AS text), struct(commit_lsn, seq)) FILTER (WHERE kind <> 'leave' AND NOT coalesce(array_contains(unchanged, 'status'), false)) AS toast_1,
    max_by(struct(struct(commit_lsn, seq) AS place, image[3] AS text), struct(commit_lsn, seq)) FILTER (WHERE kind <> 'leave' AND NOT coalesce(array_contains(unchanged, 'days'), false)) AS toast_3
  FROM events
  GROUP BY key_0
),
texts AS (
  SELECT f.key_0,
    CASE
      WHEN key_0 IS NULL THEN raise_error(concat('deltasmelt:key-missing:', ':deltasmelt'))
      WHEN gained > 1 OR gained < -1 OR gained = 1 AND first_kind <> 'arrive' THEN raise_error(concat('deltasmelt:key-not-unique:', coalesce(concat_ws(', ', CAST(key_0 AS STRING)), 'NULL'), ':deltasmelt'))
      WHEN gained = 1 THEN 'upsert'
      WHEN gained = -1 THEN 'delete'
      WHEN first_kind = 'arrive' THEN 'match'
      ELSE 'upsert'
    END AS action,
    last_event.commit_lsn,
    last_event.commit_ts,
    f.arrived IS NULL AND f.toast_1 IS NULL AND NOT (gained = -1) AS kept_by_target_1,
    CASE WHEN f.toast_1 IS NOT NULL AND (f.arrived IS NULL OR f.toast_1.place >= f.arrived) THEN f.toast_1.text WHEN NOT (gained = -1) AND f.arrived IS NOT NULL THEN raise_error(concat('deltasmelt:value-missing:', coalesce('column status, row ', 'NULL'), coalesce(concat_ws(', ', CAST(f.key_0 AS STRING)), 'NULL'), ':deltasmelt')) END AS text_1,
    f.image[2] AS text_2,
    f.arrived IS NULL AND f.toast_3 IS NULL AND NOT (gained = -1) AS kept_by_target_3,
    CASE WHEN f.toast_3 IS NOT NULL AND (f.arrived IS NULL OR f.toast_3.place >= f.arrived) THEN f.toast_3.text WHEN NOT (gained = -1) AND f.arrived IS NOT NULL THEN raise_error(concat('deltasmelt:value-missing:', coalesce('column days, row ', 'NULL'), coalesce(concat_ws(', ', CAST(f.key_0 AS STRING)), 'NULL'), ':deltasmelt')) END AS text_3
  FROM folded AS f
),
typed AS (
  SELECT key_0,
    action,
    commit_lsn,
    commit_ts,
    kept_by_target_1,
    kept_by_target_3,
    text_1 AS value_1,
    try_cast(text_2 AS DECIMAL(10,2)) AS value_2,
    text_2,
    transform(array(regexp_extract_all(concat(',', substr(text_3, 2, length(text_3) - 2)), '(?s),(?:"(?:[^"\\\\]++|\\\\.)*+"|[^,{}"\\\\]++)', 0)), p0 -> CASE WHEN concat('{', substr(array_join(p0, ''), 2), '}') = text_3 THEN transform(array(transform(transform(p0, e0 -> CASE WHEN e0 = ',NULL' THEN NULL WHEN substr(e0, 2, 1) = '"' THEN regexp_replace(substr(e0, 3, length(e0) - 3), '(?s)\\\\(.)', '$1') ELSE substr(e0, 2) END), t0 -> named_struct('t', t0, 'v', CASE WHEN t0 LIKE '____-%' AND t0 NOT LIKE '% BC' THEN try_cast(t0 AS DATE) END))), r0 -> CASE WHEN NOT exists(r0, t0 -> t0.t IS NOT NULL AND t0.v IS NULL) THEN transform(r0, t0 -> t0.v) END)[0] END)[0] AS value_3,
    text_3
  FROM texts
)
SELECT key_0,
  action,
  commit_lsn,
  commit_ts,
  value_1,
  value_2,
  value_3,
  kept_by_target_1,
  kept_by_target_3,
  CASE WHEN text_2 IS NOT NULL AND value_2 IS NULL OR text_3 IS NOT NULL AND value_3 IS NULL
    THEN map_filter(map('total', CASE WHEN value_2 IS NULL THEN text_2 END, 'days', CASE WHEN value_3 IS NULL THEN text_3 END), (name, text) -> text IS NOT NULL) END AS lost
FROM typed
