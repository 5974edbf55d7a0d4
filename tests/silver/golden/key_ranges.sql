SELECT CAST(min(key_0) AS STRING) AS low_0,
  CAST(max(key_0) AS STRING) AS high_0
FROM (
  SELECT * FROM smelt_folded
)
