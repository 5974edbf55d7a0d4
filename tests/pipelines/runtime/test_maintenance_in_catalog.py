"""Maintenance of a lake in a catalog: next to foreign tables, and on a server that guards settings."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.catalog import commit_marks, commits
from deltasmelt.bronze.lake.catalog.table import CatalogTable
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.store.contract import CHANGES, CHANGES_SCHEMA
from deltasmelt.pipelines.runtime import maintenance
from deltasmelt.pipelines.runtime.maintenance import Maintenance
from deltasmelt.pipelines.runtime.old_timestamps import has_old_files, renewed
from deltasmelt.silver.spark import tuning
from deltasmelt.silver.spark.access import access_of
from tests.fix_spark import rows_of
from tests.gold.catalog_world import CATALOG, lake_in_catalog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Lake

STATIC = "spark.sql.warehouse.dir"
"""A setting that no session may change."""


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with lake_in_catalog(spark, tmp_path_factory.mktemp("lake")) as lake_made:
        yield lake_made


def upkeep(spark: SparkSession, lake: Lake) -> Maintenance:
    return Maintenance(spark, lake, ControlTables(lake), retention=0, documents=False)


def test_what_others_have_in_our_schemas_stops_no_maintenance_and_is_told_once(
    spark: SparkSession, lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    delta.open_or_create(lake.uri("bronze", "ours"), pa.schema([("id", pa.int64())]), description="")
    for statement in (
        "CREATE VIEW {}.bronze.seen AS SELECT 1 AS id",
        "CREATE TEMPORARY VIEW passing AS SELECT 1 AS id",
        "CREATE TABLE {}.control.plain (id BIGINT) USING PARQUET",
        "CREATE TABLE {}.quality.theirs (id BIGINT) USING DELTA",
    ):
        spark.sql(statement.format(CATALOG))
    work = upkeep(spark, lake)
    with caplog.at_level(logging.WARNING, "deltasmelt.maintenance"):
        maintained = {(result.layer, result.name) for result in work.all_tables()}
        work._tables()  # the next round
    assert work.failed == {}
    assert ("bronze", "ours") in maintained
    assert not {name for _, name in maintained} & {"seen", "passing", "plain", "theirs"}
    messages = [record.getMessage() for record in caplog.records if record.name == "deltasmelt.maintenance"]
    passed_over = sorted(message.partition(" is not maintained: ")[0] for message in messages)
    assert passed_over == ["bronze.seen", "control.plain"]
    assert all("not a table of this pipeline" in message for message in messages)
    spark.catalog.dropTempView("passing")


def test_marks_that_a_reader_left_unstated_are_said_again(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = lake.uri("bronze", CHANGES)
    delta.open_or_create(uri, CHANGES_SCHEMA, description="")
    commits.append(CatalogTable(uri), CHANGES_SCHEMA.empty_table(), {"deltasmelt.stream": 7})
    assert commit_marks.marks_of(CatalogTable(uri).metadata().configuration) == {}
    monkeypatch.setattr("deltasmelt.bronze.lake.catalog.table._STATED_SECONDS", 0.0)
    assert list(upkeep(spark, lake).all_tables())
    table = CatalogTable(uri)
    assert commit_marks.marks_of(table.metadata().configuration)["deltasmelt.stream"] == 7
    assert table.transaction_version("deltasmelt.stream") == 7


def test_a_table_without_a_word_on_its_timestamps_is_written_again_once(
    spark: SparkSession, lake: Lake
) -> None:
    """A catalog hides the table's files, so only the property decides."""
    address, uri, before = lake.sql("silver", "older"), lake.uri("silver", "older"), access_of(spark).child()
    before.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    before.sql(f"CREATE SCHEMA IF NOT EXISTS {CATALOG}.silver")
    before.sql(f"CREATE TABLE {address} (id INT, at TIMESTAMP) USING DELTA CLUSTER BY (id)")
    before.sql(f"INSERT INTO {address} VALUES (1, TIMESTAMP '9999-12-31 23:59:59.999999 UTC')")
    folder = rows_of(spark, f"DESCRIBE DETAIL {address}")[0]["location"]
    assert has_old_files(delta.open_existing(folder))
    child = access_of(spark).child()
    results = [renewed(child, address, delta.open_existing(uri), child.sql) for _ in range(2)]
    assert results == [True, False]
    assert not has_old_files(delta.open_existing(folder))
    assert rows_of(spark, f"SELECT id, CAST(at AS STRING) FROM {address}") == [
        (1, "9999-12-31 23:59:59.999999")
    ]


def test_a_setting_that_a_server_guards_is_left_as_it_is(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(maintenance._SETTINGS, STATIC, "elsewhere")
    monkeypatch.setattr(tuning, "REFUSED", set())
    assert upkeep(spark, lake).failed == {}
    assert list(tuning.REFUSED) == [STATIC]
