"""Gold follows silver: after every change, incremental = full rebuild = documents assembled row by row in Python.

All tests share one lake and one Spark session; each changes the shop as its name says, on whatever state it finds.
"""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from bronze.control_tables import ControlTables
from bronze.lake import Lake
from gold.build import child_session
from gold.compile import compile_tree
from gold.cycle import Gold
from gold.tree import resolve
from tests.gold.reference import Reference
from tests.gold.shop import SHAPES, Shop, catalog, fill, moment, money
from tests.gold.shop_documents import COUNTRY, CUSTOMER, PARCEL_LINE, SNIPPETS, document

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from bronze.control import Cut, Run

pytestmark = pytest.mark.spark

DOCUMENTS = [document(text) for text in (CUSTOMER, PARCEL_LINE, COUNTRY)]
KEYS = {name: key for name, (_, key) in SHAPES.items()}


def plain(value: Any) -> Any:
    """Spark's values as the reference has them."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, Decimal):
        return value.normalize()
    return value


class World:
    """The shop, its lake, and gold."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.lake = Lake(path=path)
        self.spark = child_session(spark)
        self.control = ControlTables(self.lake)
        self.shop = Shop(self.lake, self.control)
        fill(self.shop)
        self.gold = self.new_gold()

    def new_gold(self) -> Gold:
        return Gold(self.spark, self.lake, DOCUMENTS, catalog, self.control)

    def table(self, name: str) -> dict[tuple[Any, ...], dict[str, Any]]:
        """Rows of a gold table by key."""
        rows = [row.asDict(recursive=True) for row in self.spark.sql(f"SELECT * FROM {self.lake.sql('gold', name)}").collect()]
        key = {"customer": lambda row: (row["id"],), "parcel_line": lambda row: (row["order_id"], row["number"]),
               "country": lambda row: (row["_key"]["id"],)}[name]  # fmt: skip
        found = {key(row): row for row in rows}
        assert len(found) == len(rows), "a document stands twice"
        return found

    def runs(self) -> dict[str, Run]:
        """The newest run of each document."""
        found: dict[str, Run] = {}
        for run in self.control.runs("gold"):
            found.setdefault(run.name, run)
        return found

    def check(self, cut: Cut) -> None:
        """Every gold table against the reference and against the full query at the same cut."""
        for doc in DOCUMENTS:
            reference = Reference(doc.definition, self.shop.rows, KEYS, SNIPPETS)
            expected = plain(reference.documents())
            rows = self.table(doc.name)
            own = {"_commit_lsn", "_content_hash", "_key"}
            actual = {key: {name: v for name, v in row.items() if name not in own} for key, row in rows.items()}
            assert plain(actual) == expected, doc.name
            tree, _ = resolve(doc, catalog())
            assert tree is not None
            sql = compile_tree(tree, lambda name, cut=cut: f"{self.lake.sql('silver', name.silver_name)} VERSION AS OF "  # type: ignore[misc]
                               f"{cut.tables[name.silver_name]}").sql  # fmt: skip
            full = self.spark.sql(sql)
            key_columns = {"customer": ["id"], "parcel_line": ["order_id", "number"], "country": ["_key"]}[doc.name]
            written = self.spark.sql(f"SELECT * FROM {self.lake.sql('gold', doc.name)}")
            names = [name for name in full.columns if name != "_several"]
            assert written.columns == [*names, "_commit_lsn", "_content_hash"]
            left, right = full.select(names), written.select(names)
            assert left.schema.simpleString() == right.schema.simpleString()
            assert left.exceptAll(right).count() == 0, key_columns

    def step(self, change: Callable[[Shop], Any]) -> dict[str, Run]:
        """Change the shop, commit, run gold, check; returns the runs."""
        change(self.shop)
        cut = self.shop.commit()
        gold_cut = self.gold.cycle()
        assert gold_cut is not None
        assert gold_cut.commit_lsn == cut.commit_lsn
        assert self.control.open_errors() == []
        self.check(cut)
        return self.runs()


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(spark, str(tmp_path_factory.mktemp("gold") / "lake"))
    runs = world.step(lambda shop: None)
    assert {run.mode for run in runs.values()} == {"full"}
    assert {run.reason for run in runs.values()} == {"first build"}
    return world


def incremental(runs: dict[str, Run], **affected: int) -> None:
    """Which documents were built by their changes, and how many of each; the others were not built at all."""
    built = {name: run.changes for name, run in runs.items() if run.mode != "none"}
    assert built == affected, {name: (run.mode, run.reason, run.changes) for name, run in runs.items()}
    assert all(runs[name].mode == "incremental" for name in affected)


def test_a_child_is_deleted(world: World) -> None:
    incremental(world.step(lambda shop: shop.remove("order_items", 2, 1)), customer=1, parcel_line=1)


def test_a_child_moves_to_another_parent_and_both_are_rebuilt(world: World) -> None:
    incremental(world.step(lambda shop: shop.put("orders", id=3, customer_id=5)), customer=2, country=2, parcel_line=1)


CASES: dict[str, Callable[[Shop], Any]] = {}
