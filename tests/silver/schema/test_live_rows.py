"""The table itself shows which rows are live, even if a source column has the name of silver's column."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.comments import Comments
from deltasmelt.bronze.shapes import PgType
from deltasmelt.silver.schema import ddl
from deltasmelt.silver.schema.catalog import silver_table
from deltasmelt.silver.schema.live_rows import keeps_deleted, live_rows
from deltasmelt.silver.settings import SilverSettings
from deltasmelt.silver.sql import quote
from tests.silver.histories import INT, relation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BOOLEAN = PgType("base", "bool", oid=16)


def written(spark: SparkSession, path: str, settings: SilverSettings) -> list[DataFrame]:
    """Write a table of two rows, one with `_deleted` true; return a version and the change feed."""
    soft = settings.deletes == "soft"
    columns = [("id", INT)] if soft else [("id", INT), ("_deleted", BOOLEAN)]
    target = f"delta.{quote(path)}"
    comments = None if soft else Comments(1, "rows before it: 1", {2: "rows before it: false"})
    shape = replace(relation("t", columns, ["id"], relation_id=1), comments=comments)
    spark.sql(ddl.create(target, silver_table(shape, settings))[0])
    spark.sql(f"INSERT INTO {target} (id, _deleted) VALUES (1, false), (2, true)")
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", "1")
    return [spark.sql(f"SELECT * FROM {target} VERSION AS OF 1"), feed.load(path)]


@pytest.mark.spark
def test_rows_that_silver_marked_are_left_out(spark: SparkSession, lake_path: str) -> None:
    for frame in written(spark, lake_path, SilverSettings(deletes="soft")):
        assert keeps_deleted(frame)
        assert [row["id"] for row in live_rows(frame).collect()] == [1]


@pytest.mark.spark
def test_source_column_with_reserved_name_marks_nothing(spark: SparkSession, lake_path: str) -> None:
    for frame in written(spark, lake_path, SilverSettings()):
        assert not keeps_deleted(frame)
        assert live_rows(frame).count() == 2
