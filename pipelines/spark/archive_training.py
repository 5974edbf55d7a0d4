"""Make the class-data archive (`pipelines.spark.class_archive`) in a session that uses much of Spark.

The JVM writes the archive when the JVM ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import SmeltError
from deltasmelt.bronze.lake.durability import flush_to_disk
from deltasmelt.pipelines.spark.class_archive import CLASS_PATH, NICE, archive_of, usable
from deltasmelt.pipelines.spark.jars import delta_jars
from deltasmelt.pipelines.spark.java import check_java
from deltasmelt.pipelines.spark.launch import JVM_OPTIONS
from deltasmelt.pipelines.spark.session import spark_session, stop_session
from deltasmelt.pipelines.terminal.visible import visible
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

_DRAFT: Final = ".draft-"
_KEPT: Final = 4
"""Number of archives that the cache keeps; older archives of former environments are removed."""

_LIMIT: Final = 600.0
"""Seconds that a JVM may take to write an archive."""

_STATEMENTS: Final = """
CREATE TABLE {orders} (
  id BIGINT, customer INT, at TIMESTAMP_NTZ, total DECIMAL(12, 2), note STRING, tags ARRAY<STRING>,
  of STRUCT<a: INT, b: MAP<STRING, STRING>>
) USING DELTA CLUSTER BY (id) TBLPROPERTIES (
  'delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true'
);
CREATE TABLE {lines} (id BIGINT, line INT, sku STRING, price DOUBLE) USING DELTA
TBLPROPERTIES ('delta.enableDeletionVectors' = 'true');
INSERT INTO {orders}
SELECT id, CAST(id % 3 AS INT), TIMESTAMP_NTZ'2026-01-01 00:00:00', CAST(id AS DECIMAL(12, 2)), 'note',
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
    """Create a few small Delta tables, merge into them, read them in every way, and maintain them.

    `lake` is an empty folder for the tables. The rows do not matter; the used parts of Spark and Delta do.
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


def make(announce: str = "") -> None:
    """Make the archive of a plain session if the archive is missing; at most one process at a time.

    Raises:
        ConfigurationError: Java or Spark is missing.
        DefiniteError: Delta's jars are unavailable, or Spark does not start.
        OSError: the cache is not writable.
    """
    jars = delta_jars()
    archive = archive_of({}, check_java(), jars)
    if archive is None or usable(archive):
        return
    archive.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (archive.parent / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if usable(archive):
            return
        if announce:
            sys.stdout.write(visible(f"{announce}\n"))
            sys.stdout.flush()
        for left in archive.parent.glob(f"{_DRAFT}*"):  # left by a killed process
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_DRAFT, dir=archive.parent) as folder:
            draft = Path(folder) / archive.name
            if _train(draft, Path(folder), jars) == 0 and draft.is_file():
                flush_to_disk(draft)
                draft.rename(archive)
                flush_to_disk(archive.parent)
                _forget_oldest(archive.parent)


def _train(draft: Path, folder: Path, jars: Sequence[Path]) -> int | None:
    """Train a session whose JVM writes the archive at its end; return the JVM's exit code."""
    spark = spark_session(
        {
            JVM_OPTIONS: f"-XX:ArchiveClassesAtExit={draft}",
            "spark.driver.memory": "1g",
            CLASS_PATH: os.pathsep.join(map(str, jars)),
        },
        log=folder / "spark.log",
        brief=True,
    )
    try:
        train(spark, folder / "lake")
    except BaseException:
        stop_session(spark)
        raise
    return stop_session(spark, patience=_LIMIT)


def _forget_oldest(folder: Path) -> None:
    """Remove all archives but the newest."""
    # A recreated environment has a new path, and so a new archive.
    archives = sorted(folder.glob("*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in archives[_KEPT:]:
        old.unlink(missing_ok=True)


def main() -> None:
    """Make the archive for the Makefile or `class_archive.make_later`; a failure only costs speed."""
    os.nice(int(os.environ.get(NICE, "0")))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the draft folder is removed
    try:
        make(" ".join(sys.argv[1:]))
    except (SmeltError, OSError) as error:
        sys.stderr.write(visible(f"Spark will start without an archive of its classes: {error}\n"))


if __name__ == "__main__":
    main()
