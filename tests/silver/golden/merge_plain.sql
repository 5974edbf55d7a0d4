MERGE INTO delta.`/lake/silver/orders` AS t
USING (
  WITH changes AS (
    SELECT commit_lsn, seq, commit_ts, op, new, old
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
      CASE op WHEN 'delete' THEN 'leave' WHEN 'update' THEN 'change' ELSE 'arrive' END AS kind,
      CASE WHEN coalesce(new, old)[0] IS NOT NULL AND try_cast(coalesce(new, old)[0] AS INT) IS NULL THEN raise_error(concat('deltasmelt:key-unrepresentable:', coalesce('column id, value ', 'NULL'), coalesce(coalesce(new, old)[0], 'NULL'), ':deltasmelt')) ELSE try_cast(coalesce(new, old)[0] AS INT) END AS key_0
    FROM changes
  ),
  folded AS (
    SELECT key_0,
      sum(CASE kind WHEN 'arrive' THEN 1 WHEN 'leave' THEN -1 ELSE 0 END) AS gained,
      min_by(kind, struct(commit_lsn, seq)) AS first_kind,
      max(struct(commit_lsn, seq, commit_ts)) FILTER (WHERE kind <> 'leave') AS last_event,
      max_by(image, struct(commit_lsn, seq)) FILTER (WHERE kind <> 'leave') AS image
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
      f.image[3] AS text_3
    FROM folded AS f
  ),
  typed AS (
    SELECT key_0,
      action,
      commit_lsn,
      commit_ts,
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
    CASE WHEN text_2 IS NOT NULL AND value_2 IS NULL OR text_3 IS NOT NULL AND value_3 IS NULL
      THEN map_filter(map('total', CASE WHEN value_2 IS NULL THEN text_2 END, 'days', CASE WHEN value_3 IS NULL THEN text_3 END), (name, text) -> text IS NOT NULL) END AS lost
  FROM typed
) AS s
ON t.`id` = s.key_0
  AND t.`id` BETWEEN CAST('17' AS INT) AND CAST('4711' AS INT)
WHEN MATCHED AND s.action = 'delete' THEN DELETE
WHEN MATCHED THEN UPDATE SET
  t.`id` = s.key_0,
  t.`status` = s.value_1,
  t.`total` = s.value_2,
  t.`days` = s.value_3,
  t.`_commit_lsn` = s.commit_lsn,
  t.`_commit_ts` = s.commit_ts,
  t.`_unrepresentable` = s.lost
WHEN NOT MATCHED AND s.action = 'upsert' THEN INSERT
  (`id`, `status`, `total`, `days`, `_commit_lsn`, `_commit_ts`, `_unrepresentable`)
  VALUES (s.key_0, s.value_1, s.value_2, s.value_3, s.commit_lsn, s.commit_ts, s.lost)
