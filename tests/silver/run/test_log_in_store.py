"""Silver's tables in a store: few requests per cycle, and the cycle sees every change. Needs no Spark."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import obstore
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from deltasmelt.bronze.comments import Comments
from deltasmelt.bronze.errors import SmeltError
from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.leases import held, leased, writing_of
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.silver.run import table_log
from deltasmelt.silver.run.step_runner import Descriptions
from deltasmelt.silver.run.stored import SILVER_APP
from deltasmelt.silver.run.table_log import SilverLog
from deltasmelt.silver.schema.catalog import silver_table
from deltasmelt.silver.schema.ddl import FEED
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, relation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.object_store import ObjectStore

pytestmark = pytest.mark.process

SCHEMA = pa.schema({"id": pa.int64()})


class Shop:
    """A lake with silver tables written without Spark, and a cycle's reads of their logs."""

    def __init__(self, store: ObjectStore, place: str) -> None:
        self.store, self.lake = store, Lake(place)
        self.log = SilverLog(self.lake)
        for name in ("orders", "customers"):
            self.write(name, 1)
            self.log.read(name)

    def write(self, name: str, mark: int, *, schema: pa.Schema = SCHEMA, **more: Any) -> None:
        write_deltalake(
            self.lake.uri("silver", name),
            pa.Table.from_pylist([{"id": mark}], schema=schema),
            mode="append",
            configuration={FEED: "true"},  # of a table that is new
            commit_properties=CommitProperties(app_transactions=[Transaction(SILVER_APP, mark)]),
            storage_options=self.store.options(),
            **more,
        )

    def requests(self) -> int:
        """Return the number of requests since the last call, without the test's own writes."""
        count_before = len(self.store.requests())
        self.store.forget()
        return count_before

    def mark(self, name: str) -> int | None:
        stored = self.log.read(name)
        return None if stored is None else stored.mark


@pytest.fixture
def shop(store: ObjectStore, place: str) -> Shop:
    return Shop(store, place)


def test_cycle_polls_table_once_and_after_own_commits(shop: Shop) -> None:
    shop.log.begin(alone=False)
    shop.requests()
    for _ in range(3):
        assert [shop.mark("orders"), shop.mark("customers"), shop.log.size("orders")[0]] == [1, 1, 1]
    assert shop.requests() == 2

    shop.log.expect("orders")
    shop.write("orders", 2)
    shop.requests()
    state = shop.log.written("orders", Lsn(2))
    assert (state.version, state.mark, state.files) == (1, 2, 2)
    assert shop.log.counts("orders", 1)["inserts"] == 0
    assert shop.log.lacks_rows("orders") is None
    assert (shop.mark("orders"), shop.log.size("orders")[0]) == (2, 2)
    assert shop.requests() == 1

    shop.log.begin(alone=True)
    assert [shop.mark("orders"), shop.mark("customers")] == [2, 1]
    assert shop.requests() == 0, "nobody else had the lease: what was seen last stands"


def test_foreign_commits_are_seen_after_foreign_lease(shop: Shop) -> None:
    shop.log.begin(alone=True)
    assert shop.mark("orders") == 1
    shop.write("orders", 2)
    shop.write("orders", 3)
    shop.log.begin(alone=False)
    assert shop.mark("orders") == 3
    assert shop.log.size("orders")[0] == 3


def test_a_table_that_was_altered_is_read_anew(shop: Shop) -> None:
    shop.log.begin(alone=False)
    assert shop.mark("orders") == 1
    shop.log.expect("orders")
    shop.write("orders", 2, schema=SCHEMA.append(pa.field("note", pa.string())), schema_mode="merge")
    state = shop.log.written("orders", Lsn(2))
    assert (state.mark, [field.name for field in state.fields]) == (2, ["id", "note"])
    assert shop.log.share("orders", "id", "2", "2") == 0.5


def test_a_table_that_fell_out_is_opened_anew(shop: Shop) -> None:
    shop.log.begin(alone=True)
    table = DeltaTable(shop.lake.uri("silver", "orders"), storage_options=shop.store.options())
    shop.write("orders", 2)
    table.update_incremental()
    shop.log.forget(["orders"])
    assert shop.mark("orders") == 2


def test_rolled_back_table_is_noticed_before_writing(shop: Shop) -> None:
    uri = shop.lake.uri("silver", "orders")
    for mark in (2, 3):
        shop.write("orders", mark)
    shop.log.begin(alone=False)
    assert [shop.mark("orders"), shop.mark("customers")] == [3, 1]
    shop.requests()
    shop.log.confirm("orders")
    shop.log.confirm("new")
    assert shop.requests() == 1

    for version in (1, 2):
        obstore.delete(*objects._object(uri, f"_delta_log/{version:020}.json"))
    shop.log.begin(alone=True)
    assert shop.mark("orders") == 3, "what was seen last stands"
    with pytest.raises(SmeltError, match=r"version 2 of silver\.orders is missing") as error:
        shop.log.confirm("orders")
    assert error.value.code == "table-put-back"
    assert shop.mark("orders") == 1

    shop.store.forget()
    for name in ("orders", "customers"):
        obstore.delete(*objects._object(shop.lake.uri("silver", name), f"_delta_log/{0:020}.json"))
        with pytest.raises(SmeltError, match="the table was rolled back or removed"):
            shop.log.confirm(name)
        assert shop.log.read(name) is None


def test_foreign_commit_is_seen_before_critical_step(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.log.begin(alone=True)
    assert shop.mark("orders") == 1
    shop.write("orders", 2)
    shop.log.confirm("orders")
    assert shop.mark("orders") == 1
    shop.log.confirm("orders", reread=True)
    assert shop.mark("orders") == 2
    shop.write("orders", 3)
    monkeypatch.setattr(table_log, "LISTED_AFTER", 0)
    shop.log.confirm("orders")
    assert shop.mark("orders") == 3


class Describing:
    """A session that only sets a table's comment, with a commit like another engine's."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop

    def sql(self, statement: str) -> SimpleNamespace:
        comment = statement.rpartition(" IS '")[2].rstrip("'")
        uri = self.shop.lake.uri("silver", "orders")
        table = DeltaTable(uri, storage_options=self.shop.store.options())
        table.alter.set_table_description(comment)
        return SimpleNamespace(collect=list)


def test_comment_is_single_commit_with_known_next_version(shop: Shop) -> None:
    shape = replace(relation("orders", [("id", INT)], ["id"], relation_id=7), comments=Comments(7, "all"))
    orders, session = silver_table(shape, SilverSettings()), cast("SparkSession", Describing(shop))
    descriptions = Descriptions(shop.lake, shop.log)
    shop.log.begin(alone=False)
    for alone in (False, True, True):
        shop.log.begin(alone=alone)
        stored = shop.log.read("orders")
        assert stored is not None
        if descriptions.take_over(session, orders, stored):
            stored = shop.log.written("orders")
        assert (stored.version, stored.description) == (1, "all")
    newest = DeltaTable(shop.lake.uri("silver", "orders"), storage_options=shop.store.options())
    assert newest.version() == 1


def test_lease_is_continuous_only_without_holder_between(shop: Shop) -> None:
    def take() -> Any:
        root = shop.lake.root
        with leased(root, writing_of("silver"), command="test", wait=True) as lease:
            assert held(shop.lake, "silver") is lease
            return lease

    first, second, third = take(), take(), take()
    assert held(shop.lake, "silver") is None
    assert [second.follows(first), third.follows(second)] == [True, True]
    assert [first.follows(None), third.follows(first), second.follows(second)] == [False, False, False]
