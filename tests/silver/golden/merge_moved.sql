MERGE INTO delta.`/lake/silver/orders` AS t
USING (
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
  folded AS (
    SELECT key_0,
      sum(CASE kind WHEN 'arrive' THEN 1 WHEN 'leave' THEN -1 ELSE 0 END) AS gained,
      min_by(kind, struct(commit_lsn, seq)) AS first_kind,
      max(struct(commit_lsn, seq, commit_ts)) FILTER (WHERE kind <> 'leave') AS last_event,
      max_by(image, struct(commit_lsn, seq)) FILTER (WHERE kind <> 'leave') AS image,
      max(struct(commit_lsn, seq)) FILTER (WHERE kind = 'arrive') AS arrived,
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
      f.image[1] AS text_1,
      f.image[2] AS text_2,
      NOT (f.toast_3 IS NOT NULL AND (f.arrived IS NULL OR f.toast_3.place >= f.arrived)) AND o.toast_3 IS NULL AND home.`id` IS NOT NULL AS at_home_3,
      home.`days` AS home_3,
      f.arrived IS NULL AND f.toast_3 IS NULL AND NOT (gained = -1) AS kept_by_target_3,
      CASE WHEN f.toast_3 IS NOT NULL AND (f.arrived IS NULL OR f.toast_3.place >= f.arrived) THEN f.toast_3.text WHEN o.toast_3 IS NOT NULL THEN o.toast_3.text WHEN home.`id` IS NOT NULL THEN home.`_unrepresentable`['days'] WHEN NOT (gained = -1) AND f.arrived IS NOT NULL THEN raise_error(concat('deltasmelt:value-missing:', coalesce('column days, row ', 'NULL'), coalesce(concat_ws(', ', CAST(f.key_0 AS STRING)), 'NULL'), ':deltasmelt')) END AS text_3
    FROM folded AS f
    LEFT JOIN smelt_origins AS o ON o.place = f.arrived
    LEFT JOIN delta.`/lake/silver/orders` VERSION AS OF 3 AS home ON home.`id` = o.home.key_0
  ),
  typed AS (
    SELECT key_0,
      action,
      commit_lsn,
      commit_ts,
      kept_by_target_3,
      text_1 AS value_1,
      try_cast(text_2 AS DECIMAL(10,2)) AS value_2,
      text_2,
      CASE WHEN at_home_3 THEN home_3 ELSE transform(array(regexp_extract_all(concat(',', substr(text_3, 2, length(text_3) - 2)), '(?s),(?:"(?:[^"\\\\]++|\\\\.)*+"|[^,{}"\\\\]++)', 0)), p0 -> CASE WHEN concat('{', substr(array_join(p0, ''), 2), '}') = text_3 THEN transform(array(transform(transform(p0, e0 -> CASE WHEN e0 = ',NULL' THEN NULL WHEN substr(e0, 2, 1) = '"' THEN regexp_replace(substr(e0, 3, length(e0) - 3), '(?s)\\\\(.)', '$1') ELSE substr(e0, 2) END), t0 -> named_struct('t', t0, 'v', CASE WHEN t0 LIKE '____-%' AND t0 NOT LIKE '% BC' THEN try_cast(t0 AS DATE) END))), r0 -> CASE WHEN NOT exists(r0, t0 -> t0.t IS NOT NULL AND t0.v IS NULL) THEN transform(r0, t0 -> t0.v) END)[0] END)[0] END AS value_3,
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
    kept_by_target_3,
    CASE WHEN text_2 IS NOT NULL AND value_2 IS NULL OR text_3 IS NOT NULL AND value_3 IS NULL
      THEN map_filter(map('total', CASE WHEN value_2 IS NULL THEN text_2 END, 'days', CASE WHEN value_3 IS NULL THEN text_3 END), (name, text) -> text IS NOT NULL) END AS lost
  FROM typed
) AS s
ON t.`id` = s.key_0
WHEN MATCHED AND s.action = 'delete' THEN DELETE
WHEN MATCHED THEN UPDATE SET
  t.`id` = s.key_0,
  t.`status` = s.value_1,
  t.`total` = s.value_2,
  t.`days` = CASE WHEN s.kept_by_target_3 THEN t.`days` ELSE s.value_3 END,
  t.`_commit_lsn` = s.commit_lsn,
  t.`_commit_ts` = s.commit_ts,
  t.`_unrepresentable` = CASE WHEN t.`_unrepresentable` IS NULL THEN s.lost WHEN cardinality(map_concat(coalesce(s.lost, CAST(map() AS MAP<STRING, STRING>)), map_filter(t.`_unrepresentable`, (name, text) -> name = 'days' AND s.kept_by_target_3))) > 0 THEN map_concat(coalesce(s.lost, CAST(map() AS MAP<STRING, STRING>)), map_filter(t.`_unrepresentable`, (name, text) -> name = 'days' AND s.kept_by_target_3)) END
WHEN NOT MATCHED AND s.action = 'upsert' THEN INSERT
  (`id`, `status`, `total`, `days`, `_commit_lsn`, `_commit_ts`, `_unrepresentable`)
  VALUES (s.key_0, s.value_1, s.value_2, CASE WHEN s.kept_by_target_3 THEN raise_error(concat('deltasmelt:value-missing:', coalesce('column days, row ', 'NULL'), coalesce(concat_ws(', ', CAST(s.key_0 AS STRING)), 'NULL'), ':deltasmelt')) ELSE s.value_3 END, s.commit_lsn, s.commit_ts, s.lost)
