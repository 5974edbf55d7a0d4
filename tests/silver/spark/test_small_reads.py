"""Silver reads tables of few bytes directly from their files: rows, columns and comments equal Delta's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.lake.location import Lake
from deltasmelt.silver.schema import ddl
from deltasmelt.silver.spark.small_reads import plain_files, table_at
from deltasmelt.silver.spark.tuning import settings
from tests.fix_spark import rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

_WITH_ALL = {**ddl.PROPERTIES, ddl.MAPPING: ddl.BY_NAME, ddl.WIDENING: "true"}
_PROPERTIES = ", ".join(f"'{name}' = '{value}'" for name, value in _WITH_ALL.items())
_COLUMNS = """
  id BIGINT COMMENT 'attribute 1', `odd ``name.x` STRING, at TIMESTAMP, local TIMESTAMP_NTZ, day DATE,
  total DECIMAL(20, 4), raw BINARY, tags ARRAY<STRING>,
  deep ARRAY<STRUCT<`a b`: INT, m: MAP<STRING, STRUCT<x: DOUBLE, y: ARRAY<BOOLEAN>>>>>
"""
_AS_JSON = "to_json(struct(*), map('ignoreNullFields', 'false'))"
_ROWS = """
SELECT id, concat('n', id), TIMESTAMP '0001-01-01 00:00:00' + make_interval(0, 0, 0, id),
  TIMESTAMP_NTZ '1582-10-10 12:34:56.789012', DATE '1500-02-28', CAST(id AS DECIMAL(20, 4)) / 3,
  IF(id = 2, NULL, x'00ff'), IF(id = 3, NULL, array('a', NULL)),
  array(named_struct('a b', id, 'm', map('k', named_struct('x', double('NaN'), 'y', array(true, NULL)))),
    NULL)
FROM range(5)
"""


class Tables:
    """New tables, with reads of each version in both ways."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark, self.lake = spark, Lake(path=path)

    def run(self, name: str, *statements: str) -> None:
        for statement in statements:
            self.spark.sql(statement.replace("{t}", self.lake.sql("silver", name)))

    def make(self, name: str, columns: str, *more: str, properties: str = _PROPERTIES) -> None:
        self.run(name, f"CREATE TABLE {{t}} ({columns}) USING DELTA TBLPROPERTIES ({properties})", *more)

    def is_plain(self, name: str, version: int) -> bool:
        return plain_files(self.lake, "silver", name, version) is not None

    def count(self, name: str, version: int) -> int:
        return table_at(self.spark, self.lake, "silver", name, version).count()

    def same(self, name: str, version: int) -> Sequence[Any]:
        """Return the rows, equal in both ways; compare the columns with their comments."""
        frame = table_at(self.spark, self.lake, "silver", name, version)
        frame.createOrReplaceTempView("small_reads")
        by_delta = f"SELECT * FROM {self.lake.sql('silver', name)} VERSION AS OF {version}"
        delta = self.spark.sql(by_delta)
        assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
            (field.name, field.dataType.simpleString()) for field in delta.schema
        ]
        assert [field.metadata.get("comment") for field in frame.schema] == [
            field.metadata.get("comment") for field in delta.schema
        ]
        own_rows, delta_rows = (
            sorted(row[0] for row in rows_of(self.spark, f"SELECT {_AS_JSON} FROM ({query})"))
            for query in ("SELECT * FROM small_reads", by_delta)
        )
        assert own_rows == delta_rows
        return own_rows


@pytest.mark.spark
def test_small_tables_read_alike_from_files(spark: SparkSession, lake_path: str) -> None:
    tables = Tables(spark, f"{lake_path}/a lake")
    tables.make("typed", _COLUMNS, f"INSERT INTO {{t}} {_ROWS}")
    assert tables.is_plain("typed", 0), "there is no row yet"
    assert tables.same("typed", 0) == []
    assert tables.is_plain("typed", 1)
    assert len(tables.same("typed", 1)) == 5

    tables.run("bare", "CREATE TABLE {t} USING DELTA AS SELECT struct(1 AS `a.b`) AS s, '' AS `C.d`")
    assert tables.is_plain("bare", 0), "without column mapping"
    assert len(tables.same("bare", 0)) == 1

    tables.make(
        "changed",
        "id INT, a STRING, s STRUCT<x: INT> COMMENT ''",
        "INSERT INTO {t} VALUES (1, 'a', struct(7))",
    )
    tables.run(
        "changed",
        "ALTER TABLE {t} RENAME COLUMN a TO b",
        "ALTER TABLE {t} ADD COLUMNS (a INT)",
        "ALTER TABLE {t} RENAME COLUMN s.x TO y",
        "ALTER TABLE {t} ADD COLUMNS (s.x STRING)",
        "INSERT INTO {t} VALUES (2, 'b', struct(8, 'x'), 9)",
        "ALTER TABLE {t} DROP COLUMN b",
    )
    assert [version for version in range(8) if not tables.is_plain("changed", version)] == []
    assert len(tables.same("changed", 1)) == 1
    assert [json.loads(row) for row in tables.same("changed", 7)] == [
        {"id": 1, "s": {"y": 7, "x": None}, "a": None},
        {"id": 2, "s": {"y": 8, "x": "x"}, "a": 9},
    ]


@pytest.mark.spark
def test_delta_reads_what_files_alone_do_not_tell(spark: SparkSession, lake_path: str) -> None:
    tables = Tables(spark, lake_path)
    tables.make("marked", "id INT", "INSERT INTO {t} SELECT CAST(id AS INT) FROM range(1000)")
    tables.run("marked", "DELETE FROM {t} WHERE id = 7")
    assert tables.is_plain("marked", 1)
    assert not tables.is_plain("marked", 2), "the file still has the row"
    assert tables.count("marked", 2) == 999
    tables.run("marked", "REORG TABLE {t} APPLY (PURGE)")
    assert tables.is_plain("marked", 3)
    assert len(tables.same("marked", 3)) == 999

    tables.make("widened", "id INT, l ARRAY<SMALLINT>", "INSERT INTO {t} VALUES (1, array(2S))")
    tables.run("widened", "ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT", "INSERT INTO {t} VALUES (1, NULL)")
    assert tables.is_plain("widened", 1)
    assert not tables.is_plain("widened", 3)
    tables.make("within", "l ARRAY<STRUCT<a: SMALLINT>>", "INSERT INTO {t} VALUES (array(struct(2S)))")
    tables.run("within", "ALTER TABLE {t} ALTER COLUMN l.element.a TYPE INT")
    assert not tables.is_plain("within", 2)

    tables.run(
        "divided",
        "CREATE TABLE {t} USING DELTA PARTITIONED BY (p) AS SELECT id, id % 2 AS p FROM range(4)",
    )
    assert not tables.is_plain("divided", 0)

    tables.run("nothing", "CREATE TABLE {t} USING DELTA AS SELECT 1 AS id, NULL AS never")
    assert not tables.is_plain("nothing", 0), "Spark writes no column of NULLs into a file"
    tables.run("cloned", f"CREATE TABLE {{t}} SHALLOW CLONE {tables.lake.sql('silver', 'marked')}")
    assert not tables.is_plain("cloned", 0), "its files lie in another folder"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATABRICKS_RUNTIME_VERSION", "18.1")
        assert not tables.is_plain("marked", 1)

    log = Path(tables.lake.uri("silver", "marked")) / "_delta_log"
    checksum = log / f"{1:020}.crc"
    checksum_content = json.loads(checksum.read_text())
    (log / f".{1:020}.crc.crc").unlink()  # Hadoop's own, of the file as it was
    for wrong in (
        json.dumps({**checksum_content, "numFiles": checksum_content["numFiles"] + 1}),
        json.dumps({**checksum_content, "tableSizeBytes": checksum_content["tableSizeBytes"] - 1}),
        json.dumps({**checksum_content, "numDeletionVectorsOpt": 1}),
        json.dumps(
            {name: value for name, value in checksum_content.items() if name != "numDeletedRecordsOpt"}
        ),
        checksum.read_text()[:100],
    ):
        checksum.write_text(wrong)
        assert not tables.is_plain("marked", 1), wrong[:100]
    checksum.unlink()
    assert not tables.is_plain("marked", 1)
    assert tables.count("marked", 1) == 1000

    with settings(spark, {"spark.databricks.delta.writeChecksumFile.enabled": "false"}):
        tables.run("marked", "INSERT INTO {t} VALUES (-1)")
    assert not tables.is_plain("marked", 4)
    assert tables.count("marked", 4) == 1000


@pytest.mark.spark
def test_a_file_that_is_gone_ends_the_statement(spark: SparkSession, lake_path: str) -> None:
    tables = Tables(spark, lake_path)
    tables.make("t", "id INT", "INSERT INTO {t} VALUES (1)", "INSERT INTO {t} VALUES (2)")
    frame = table_at(spark, tables.lake, "silver", "t", 2)
    plain = plain_files(tables.lake, "silver", "t", 2)
    assert plain is not None
    assert len(plain.paths) == 2
    Path(plain.paths[0]).unlink()
    with pytest.raises(Exception, match=r"NOT_EXIST|does not exist"):
        frame.collect()
    with pytest.raises(Exception, match=r"PATH_NOT_FOUND"):
        table_at(spark, tables.lake, "silver", "t", 2).collect()
