CREATE TABLE IF NOT EXISTS delta.`/lake/silver/orders` (
  `id` INT COMMENT 'attribute 1',
  `status` STRING COMMENT 'attribute 2',
  `total` DECIMAL(10,2) COMMENT 'attribute 3',
  `days` ARRAY<DATE> COMMENT 'attribute 4',
  `_commit_lsn` BIGINT,
  `_commit_ts` TIMESTAMP,
  `_unrepresentable` MAP<STRING, STRING>
) USING DELTA
COMMENT 'Rows of public.orders'
CLUSTER BY (`id`)
TBLPROPERTIES (
  'delta.enableDeletionVectors' = 'true',
  'delta.enableChangeDataFeed' = 'true',
  'delta.checkpointInterval' = '50',
  'delta.enableExpiredLogCleanup' = 'false',
  'deltasmelt.timestamps' = 'microseconds',
  'deltasmelt.relation' = '16384'
)
