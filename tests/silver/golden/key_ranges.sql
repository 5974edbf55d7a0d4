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
    CASE WHEN coalesce(new[0], old[0]) IS NOT NULL AND try_cast(coalesce(new[0], old[0]) AS INT) IS NULL THEN raise_error(concat('deltasmelt:key-unrepresentable:', coalesce('column id, value ', 'NULL'), coalesce(coalesce(new[0], old[0]), 'NULL'), ':deltasmelt')) ELSE try_cast(coalesce(new[0], old[0]) AS INT) END AS key_0
  FROM changes
)
SELECT CAST(min(key_0) AS STRING) AS low_0,
  CAST(max(key_0) AS STRING) AS high_0
FROM events
