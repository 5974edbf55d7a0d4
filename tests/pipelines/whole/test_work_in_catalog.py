"""Maintenance, rebuilds, quality and `deltasmelt.open` in a catalog.

All tests share one lake, whose history continues from test to test.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.sql import SparkSession

import deltasmelt
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.catalog import commit_marks, commits
from deltasmelt.bronze.lake.catalog.table import CatalogTable
from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.pipelines.commands.rebuild import rebuild_silver
from deltasmelt.pipelines.quality import results
from deltasmelt.pipelines.quality.constraints import (
    CONSTRAINTS,
    Constraints,
    record_constraints,
    recorded_constraints,
)
from deltasmelt.pipelines.quality.results import KEPT, append_results, history
from deltasmelt.pipelines.runtime import maintenance
from deltasmelt.pipelines.runtime.maintenance import Maintenance
from deltasmelt.pipelines.runtime.old_timestamps import has_old_files, renewed
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.spark.borrowed_sql import OLD_VERSIONS
from deltasmelt.pipelines.terminal.output import Output
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.spark import tuning
from deltasmelt.silver.spark.access import access_of
from tests.fix_spark import reading, rows_of
from tests.gold.catalog_world import CATALOG, lake_in_catalog
from tests.pipelines.quality.test_quality_report import FAILS, HOLDS, NOW, result
from tests.silver.histories import INT, TEXT, BronzeWriter, relation
from tests.silver.killed import EndedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deltasmelt.bronze.lake.location import Lake

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]

STATIC: Final = "spark.sql.warehouse.dir"
"""A setting that no session may change."""
FIRST, SECOND = Lsn(0x100), Lsn(0x200)
FILE: Final = (
    "pipeline: shop\nsource: {dsn: 'host=127.0.0.1 port=1 dbname=x', slot: s, publication: p}\n"
    f"lake: {{catalog: {CATALOG}}}\nsilver: {{history: [public.items]}}\n"
)
OPENED: Final = """
import sys, deltasmelt
from pyspark import SparkContext
with deltasmelt.open(sys.argv[1]) as lake:
    print(lake.status().lake_error)
    try:
        lake.at()
    except deltasmelt.DefiniteError as error:
        print(error.code)
print(SparkContext._active_spark_context)
"""


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with lake_in_catalog(spark, tmp_path_factory.mktemp("lake")) as lake_made:
        yield lake_made


@pytest.fixture(scope="module")
def bronze(lake: Lake) -> BronzeWriter:
    """Create bronze, with a commit whose marks no property states."""
    writer = BronzeWriter(lake)
    writer.commit(5)
    return writer


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write a pipeline file of the lake's catalog."""
    (tmp_path / "pipeline.yml").write_text(FILE)
    return tmp_path / "pipeline.yml"


def upkeep(spark: SparkSession, lake: Lake) -> Maintenance:
    return Maintenance(spark, lake, ControlTables(lake), retention=0, documents=False)


@pytest.mark.usefixtures("bronze")
def test_maintenance_states_marks_and_spares_foreign_tables(
    spark: SparkSession, lake: Lake, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for statement in (
        "CREATE VIEW {}.bronze.seen AS SELECT 1 AS id",
        "CREATE TEMPORARY VIEW passing AS SELECT 1 AS id",
        "CREATE TABLE {}.control.plain (id BIGINT) USING PARQUET",
        "CREATE TABLE {}.quality.theirs (id BIGINT) USING DELTA",
    ):
        spark.sql(statement.format(CATALOG))
    uri = lake.uri("bronze", CHANGES)
    assert commit_marks.marks_of(CatalogTable(uri).metadata().configuration) == {}
    monkeypatch.setattr("deltasmelt.bronze.lake.catalog.table._STATED_SECONDS", 0.0)
    work = upkeep(spark, lake)
    with caplog.at_level(logging.WARNING, "deltasmelt.maintenance"):
        maintained = {(maintained.layer, maintained.name) for maintained in work.all_tables()}
        work._tables()  # the next round warns no second time
    spark.catalog.dropTempView("passing")
    assert work.failed == {}
    assert ("bronze", CHANGES) in maintained
    assert not {name for _, name in maintained} & {"seen", "passing", "plain", "theirs"}
    messages = [record.getMessage() for record in caplog.records if record.name == "deltasmelt.maintenance"]
    passed_over = sorted(message.partition(" is not maintained: ")[0] for message in messages)
    assert passed_over == ["bronze.seen", "control.plain"]
    assert all("not a table of this pipeline" in message for message in messages)
    table = CatalogTable(uri)
    assert commit_marks.marks_of(table.metadata().configuration)["deltasmelt.stream"] == 5
    assert table.transaction_version("deltasmelt.stream") == 5


def test_a_guarded_setting_is_left_unchanged(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(maintenance._SETTINGS, STATIC, "elsewhere")
    monkeypatch.setattr(tuning, "REFUSED", set())
    assert upkeep(spark, lake).failed == {}
    assert list(tuning.REFUSED) == [STATIC]


def test_a_table_with_old_timestamps_is_rewritten_once(spark: SparkSession, lake: Lake) -> None:
    """A catalog hides the table's files, so only the property decides."""
    address, uri, before = lake.sql("silver", "older"), lake.uri("silver", "older"), access_of(spark).child()
    before.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    before.sql(f"CREATE TABLE {address} (id INT, at TIMESTAMP) USING DELTA CLUSTER BY (id)")
    before.sql(f"INSERT INTO {address} VALUES (1, TIMESTAMP '9999-12-31 23:59:59.999999 UTC')")
    folder = rows_of(spark, f"DESCRIBE DETAIL {address}")[0]["location"]
    assert has_old_files(delta.open_existing(folder))
    child = access_of(spark).child()
    assert [renewed(child, address, delta.open_existing(uri), child.sql) for _ in range(2)] == [True, False]
    assert not has_old_files(delta.open_existing(folder))
    assert rows_of(spark, f"SELECT id, CAST(at AS STRING) FROM {address}") == [
        (1, "9999-12-31 23:59:59.999999")
    ]


def test_a_rebuild_overwrites_no_table_of_equal_name(
    spark: SparkSession, lake: Lake, bronze: BronzeWriter, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For a catalog, names that differ in case are equal: of a second table, and of a table's history."""
    pipeline = load_pipeline(file)
    pipeline.lake_address().place.serve(lambda: spark)
    control = ControlTables(lake)
    shapes = [
        relation(name, [("id", INT), ("note", TEXT)], ["id"], relation_id=at)
        for at, name in enumerate(("items", "Items", "Items__History"), 1)
    ]
    for lsn, come in ((10, shapes[:1]), (25, shapes[1:])):
        bronze.relations(come)
        for shape in come:
            bronze.snapshot(shape, lsn, [["1", shape.table.name]])
        bronze.commit(lsn + 5)
        if lsn == 10:
            silver = Silver(spark, lake, pipeline.silver, control)
            silver.cycle()
            silver.close()

    failed = rebuild_silver(spark, pipeline, [shape.table for shape in shapes], Output())
    assert failed == [shape.table.name for shape in shapes]
    assert "the catalog ignores case" in capsys.readouterr().err
    errors = {error.name: error.code for error in control.open_errors()}
    assert errors == dict.fromkeys([str(shape.table) for shape in shapes], "catalog-name")
    for name in ("items", "items__history"):
        rows = rows_of(spark, f"SELECT id, note FROM {CATALOG}.silver.{name}")
        assert [tuple(row) for row in rows] == [(1, "items")], name


def test_old_quality_results_expire(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results with examples of rows expire too."""
    monkeypatch.setattr(results, "_TIDY_EVERY", 1)
    for number, at in enumerate([NOW, NOW + KEPT + timedelta(seconds=1)]):
        append_results(lake, replace(result(HOLDS, FAILS), run_id=f"run {number}", run_at=at))
    assert [run.run_id for run in history(lake, 9).runs] == ["run 1"]


def test_a_killed_record_of_constraints_is_repeated(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kill comes between the record's two statements."""

    def killed(*_: object) -> None:
        raise EndedError

    recorded = Constraints(NOW, enum_labels={7: ("sad", "ok")})
    with monkeypatch.context() as during:
        during.setattr(commits, "overwrite", killed)
        with pytest.raises(EndedError):
            record_constraints(lake, recorded)
    assert delta.open_table(lake.uri("quality", CONSTRAINTS)) is not None
    assert recorded_constraints(lake) is None
    record_constraints(lake, recorded)
    assert recorded_constraints(lake) == recorded


@pytest.mark.usefixtures("active")
def test_an_opened_lake_leaves_the_session_unchanged(spark: SparkSession, lake: Lake, file: Path) -> None:
    def seen() -> tuple[Any, ...]:
        settings: Any = spark.conf.getAll
        return spark.sql("SHOW VIEWS").collect(), dict(settings)

    spark.sql(f"CREATE TABLE {CATALOG}.silver.orders USING DELTA AS SELECT id FROM range(2)")
    spark.sql(f"INSERT INTO {CATALOG}.silver.orders SELECT id FROM range(2, 4)")
    moment = datetime(2026, 1, 1, 12, tzinfo=UTC)
    ControlTables(lake).record_cut(Cut("silver", FIRST, moment, {"orders": 0}))
    spark.conf.unset(OLD_VERSIONS)
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW mine AS SELECT 1 AS id")
    try:
        with reading(spark):
            before = seen()
            with deltasmelt.open(file) as opened:
                assert opened.table("silver.orders").count() == 2
                joined = opened.sql("SELECT id FROM silver.orders JOIN mine USING (id)")
                assert joined.sparkSession is spark
                assert joined.collect() == [(1,)]
                status = opened.status()
                assert (status.lake, status.source_error is None) == (f"catalog {CATALOG}", False)
                assert "catalog-session" not in {finding.code for finding in opened.check(offline=True)}
                with opened._held.death_reported():
                    control = ControlTables(opened.pipeline.lake_address())
                    control.record_cut(Cut("silver", SECOND, None, {"orders": 1}))
                assert SparkSession.getActiveSession() is spark, "not the one beside it, which wrote"
            assert seen() == before
            with deltasmelt.open(file) as second_lake:
                rows = second_lake.sql("SELECT count(*) FROM silver.orders CROSS JOIN mine").collect()
                assert rows == [(4,)]
                assert second_lake.at("0/1FF").commit_lsn == FIRST
    finally:
        spark.conf.set(OLD_VERSIONS, "false")
        spark.sql("DROP VIEW IF EXISTS mine")


@pytest.mark.torture
def test_opening_starts_a_session_and_stops_it(file: Path) -> None:
    file.write_text(FILE + "spark: {spark.master: 'local[1]', spark.driver.memory: 1g}\n")
    process = subprocess.run(
        [sys.executable, "-c", OPENED, str(file)],
        env={**os.environ, "XDG_STATE_HOME": str(file.parent)},
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert process.stdout.splitlines() == ["the lake is still empty", "layer-empty", "None"], process.stderr
