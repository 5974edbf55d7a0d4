"""Gold follows silver: after every change, its tables equal documents assembled in plain Python.

All tests share one lake and one Spark session; each changes the shop as its name says, on whatever state it
finds. Silver is real: bronze's rows, silver's own tables and cycles. The first and the last test build
everything at once and compare that as well; in between a document is built as a whole only where the test
says so (`World.cycle`).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from bronze.errors import SmeltError
from bronze.lake.control_tables import ControlTables
from bronze.lsn import Lsn
from gold.builder.spark_settings import GOLD_APP
from gold.builder.weights import weights_query
from gold.tree.resolve import resolve
from pipelines.commands.rebuild import rebuild_silver
from pipelines.runtime.maintenance import Maintenance
from pipelines.terminal.output import Output
from tests.fix_spark import rows_of
from tests.gold.shop import Shop, moment, money
from tests.gold.shop_documents import COUNTRY, CUSTOMER, PARCEL_LINE, document
from tests.gold.world import OWN, World, pipeline_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from bronze.lake.control import Cut, Run

pytestmark = pytest.mark.spark

TEXTS = {"customer": CUSTOMER, "parcel_line": PARCEL_LINE, "country": COUNTRY}


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(spark, str(tmp_path_factory.mktemp("gold") / "lake"), TEXTS.values())
    world.first()
    yield world
    world.shop.silver.close()


def built(runs: dict[str, Run]) -> dict[str, int]:
    """Which documents were built by their changes, and how many of each; the others were not built at all."""
    found = {name: run for name, run in runs.items() if run.mode != "none"}
    assert {run.mode for run in found.values()} <= {"incremental"}
    return {name: run.changes for name, run in found.items()}


def test_the_first_cycle_builds_everything_and_says_why(world: World) -> None:
    runs = world.runs()
    assert {(run.mode, run.reason) for run in runs.values()} == {("full", "first build")}
    assert runs["customer"].details["roots_where_one_matched_several"] > 0  # type: ignore[operator]
    table = DeltaTable(world.lake.uri("gold", "customer"))
    assert table.transaction_version(GOLD_APP) == world.shop.lsn
    assert table.metadata().configuration["delta.enableChangeDataFeed"] == "true"
    assert [field.name for field in table.schema().fields][-2:] == ["_commit_lsn", "_content_hash"]


def test_a_cycle_without_a_new_cut_does_nothing(world: World) -> None:
    assert world.gold.cycle() is None
    assert world.start_gold(world.documents).cycle() is None


def test_a_child_deleted_and_a_child_moved_rebuild_the_old_and_the_new_parent(world: World) -> None:
    def change(shop: Shop) -> None:
        shop.remove("order_items", 7, 1)  # of customer 3
        shop.remove("order_items", 2, 1)  # also of customer 3, in an order that the document leaves out
        shop.put("orders", id=3, customer_id=5)  # from customer 4

    assert built(world.step(change)) == {"customer": 3, "parcel_line": 3, "country": 2}


def test_a_change_that_no_document_reads_rebuilds_nothing(world: World) -> None:
    before = world.table("customer")
    runs = world.step(lambda shop: shop.put("customers", id=1, notes="changed"))
    assert built(runs) == {}
    assert runs["customer"].details["changed_rows"] == {"public.customers": 2}
    assert world.table("customer") == before


def test_a_document_that_is_rebuilt_to_the_same_content_is_not_written_again(world: World) -> None:
    # Beyond the limit of three orders, an order is read and not shown.
    def fill_up(shop: Shop) -> None:
        for number in range(200, 204):
            values = {"status": "placed", "total": money("1.00"), "placed_at": moment(100 + number)}
            shop.put("orders", id=number, customer_id=1, **values)

    world.step(fill_up)
    before = world.table("customer")[1,]
    runs = world.step(
        lambda shop: shop.put("order_items", order_id=200, line=1, product_id=1, sku="new", qty=1)
    )
    assert built(runs)["customer"] == 1
    assert (runs["customer"].updates, runs["customer"].inserts, runs["customer"].deletes) == (0, 0, 0)
    assert world.table("customer")[1,] == before
    assert before["_commit_lsn"] < world.shop.lsn


def test_middle_rows_move_with_their_leaves_links_change_and_two_rows_swap_their_keys(world: World) -> None:
    def move_middles(shop: Shop) -> None:
        shop.put("orders", id=6, customer_id=4)
        shop.put("order_items", order_id=6, line=1, product_id=2, sku="moved", qty=9)
        shop.put("logistics.parcels", id=6, order_id=6, line=1, weight=7.5, carrier="new")
        shop.rekey("orders", (8,), id=800)
        shop.rekey("order_items", (8, 1), order_id=800)

    def change_links(shop: Shop) -> None:
        shop.remove("customer_tags", 3, 1)
        shop.put("customer_tags", customer_id=4, tag_id=1, added_at=moment(50), active=True)
        shop.put("customer_tags", customer_id=2, tag_id=1, active=False)
        shop.put("tags", id=2, name="old")  # to be filtered out
        shop.put("tags", id=3, name="young")

    def swap(shop: Shop) -> None:
        one, other = shop.remove("addresses", 1), shop.remove("addresses", 2)
        shop.put("addresses", **{**one, "id": 2})
        shop.put("addresses", **{**other, "id": 1})

    def change(shop: Shop) -> None:
        move_middles(shop)
        change_links(shop)
        swap(shop)

    world.step(change)


def test_roots_rekeyed_inserted_deleted_and_entering_and_leaving_the_filter(world: World) -> None:
    def change(shop: Shop) -> None:
        shop.rekey("customers", (6,), id=60)
        shop.put("customers", id=61, email="new@example.com", country_id=2, billing_id=3)
        shop.remove("customers", 5)
        shop.put("customers", id=7, deleted_at=None)
        shop.put("customers", id=1, deleted_at=moment(99))
        shop.put("countries", id=2, code="IT")
        shop.put("countries", id=3, code="FR")

    runs = world.step(change)
    assert (runs["customer"].inserts, runs["customer"].deletes) == (3, 3)
    assert (runs["country"].inserts, runs["country"].deletes) == (1, 1)


def test_two_children_of_one_root_change_and_it_is_built_once(world: World) -> None:
    def change(shop: Shop) -> None:
        for number in (1, 2, 3, 4):
            shop.put(
                "customers", id=number, country_id=1, email=f"again{number}@example.com", deleted_at=None
            )
            shop.put("order_items", order_id=number, line=1, sku="again", qty=number, product_id=1)

    def rename(shop: Shop) -> None:
        for number in (1, 2, 3, 4):
            shop.put("customers", id=number, email="same")

    world.step(change)
    runs = world.step(rename)
    assert built(runs)["country"] == 1


def test_self_joins_two_places_composite_keys_and_values_that_become_null_and_come_back(world: World) -> None:
    def change_places(shop: Shop) -> None:
        shop.put("customers", id=2, email="referrer@example.com", referred_by=3)
        shop.put("customers", id=3, billing_id=4, shipping_id=4)
        shop.put("addresses", id=4, city="Both", country_id=3)
        shop.put("addresses", id=5, city="Gone")

    def change_values(shop: Shop) -> None:
        shop.put("logistics.parcels", id=1, order_id=None)
        shop.put("logistics.parcels", id=2, line=2)
        shop.put("logistics.parcels", id=4, weight=0.30000000000000004)
        shop.put("orders", id=15, customer_id=2)
        shop.put("orders", id=5, placed_at=moment(3))
        shop.put("orders", id=4, placed_at=None, status=None)
        shop.put("customers", id=3, country_id=None, tier=None)

    def change(shop: Shop) -> None:
        change_places(shop)
        change_values(shop)

    world.step(change)


def test_several_cuts_at_once_count_by_their_first_and_last_image(world: World) -> None:
    shop = world.shop
    shop.put("orders", id=9, customer_id=4)
    shop.put("customers", id=70, email="brief@example.com")
    shop.commit()
    shop.put("orders", id=9, customer_id=2)
    shop.put("tags", id=1, name="changed")
    shop.commit()
    shop.remove("customers", 70)
    runs = world.step(lambda shop: shop.put("tags", id=1, name="vip"))  # as it was
    assert "public.tags" in runs["customer"].details["changed_rows"]  # type: ignore[operator]


def test_truncated_tables_leave_empty_lists_and_null_sums(world: World) -> None:
    def change(shop: Shop) -> None:
        shop.truncate("customer_tags")
        shop.truncate("logistics.parcels")

    world.step(change)
    row = world.table("customer")[3,]
    assert (row["tags"], row["tag_count"]) == ([], 0)
    assert {row["weight"] for row in world.table("parcel_line").values()} == {None}


def test_tables_that_are_joined_purged_and_taken_again_between_two_cycles_are_followed_by_changes_alone(
    world: World,
) -> None:
    """Files are written anew without a change; a copy writes all rows again, of which few are others."""
    shop = world.shop
    shop.put("addresses", id=1, city="before the upkeep")
    shop.remove("order_items", 4, 1)
    shop.commit()
    upkeep = Maintenance(
        world.spark, world.lake, world.control, retention=86400, documents=True, layers=("silver",)
    )
    done = {one.name: one for one in upkeep.all_tables()}
    assert done["order_items"].before.deleted_rows > done["order_items"].after.deleted_rows == 0
    assert done["addresses"].before.count > done["addresses"].after.count == 1

    def change(shop: Shop) -> None:
        shop.put("orders", id=10, total=money("10.10"))  # bronze does not get these two
        shop.remove("orders", 14)
        shop.lose("orders")
        shop.resnapshot("orders")
        shop.resnapshot("products")
        shop.put("orders", id=11, total=money("11.11"))

    runs = world.step(change)
    assert runs["customer"].details["changed_rows"]["public.orders"] > 20  # type: ignore[index]
    assert 0 < built(runs)["customer"] < len(world.table("customer"))


def test_a_table_emptied_and_filled_in_one_transaction(world: World) -> None:
    def change(shop: Shop) -> None:
        kept = [dict(row) for row in shop.all("addresses")][1:]
        shop.put("addresses", id=9, city="lost", country_id=1)
        shop.truncate("addresses")
        for row in kept:
            shop.put("addresses", **row)
        shop.put("addresses", id=5, city="filled")

    assert built(world.step(change)).keys() == {"customer"}


def test_preview_is_the_document_as_json_with_every_digit(world: World) -> None:
    world.step(lambda shop: shop.put("customers", id=2, email=" A@B ", balance=money("0.10"), deleted_at=None,
                                     created_at=moment(1), billing_id=None, country_id=None))  # fmt: skip
    text = world.gold.preview("customer", "2")
    shown = json.loads(text)
    assert (shown["id"], shown["email"], shown["country"]) == (2, "a@b", None)
    assert '"balance" : 0.10' in text
    assert shown["account"]["created_at"] == "2026-01-02T12:00:00.123456Z"
    order, line = next(iter(world.shop.rows["public.order_items"]))
    assert json.loads(world.gold.preview("parcel_line", f"{order},{line}"))["order_id"] == order


@pytest.mark.parametrize(
    ("name", "key", "said"),
    [
        ("custmer", "1", "unknown document 'custmer'; did you mean 'customer'?"),
        ("customer", "999", "there is no customer with the key 999"),
        ("customer", "x", "'x' is not a key of public.customers (id BIGINT)"),
        ("parcel_line", "1", "the key has 2 column(s) (order_id BIGINT, line SMALLINT), 1 given"),
    ],
)
def test_preview_says_what_is_wrong_with_a_key(world: World, name: str, key: str, said: str) -> None:
    with pytest.raises(SmeltError) as caught:
        world.gold.preview(name, key)
    assert said in str(caught.value)


def test_documents_weigh_about_what_they_are(world: World) -> None:
    for doc in world.documents:
        tree, _ = resolve(doc, world.catalog())
        assert tree is not None
        sizes = dict.fromkeys(tree.tables(), (100, 20_000))
        query = weights_query(tree, lambda name: world.lake.sql("silver", name.silver_name), sizes)
        weighed = {
            tuple(row[f"k{i}"] for i in range(len(tree.key))): row["bytes"]
            for row in rows_of(world.spark, query)
        }
        held = {
            key: len(json.dumps({name: value for name, value in row.items() if name not in OWN}, default=str))
            for key, row in world.table(doc.name).items()
        }
        assert weighed.keys() == held.keys()
        for key, number in held.items():
            assert number / 3 <= weighed[key] <= 4 * number, (doc.name, key, number, weighed[key])


def test_a_document_that_fails_stops_alone_and_heals(world: World) -> None:
    broken = document(
        PARCEL_LINE.replace("column: line", "sql: cast(sku as int)").replace("parcel_line", "broken")
    )
    unknown = document(PARCEL_LINE.replace("column: line", "column: lin").replace("parcel_line", "unknown"))
    gold = world.start_gold([*world.documents, broken, unknown])
    world.shop.put("order_items", order_id=1, line=1, sku="not a number")
    world.shop.commit()
    cut = gold.cycle()
    assert cut is not None
    assert set(cut.tables) == {doc.name for doc in world.documents}
    errors = {error.name: error for error in world.control.open_errors()}
    assert {name: error.code for name, error in errors.items()} == {
        "broken": "document-failed", "unknown": "document-invalid",
    }  # fmt: skip
    assert (
        "document.yml:4: public.order_items has no column 'lin'; did you mean 'line'?"
        in errors["unknown"].message
    )
    world.check()
    world.control.close_errors("document", "unknown")
    for identity in list(world.shop.rows["public.order_items"]):
        order, line = identity
        world.shop.put("order_items", order_id=order, line=line, sku="1")
    world.shop.commit()
    gold = world.start_gold([*world.documents, broken])
    healed = gold.cycle()
    assert healed is not None
    assert "broken" in healed.tables
    assert world.control.open_errors() == []
    timed = PARCEL_LINE.replace("column: line", "sql: timestamp_ntz'2024-02-29 10:00:00'")
    gold = world.start_gold([*world.documents, document(timed.replace("parcel_line", "broken"))])
    gold.cycle()
    assert world.control.open_errors() == []  # the first timestamp of a table that is there
    rows = world.spark.sql(
        f"SELECT DISTINCT string(number) FROM {world.lake.sql('gold', 'broken')}"
    ).collect()
    assert [tuple(row) for row in rows] == [("2024-02-29 10:00:00",)]


def test_a_changed_definition_rebuilds_that_document_alone_at_the_same_cut(world: World) -> None:
    before, version = world.table("parcel_line"), world.runs()["parcel_line"].delta_version
    changed = document(PARCEL_LINE.replace("  - order_id\n", "  - order_id\n  - sku\n"))
    world.documents = [changed if doc.name == "parcel_line" else doc for doc in world.documents]
    world.gold = world.start_gold(world.documents)
    runs_before = world.runs()
    assert world.gold.cycle() is not None
    runs = world.runs()
    assert (runs["parcel_line"].mode, runs["parcel_line"].reason) == ("full", "the definition changed")
    assert runs["customer"].mode == "none" or runs["customer"].run_id == runs_before["customer"].run_id
    world.check()
    assert before.keys() == world.table("parcel_line").keys()
    old = world.spark.sql(f"SELECT * FROM {world.lake.sql('gold', 'parcel_line')} VERSION AS OF {version}")
    assert {(row.order_id, row.number) for row in old.collect()} == before.keys(), "the old one is readable"
    # A definition that gives the same content keeps every LSN.
    written = world.table("parcel_line")
    same = document(
        PARCEL_LINE.replace("  - order_id\n", "  - order_id\n  - {sku: {column: sku, default: none}}\n")
    )
    world.documents = [same if doc.name == "parcel_line" else doc for doc in world.documents]
    world.gold = world.start_gold(world.documents)
    world.gold.cycle()
    assert world.runs()["parcel_line"].reason == "the definition changed"
    assert all(row["sku"] is not None for row in world.shop.all("order_items"))
    assert world.table("parcel_line") == written


def test_a_feed_that_cannot_be_read_leads_to_a_full_build_that_keeps_what_did_not_change(
    world: World,
) -> None:
    before = world.table("customer")
    world.shop.put("orders", id=1, customer_id=2, status="paid", total=money("123.45"))
    first = world.shop.commit().tables["orders"]
    # As after a vacuum beyond the feed's retention: files of the change are gone, the state is not.
    table = Path(world.lake.uri("silver", "orders"))
    log = table / "_delta_log" / f"{first:020}.json"
    gone = [json.loads(line)["cdc"]["path"] for line in log.read_text().splitlines() if '"cdc"' in line]
    assert gone
    for path in gone:
        (table / path).unlink()
    world.step(lambda _: None, full=dict.fromkeys(world.names, "changes of silver.orders"))
    after = world.table("customer")
    unchanged = [
        key for key in before if before[key]["_content_hash"] == after.get(key, {}).get("_content_hash")
    ]
    assert unchanged
    assert all(before[key] == after[key] for key in unchanged)


def test_a_cut_that_is_no_longer_recorded_leads_to_a_full_build(world: World) -> None:
    class Forgetful(ControlTables):
        """As after a clean-up of old cuts."""

        def latest_cut(self, layer: Any, *, at: Any = None, known_by: Any = None) -> Cut | None:
            forgotten = layer == "silver" and isinstance(at, Lsn)
            return None if forgotten else super().latest_cut(layer, at=at, known_by=known_by)

    world.shop.put("customers", id=3, email="third@example.com")
    cut = world.shop.commit()
    world.gold = world.start_gold(world.documents, Forgetful(world.lake))
    world.cycle(cut, full=dict.fromkeys(world.names, "is no longer recorded"))
    world.check()
    world.gold = world.start_gold(world.documents)


def test_a_table_of_silver_that_was_rebuilt_at_the_same_lsn_reaches_gold(
    world: World, tmp_path: Path
) -> None:
    """Gold stood at that very cut, of which silver then recorded another version."""
    damage = f"UPDATE {world.lake.sql('silver', 'addresses')} SET city = 'damaged' WHERE id > 2"
    world.spark.sql(damage)
    world.shop.put("customers", id=2, email="built beside damage")
    cut = world.shop.commit()
    world.cycle(cut)
    assert "damaged" in str(world.table("customer"))
    addresses = [table for table in world.catalog() if table.name == "addresses"]
    assert rebuild_silver(world.spark, pipeline_of(world, tmp_path), addresses, Output()) == []
    again = world.control.latest_cut("silver")
    assert again is not None
    assert (again.commit_lsn, again.tables == cut.tables) == (cut.commit_lsn, False)
    world.gold = world.start_gold(world.documents)
    world.cycle(again)
    assert world.runs()["customer"].mode == "incremental"
    world.check()
    assert world.gold.cycle() is None


def test_a_table_of_silver_that_was_put_back_from_a_backup_is_not_compared_by_its_versions(
    world: World, tmp_path: Path
) -> None:
    """Its new log reaches the version of gold's cut, with other rows."""
    folder = Path(world.lake.uri("silver", "addresses"))
    world.shop.commit()
    shutil.copytree(folder, tmp_path / "backup")
    for city in ("one", "two"):
        world.shop.put("addresses", **{**next(iter(world.shop.all("addresses"))), "city": city})
        cut = world.shop.commit()
    world.cycle(cut)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    for city in ("three", "four"):
        world.shop.put("addresses", **{**next(iter(world.shop.all("addresses"))), "city": city})
        again = world.shop.commit()
    assert again.tables["addresses"] == cut.tables["addresses"]
    # A process that has read the removed files goes on to look for them, until it is started again.
    jvm: Any = world.spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    world.gold = world.start_gold(world.documents)
    readers = [doc.name for doc in world.documents if "addresses" in str(doc)]
    world.cycle(again, full=dict.fromkeys(readers, "silver.addresses was recreated since the last build"))
    world.check()
    assert "four" in str(world.table("customer"))


def test_a_full_rebuild_finds_nothing_to_change(world: World) -> None:
    before = {doc.name: world.table(doc.name) for doc in world.documents}
    world.gold.cycle(rebuild=world.names)
    runs = world.runs()
    for name in world.names:
        run = runs[name]
        assert (run.mode, run.reason, run.changes) == ("full", "asked for", 0), name
        assert world.table(name) == before[name]
