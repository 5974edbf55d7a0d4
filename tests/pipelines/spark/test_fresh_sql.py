"""`smelt sql --fresh` and `smelt preview --fresh`: the rows of the next cycle, before the cycle runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.pipelines.commands.sql import SqlOptions, run_sql
from deltasmelt.pipelines.spark.fresh_sql import FreshSql
from deltasmelt.pipelines.terminal.output import Output
from deltasmelt.silver.fresh import FreshTables
from tests.fix_spark import reading
from tests.gold.shop import SHAPES, money
from tests.gold.world import Model, World, pipeline_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deltasmelt.pipelines.settings import Pipeline
    from tests.gold.shop import Shop

pytestmark = pytest.mark.spark

READ = ("public.customers", "public.orders", "public.addresses", "public.customer_tags")
CUSTOMER = """\
document: customer
root: public.customers
fields:
  - id
  - tier
  - orders: {many: public.orders, on: {customer_id: id}, fields: [id, status]}
  - tags: {many: public.customer_tags, on: {customer_id: id}, fields: [tag_id]}
"""


@pytest.fixture(scope="module")
def world(spark: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Fold the shop once; then write changes to bronze that silver lacks."""
    model = Model(shapes={name: SHAPES[name] for name in READ})
    built = World(spark, str(tmp_path_factory.mktemp("world") / "lake"), [CUSTOMER], model)  # type: ignore[arg-type]
    built.shop.commit()
    change(built.shop)
    built.shop.write()
    yield built
    built.shop.silver.close()


@pytest.fixture(scope="module")
def pipeline(world: World, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return pipeline_of(world, tmp_path_factory.mktemp("pipeline"))


def change(shop: Shop) -> None:
    shop.put("orders", id=77, customer_id=2, status="paid", total=money("7.70"), placed_at=None)
    shop.remove("orders", 1)
    shop.put("customers", **{**shop.rows["public.customers"][2,], "tier": "fresh"})
    shop.rekey("addresses", (1,), id=100)
    shop.transaction()
    shop.truncate("customer_tags")
    shop.transaction()


class TestBeforeTheCycle:
    def test_a_statement_sees_bronzes_last_commit(self, world: World, pipeline: Pipeline) -> None:
        sql = FreshSql(world.spark, pipeline)
        with reading(world.spark):
            rows = sql.query(
                "SELECT orders.id, c.tier FROM silver.orders JOIN silver.customers AS c "
                "ON orders.customer_id = c.id WHERE silver.orders.id IN (1, 77)"
            ).collect()
            assert [tuple(row) for row in rows] == [(77, "fresh")]
            assert int(sql.cut.commit_lsn) == world.shop.lsn
            counts = sql.query(
                "SELECT (SELECT count(*) FROM silver.customer_tags) AS tags, "
                "(SELECT max(commit_lsn) FROM bronze.changes) AS lsn, "
                "(SELECT count(*) FROM silver.addresses WHERE id IN (1, 100)) AS moved"
            ).collect()
        assert tuple(counts[0]) == (0, world.shop.lsn - 10, 1)  # the last transaction changed nothing
        sql.close()
        assert world.control.latest_cut("silver").commit_lsn < world.shop.lsn  # type: ignore[union-attr]

    def test_a_document_is_assembled_from_fresh_rows(self, world: World, pipeline: Pipeline) -> None:
        fresh = FreshTables(world.spark, world.lake, pipeline.silver, world.control)
        before = json.loads(world.gold.preview("customer", "2"))
        ahead = json.loads(world.gold.preview("customer", "2", fresh=fresh))
        fresh.close()
        assert before["tier"] != "fresh"
        assert ahead["tier"] == "fresh"
        assert [order["id"] for order in ahead["orders"]] == [6, 11, 77]
        assert (before["tags"] != [], ahead["tags"]) == (True, [])

    def test_documents_tables_are_refused(self, world: World, pipeline: Pipeline) -> None:
        sql = FreshSql(world.spark, pipeline)
        sql.documents = ["customer"]
        with pytest.raises(DefiniteError, match="cannot be read at the log's head"):
            sql.query("SELECT 'silver.orders' FROM gold.customer")
        with pytest.raises(DefiniteError, match=r"the table silver\.order does not exist"):
            sql.query("SELECT 1 FROM silver.order")
        sql.close()


def test_the_head_is_now(pipeline: Pipeline) -> None:
    with pytest.raises(ConfigurationError, match="--as-of an earlier state"):
        run_sql(pipeline, SqlOptions("SELECT 1", as_of="0/1", fresh=True), Output())


def test_after_the_cycle_the_same_is_seen(world: World, pipeline: Pipeline, tmp_path: Path) -> None:
    """Last in the file, because the test folds."""
    fresh = FreshTables(world.spark, world.lake, pipeline.silver, world.control)
    ahead = world.gold.preview("customer", "2", fresh=fresh)
    world.shop.fold()
    assert world.gold.preview("customer", "2") == ahead
    assert world.gold.preview("customer", "2", fresh=fresh) == ahead
    fresh.close()
    request = SqlOptions("SELECT count(*) AS n FROM silver.orders", to=str(tmp_path / "n.jsonl"), fresh=True)
    run_sql(pipeline, request, Output())
    assert json.loads((tmp_path / "n.jsonl").read_text()) == {"n": len(world.shop.rows["public.orders"])}
