"""What a session runs while its classes are archived: a little of all that the layers ask of Spark.

Which rows there are does not matter; which parts of Spark and Delta are touched does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from silver.sql import quote

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_STATEMENTS: Final = """
CREATE TABLE {orders} (
  id BIGINT, customer INT, at TIMESTAMP_NTZ, total DECIMAL(12, 2), note STRING, tags ARRAY<STRING>,
  of STRUCT<a: INT, b: MAP<STRING, STRING>>
) USING DELTA CLUSTER BY (id) TBLPROPERTIES (
  'delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true',
  'delta.columnMapping.mode' = 'name', 'delta.enableTypeWidening' = 'true'
);
CREATE TABLE {lines} (id BIGINT, line INT, sku STRING, price DOUBLE) USING DELTA
TBLPROPERTIES ('delta.enableDeletionVectors' = 'true');
INSERT INTO {orders}
SELECT id, CAST(id % 3 AS INT), TIMESTAMP_NTZ'2026-01-01 00:00:00', CAST(id AS DECIMAL(12, 2)), repeat('x', 9),
  array('a', 'b'), named_struct('a', 1, 'b', map('k', 'v'))
FROM range(50);
INSERT INTO {lines} SELECT id % 50, CAST(id AS INT), concat('s', id), id / 7 FROM range(200);
INSERT OVERWRITE {lines} SELECT * FROM {lines};
MERGE INTO {orders} AS t
USING (
  SELECT * FROM (
    SELECT id, customer, 1.5 AS total, 'n' AS note, id % 5 = 0 AS kept, IF(id % 7 = 0, 'd', 'u') AS op,
      row_number() OVER (PARTITION BY id ORDER BY customer DESC) AS place
    FROM {orders}
  ) WHERE place = 1
) AS s ON t.id = s.id AND t.id BETWEEN 0 AND 99
WHEN MATCHED AND s.op = 'd' THEN DELETE
WHEN MATCHED THEN UPDATE SET t.total = s.total, t.note = CASE WHEN s.kept THEN t.note ELSE s.note END
WHEN NOT MATCHED THEN INSERT (id, customer, total) VALUES (s.id, s.customer, s.total);
UPDATE {lines} SET price = price + 1 WHERE id = 1;
DELETE FROM {lines} WHERE id = 2;
ALTER TABLE {lines} ADD COLUMNS (added STRING);
ALTER TABLE {lines} SET TBLPROPERTIES ('delta.logRetentionDuration' = 'interval 30 days');
SELECT count(*), sum(total), max(at) FROM {orders};
SELECT customer, count(*) AS n FROM {orders} GROUP BY customer ORDER BY n DESC LIMIT 5;
SELECT * FROM {orders} VERSION AS OF 1 WHERE note LIKE 'x%' AND id IN (1, 2, 3);
SELECT o.id, o.note, coalesce(l.items, array()) AS items, l.total
FROM {orders} AS o
LEFT JOIN (
  SELECT id, sum(price) AS total, max_by(sku, line) AS last,
    transform(sort_array(collect_list(struct(line, sku, price))), x -> struct(x.sku, x.price)) AS items
  FROM {lines} GROUP BY id
) AS l ON o.id <=> l.id
WHERE o.id < 40 AND size(filter(o.tags, t -> t = 'a')) > 0;
SELECT to_json(struct(*)), sha2(to_json(struct(*)), 256), xxhash64(id) FROM {orders};
DESCRIBE DETAIL {orders};
DESCRIBE HISTORY {orders};
OPTIMIZE {orders}
"""


def train(spark: SparkSession, lake: Path) -> None:
    """Make a few small Delta tables, merge into them, read them in every way, and care for them.

    Args:
        spark: a local session.
        lake: a folder for the tables.
    """
    orders, lines = (f"delta.{quote(str(lake / name))}" for name in ("orders", "lines"))
    for statement in _STATEMENTS.split(";\n"):
        spark.sql(statement.format(orders=orders, lines=lines)).collect()
    spark.createDataFrame([(1, "a")], "id LONG, name STRING").createOrReplaceTempView("archive_training")
    spark.sql(f"SELECT * FROM archive_training JOIN {orders} USING (id)").toArrow()
    feed = spark.read.option("readChangeFeed", "true").option("startingVersion", "0").format("delta")
    feed.load(str(lake / "orders")).groupBy("_change_type").count().collect()
    spark.sql(f"SELECT * FROM {orders} LIMIT 10").write.format("parquet").save(str(lake / "plain"))
    spark.read.parquet(str(lake / "plain")).collect()
