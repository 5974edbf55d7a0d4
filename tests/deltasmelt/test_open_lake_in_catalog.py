"""`deltasmelt.open` of a lake without a path: all tables are managed tables of a catalog."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

import deltasmelt
from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines.spark.borrowed_sql import OLD_VERSIONS
from tests.fix_spark import reading
from tests.gold.catalog_world import CATALOG, lake_in_catalog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deltasmelt.bronze.lake.location import Lake

pytestmark = pytest.mark.spark

FIRST, SECOND = Lsn(0x100), Lsn(0x200)
FILE = (
    "pipeline: shop\nsource: {dsn: 'host=127.0.0.1 port=1 dbname=x', slot: s, publication: p}\n"
    f"lake: {{catalog: {CATALOG}}}\n"
)

OPENED = """
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
    """Create a silver table with two versions, and a cut at the first version."""
    with reading(spark), lake_in_catalog(spark, tmp_path_factory.mktemp("named")) as lake_made:
        spark.sql(f"CREATE TABLE {CATALOG}.silver.orders USING DELTA AS SELECT id FROM range(2)")
        spark.sql(f"INSERT INTO {CATALOG}.silver.orders SELECT id FROM range(2, 4)")
        moment = datetime(2026, 1, 1, 12, tzinfo=UTC)
        ControlTables(lake_made).record_cut(Cut("silver", FIRST, moment, {"orders": 0}))
        yield lake_made


@pytest.fixture
def file(lake: Lake, tmp_path: Path) -> Path:
    """Write a pipeline file of the lake's catalog."""
    (tmp_path / "pipeline.yml").write_text(FILE)
    return tmp_path / "pipeline.yml"


@pytest.mark.usefixtures("active")
def test_tables_and_status_are_read_in_the_session_that_is_there_and_it_stays_as_it_was(
    spark: SparkSession, lake: Lake, file: Path
) -> None:
    def seen() -> tuple[Any, ...]:
        settings: Any = spark.conf.getAll
        return spark.sql("SHOW VIEWS").collect(), dict(settings)

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
                assert second_lake.sql("SELECT count(*) FROM silver.orders CROSS JOIN mine").collect() == [
                    (4,)
                ]
                assert second_lake.at("0/1FF").commit_lsn == FIRST
    finally:
        spark.conf.set(OLD_VERSIONS, "false")
        spark.sql("DROP VIEW IF EXISTS mine")


def test_without_a_session_opening_it_starts_one_which_its_end_stops(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yml"
    file.write_text(FILE + "spark: {spark.master: 'local[1]', spark.driver.memory: 1g}\n")
    process = subprocess.run(
        [sys.executable, "-c", OPENED, str(file)],
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert process.stdout.splitlines() == ["the lake is still empty", "layer-empty", "None"], process.stderr
