"""Test the share of a table that a key range would read, by the log: mapping, types, unknown figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.shapes import PgType
from deltasmelt.silver.run.table_log import SilverLog
from deltasmelt.silver.schema import ddl
from deltasmelt.silver.schema.catalog import silver_table
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, TEXT, relation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATE = PgType("base", "date", oid=1082)


@pytest.mark.spark
def test_the_share_of_rows_that_a_range_reads(spark: SparkSession, lake_path: str) -> None:
    lake = Lake(path=lake_path)
    shape = relation("t", [("id", INT), ("name", TEXT), ("at", DATE)], ["id"], relation_id=1)
    table = silver_table(shape, SilverSettings())
    target = lake.sql("silver", table.name)
    spark.sql(ddl.create(target, table)[0])
    for start in range(0, 40, 10):
        spark.sql(
            f"INSERT INTO {target} (id, name, at) SELECT /*+ COALESCE(1) */ CAST(id AS INT), "
            f"concat('n', lpad(id, 3, '0')), DATE '2026-01-01' FROM range({start}, {start + 10})"
        )
    log = SilverLog(lake)
    assert log.size(table.name)[0] == 40
    assert log.size(table.name)[1] > 4 * 500, "bytes of four files"
    assert log.share(table.name, "id", "0", "39") == 1.0
    assert log.share(table.name, "id", "12", "18") == 0.25
    assert log.share(table.name, "id", "9", "10") == 0.5
    assert log.share(table.name, "id", "40", "50") == 0.0
    assert log.share(table.name, "name", "n030", "n034") == 0.25
    assert log.share(table.name, "at", "2026-01-01", "2026-01-01") == 0.0, "not known: the range is kept"
    assert log.share("no_such_table", "id", "0", "1") == 0.0
