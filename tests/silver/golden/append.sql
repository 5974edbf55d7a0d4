INSERT INTO delta.`/lake/silver/orders` (`id`, `status`, `total`, `days`, `_commit_lsn`, `_commit_ts`, `_unrepresentable`)
SELECT key_0, value_1, value_2, value_3, commit_lsn, commit_ts, lost
FROM (
  WITH changes AS (
    SELECT commit_lsn, seq, commit_ts, op, new
    FROM delta.`/lake/bronze/changes` VERSION AS OF 9
    WHERE relation_id = 16384
      AND commit_lsn > 100
      AND commit_lsn <= 200
      AND op IN ('insert', 'update', 'delete')
  ),
  folded AS (
    SELECT CASE WHEN new[0] IS NOT NULL AND try_cast(new[0] AS INT) IS NULL THEN raise_error(concat('deltasmelt:key-unrepresentable:', coalesce('column id, value ', 'NULL'), coalesce(new[0], 'NULL'), ':deltasmelt')) ELSE try_cast(new[0] AS INT) END AS key_0,
      commit_lsn,
      commit_ts,
      new[1] AS text_1,
      new[2] AS text_2,
      new[3] AS text_3
    FROM changes
  ),
  texts AS (
    SELECT CASE WHEN key_0 IS NULL THEN raise_error(concat('deltasmelt:key-missing:', ':deltasmelt')) ELSE 'upsert' END AS action,
      key_0,
      * EXCEPT (key_0)
    FROM folded
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
  WHERE action = 'upsert'
)
