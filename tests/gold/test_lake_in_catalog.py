"""Silver and gold in managed tables of a catalog equal PostgreSQL, through all events of a lake.

The tests share one lake, whose history continues from test to test.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.catalog import commit_marks
from deltasmelt.bronze.lake.catalog.table import STATED_AFTER, CatalogTable
from deltasmelt.bronze.lake.foreign_commits import SIGNATURE
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.relations import read_relations
from deltasmelt.gold.builder.gold_table import DEFINITION_PROPERTY
from deltasmelt.gold.verify.verify import verify
from deltasmelt.pipelines.quality.results import history as past_runs
from deltasmelt.pipelines.quality.run import run_quality
from deltasmelt.pipelines.spark.lake_sql import LakeSql
from deltasmelt.pipelines.sql_shell.catalog import CutCatalog
from deltasmelt.silver.fresh import FreshTables
from deltasmelt.silver.rebuild import rebuild
from deltasmelt.silver.run.stored import SILVER_APP
from deltasmelt.silver.schema.catalog import histories
from deltasmelt.silver.spark.tuning import REFUSED
from tests.fix_spark import rows_of
from tests.gold.catalog_world import (
    CATALOG,
    DONE,
    RESHAPED,
    arrive,
    change_and_move,
    lake_in_catalog,
    shop_in,
)
from tests.gold.shop import relation
from tests.gold.world import pipeline_of
from tests.silver.histories import BronzeWriter
from tests.silver.killed import EndedError, end, ending

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.gold.shop import Shop
    from tests.gold.world import World

GUARDED = {commit_marks.USER_METADATA, "spark.databricks.delta.write.txnAppId"}
"""Settings that serverless compute allows no user to change."""


pytestmark = pytest.mark.torture
"""The tests take minutes."""


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with lake_in_catalog(spark, tmp_path_factory.mktemp("lake")) as lake:
        shop_made = shop_in(spark, lake, history=True)
        shop_made.first()
        yield shop_made


def check_silver(world: World) -> None:
    """Compare both tables, and the current versions of the history, with the source's rows."""
    for name in ("customers", "orders"):
        ids = {row["id"] for row in rows_of(world.spark, f"SELECT id FROM {CATALOG}.silver.{name}")}
        assert ids == {row["id"] for row in world.shop.all(name)}, name
    live = rows_of(
        world.spark,
        f"SELECT id, status FROM {CATALOG}.silver.orders__history WHERE _valid_to_lsn IS NULL",
    )
    assert {(row["id"], row["status"]) for row in live} == {
        (row["id"], row["status"]) for row in world.shop.all("orders")
    }
    assert len(live) == len(list(world.shop.all("orders")))


def test_changes_keys_columns_truncate_and_snapshot_are_applied(world: World) -> None:
    world.step(arrive)
    world.step(change_and_move)
    check_silver(world)
    world.spark.sql(f"DELETE FROM {CATALOG}.silver.orders WHERE id = 903")
    world.step(lambda shop: shop.put("orders", id=903, status="back"))  # known rows, of which one lacks
    check_silver(world)
    orders = CatalogTable(world.lake.uri("silver", "orders"))
    assert [commit_marks.read(commit).marks for commit in orders.history(2)] == [
        {},
        {SILVER_APP: world.shop.lsn},
    ]

    def reshape(world: World) -> None:
        world.shop.add_column("customers", "points", "int4", 7)
        world.shop.put("customers", id=78, email="z", points=9)
        world.shop.truncate("orders")
        world.shop.put("orders", id=5, customer_id=78)
        world.shop.resnapshot("customers")

    world.step(lambda _: reshape(world))
    check_silver(world)
    points = rows_of(world.spark, f"SELECT id, points FROM {CATALOG}.silver.customers")
    assert {row["id"]: row["points"] for row in points} == {
        row["id"]: row["points"] for row in world.shop.all("customers")
    }


def test_build_killed_before_naming_definition_is_repeated(world: World) -> None:
    """The killed build used a changed definition, and had not recorded the definition yet."""
    world.define([RESHAPED])
    world.shop.put("orders", id=6, customer_id=78)
    cut = world.shop.commit()
    with ending("before ALTER 2", end), pytest.raises(EndedError):
        world.gold.cycle()
    table = CatalogTable(world.lake.uri("gold", "customer"))
    assert table.metadata().configuration[DEFINITION_PROPERTY] == ""
    world.gold = world.start_gold(world.documents)
    world.cycle(cut, full={"customer": "was not completed"})
    world.check()
    table.update_incremental()
    assert table.metadata().configuration[DEFINITION_PROPERTY]
    created = [
        commit["version"] for commit in table.history() if str(commit["operation"]).startswith("CREATE")
    ]
    assert created == [0]  # never replaced
    world.step(lambda shop: shop.put("orders", id=7, customer_id=78))


def test_cycle_killed_before_cut_resumes_without_repeated_windows(world: World) -> None:
    world.shop.put("orders", id=8, customer_id=78)
    world.shop.remove("orders", 7)
    world.shop.write()
    with ending("before CUT 1", end), pytest.raises(EndedError):
        world.shop.silver.cycle()
    versions = {
        name: CatalogTable(world.lake.uri("silver", name)).version() for name in ("orders", "customers")
    }
    world.shop.silver = world.shop.start_silver()
    cut = world.shop.silver.cycle()
    assert cut is not None
    assert {name: cut.tables[name] for name in versions} == versions
    world.cycle(cut)
    world.check()
    check_silver(world)


def come_and_go(shop: Shop) -> None:
    shop.put("orders", id=9, customer_id=78)
    shop.remove("orders", 8)


def test_merge_condition_carries_mark_under_guarded_settings(world: World) -> None:
    """A server that guards settings refuses the setting for the mark."""
    REFUSED.update(GUARDED)
    try:
        world.step(lambda shop: shop.put("orders", id=8, customer_id=78, status="paid"))
        world.step(come_and_go)
    finally:
        REFUSED.difference_update(GUARDED)
    check_silver(world)
    for layer, name in (("silver", "orders"), ("silver", "orders__history"), ("gold", "customer")):
        table = CatalogTable(world.lake.uri("silver" if layer == "silver" else "gold", name))
        newest = next(commit for commit in table.history(4) if commit["operation"] in {"MERGE", "WRITE"})
        # A session signed before the server guarded the setting stays signed.
        assert newest["userMetadata"] in {None, SIGNATURE} or newest["operation"] == "WRITE"
        assert table.transaction_version(f"deltasmelt.{layer}") == world.shop.lsn, (layer, name)


def test_marks_are_restated_before_first_poll_loses_them(world: World) -> None:
    table = CatalogTable(world.lake.uri("silver", "customers"))
    mark = table.transaction_version(SILVER_APP)
    for number in range(STATED_AFTER):
        world.spark.sql(f"ALTER TABLE {CATALOG}.silver.customers SET TBLPROPERTIES ('theirs' = '{number}')")
    world.step(lambda shop: shop.put("orders", id=10, customer_id=78))
    table = CatalogTable(world.lake.uri("silver", "customers"))
    assert commit_marks.marks_of(table.metadata().configuration) == {SILVER_APP: mark}
    assert table.transaction_version(SILVER_APP) == mark
    assert not table.is_unstated()


def test_table_rebuilt_from_bronze_leaves_no_leftovers(world: World) -> None:
    world.spark.sql(f"DELETE FROM {CATALOG}.silver.orders WHERE id = 10")
    cut = world.control.latest_cut("silver")
    assert cut is not None
    (orders,) = [silver_shape for silver_shape in world.catalog().values() if silver_shape.name == "orders"]
    for table in [orders, *histories([orders], world.shop.settings)]:
        rebuild(
            world.spark, world.lake, world.shop.settings, table,
            relations=read_relations(world.lake), end=cut.commit_lsn,
        )  # fmt: skip
    check_silver(world)
    rows = rows_of(world.spark, f"SHOW TABLES IN {CATALOG}.deltasmelt_scratch")
    assert not [row for row in rows if not row["isTemporary"]]  # views of the session are among them
    world.step(lambda shop: shop.put("orders", id=11, customer_id=78))
    check_silver(world)


def test_statements_quality_and_proofs_share_cut_by_names(world: World, tmp_path: Path) -> None:
    world.step(lambda shop: shop.put("customers", id=79, email="seen"))
    pipeline = pipeline_of(world, tmp_path)
    for alone in (True, False):
        lake_sql = LakeSql(world.spark, pipeline, alone=alone)
        world.spark.sql(f"INSERT INTO {CATALOG}.silver.customers (id, email) VALUES ({500 + alone}, 'later')")
        rows = lake_sql.query(
            "SELECT customers.id FROM silver.customers JOIN gold.customer AS d ON d.id = customers.id"
        ).collect()
        assert {row["id"] for row in rows} == {
            row["id"] for row in world.shop.all("customers") if row["deleted_at"] is None
        }
        assert lake_sql.query("SELECT max(commit_lsn) FROM bronze.changes").first() is not None
        lake_sql.forget()
        world.spark.sql(f"DELETE FROM {CATALOG}.silver.customers WHERE id >= 500")
    listed = {info.full_name: info for info in CutCatalog(pipeline, lake_sql.cut).tables}
    assert [column.name for column in listed["silver.orders"].columns][:2] == ["id", "customer_id"]
    assert CutCatalog(pipeline, lake_sql.cut).rows([listed["silver.orders"]]) == [
        len(list(world.shop.all("orders")))
    ]
    assert verify(world.spark, world.lake, world.gold.built("customer")).equal
    assert '"email": "seen"' in world.gold.preview("customer", "79").replace('" : ', '": ')
    result = run_quality(world.spark, pipeline)
    assert result.rows
    assert all(row.success for row in result.rows), [row for row in result.rows if not row.success]
    assert [run.failed for run in past_runs(world.lake, 5).runs] == [0]


def test_bronze_rows_are_visible_before_next_cycle(world: World) -> None:
    world.shop.put("orders", id=12, customer_id=78, status="fresh")
    world.shop.remove("orders", 11)
    world.shop.write()
    tables = FreshTables(world.spark, world.lake, world.shop.settings, world.control)
    try:
        head = tables.read(["orders", "customers"])
        assert head.out == {}
        ahead = {row["id"] for row in rows_of(world.spark, f"SELECT id FROM {head.view('orders')}")}
    finally:
        tables.close()
    assert ahead == {row["id"] for row in world.shop.all("orders")}
    world.step(lambda _: None)


def test_name_rejected_by_catalog_is_error_of_table(world: World) -> None:
    bronze = BronzeWriter(world.lake)
    refused = ['public."two words"', 'public."Orders"']
    shapes = [relation(name, {"id": "int8"}, ("id",)) for name in refused]
    world.shop.put("orders", id=13, customer_id=78)
    world.shop.transaction()
    world.shop.write()
    bronze.relations(shapes)
    for shape in shapes:
        bronze.snapshot(shape, world.shop.lsn + 5, [["1"]])
    bronze.commit(world.shop.lsn + 5)
    cut = world.shop.silver.cycle()
    assert cut is not None
    assert cut.commit_lsn == Lsn(world.shop.lsn + 5)
    assert {"customers"} == set(cut.tables) - {"orders", "orders__history"}
    errors = {error.name: error for error in world.control.open_errors()}
    assert set(errors) == {str(TableName.parse(name)) for name in [*refused, "public.orders"]}
    assert {error.code for error in errors.values()} == {"catalog-name"}


def test_silver_and_gold_need_no_deltalake(tmp_path: Path) -> None:
    run = ["-m", "tests.without_deltalake", "tests.gold.catalog_world", str(tmp_path / "warehouse")]
    ran = subprocess.run(
        [sys.executable, *run],
        capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert DONE in ran.stdout, ran.stderr[-4000:]
