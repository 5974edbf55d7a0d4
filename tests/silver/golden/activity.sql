SELECT relation_id,
  count_if(op = 'insert') AS inserts,
  count_if(op = 'update') AS updates,
  count_if(op = 'delete') AS deletes,
  count_if(op = 'truncate') AS truncates,
  count_if(op = 'snapshot') AS snapshots,
  max(CASE WHEN op = 'snapshot_end' THEN commit_lsn END) AS snapshot,
  max(CASE WHEN op = 'truncate' THEN struct(commit_lsn, seq) END) AS truncated,
  collect_set(CASE WHEN op IN ('truncate', 'snapshot_end')
    THEN struct(commit_lsn, CASE WHEN op = 'truncate' THEN seq END, unix_micros(commit_ts)) END) AS barriers,
  max(CASE WHEN op IN ('insert', 'update', 'delete') THEN commit_lsn END) AS last_change,
  count_if(op = 'update' AND old IS NOT NULL) AS old_tuples,
  count_if(op = 'update' AND old IS NOT NULL AND unchanged IS NOT NULL) AS moved_unchanged_toast,
  array_distinct(flatten(collect_set(unchanged))) AS unchanged_toast
FROM delta.`/lake/bronze/changes` VERSION AS OF 9
WHERE commit_lsn > 100 AND commit_lsn <= 200
  AND relation_id IN (16384, 16390)
  AND commit_lsn > CASE relation_id WHEN 16384 THEN 100 WHEN 16390 THEN 150 END
GROUP BY relation_id
