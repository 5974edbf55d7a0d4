"""Gold follows silver: after every change, its tables equal documents assembled in plain Python.

All tests share one lake and one Spark session. One cycle of gold carries most changes at once, each on
separate rows (`tests.gold.changes_at_once`). All other tests change the shop as their names describe, from
the shop's present state. Silver is real: bronze's rows, silver's own tables and cycles. Gold builds a
document in full only if the test expects a full build (`World.cycle`).
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from deltasmelt.bronze.errors import SmeltError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.gold.builder.spark_settings import GOLD_APP
from deltasmelt.gold.builder.weights import weights_query
from deltasmelt.gold.tree.resolve import resolve
from deltasmelt.pipelines.commands.rebuild import rebuild_silver
from deltasmelt.pipelines.terminal.output import Output
from tests.fix_spark import rows_of, signed
from tests.gold.changes_at_once import BY_PLACE, SCENARIOS, play
from tests.gold.shop import moment, money
from tests.gold.shop_documents import COUNTRY, CUSTOMER, HOME, PARCEL_LINE, document
from tests.gold.world import OWN, Model, World, contents, pipeline_of, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Cut, Run
    from tests.gold.changes_at_once import Joint, Scenario
    from tests.gold.shop import Shop

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]

TEXTS = [CUSTOMER, PARCEL_LINE, COUNTRY]


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    # Silver rewrites its small tables, as in a user's lake; `test_random_schemas` has deletion vectors.
    world = World(spark, str(tmp_path_factory.mktemp("gold") / "lake"), TEXTS, Model(tiny=True))
    for scenario in SCENARIOS:
        scenario.before(world.shop)
    world.shop.put("customers", id=990, email=" A@B ", balance=money("0.10"), created_at=moment(1))
    world.first()
    yield world
    world.shop.silver.close()


@pytest.fixture(scope="module")
def joint(world: World) -> Joint:
    return play(world)


def built(runs: dict[str, Run]) -> dict[str, int]:
    """Return the documents built by their changes, with their numbers; gold built no others."""
    built_runs = {name: run for name, run in runs.items() if run.mode != "none"}
    assert {run.mode for run in built_runs.values()} <= {"incremental"}
    return {name: run.changes for name, run in built_runs.items()}


def test_the_first_cycle_builds_everything(world: World) -> None:
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


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_documents_follow_every_change(joint: Joint, scenario: Scenario) -> None:
    """All documents are right, and gold wrote exactly the changed documents."""
    for name, after in joint.after.items():
        documents_built = {key: row for key, row in after.items() if scenario.own(key)}
        expected = {key: row for key, row in joint.wanted[name].items() if scenario.own(key)}
        assert contents(documents_built) == plain(expected), name
        untouched = expected.keys() - scenario.reached.get(name, set()) | scenario.same.get(name, set())
        assert {key for key, row in documents_built.items() if row["_commit_lsn"] < joint.lsn} == untouched, (
            name
        )
        assert all(documents_built[key] == joint.before[name][key] for key in untouched), name


def test_each_reached_document_is_built_once(joint: Joint) -> None:
    reached = {name: sum(len(step.reached.get(name, ())) for step in SCENARIOS) for name in joint.runs}
    assert built(joint.runs) == reached == {"customer": 31, "parcel_line": 18, "country": 8}
    counts = {name: (run.inserts, run.updates, run.deletes) for name, run in joint.runs.items()}
    # One customer keeps its content, and a filter excluded one country before and after.
    assert counts == {"customer": (3, 24, 3), "parcel_line": (2, 13, 3), "country": (1, 5, 1)}
    for name, before in joint.before.items():
        after = joint.after[name]
        assert (len(after.keys() - before), len(before.keys() - after)) == counts[name][::2]
        assert contents(after) == plain(joint.wanted[name])
    for name, run in joint.runs.items():
        places: Any = run.details["affected_roots"]
        roots_of_places = {
            ": ".join(filter(None, (place["path"], place["table"]))): place["roots"] for place in places
        }
        assert roots_of_places == BY_PLACE[name], name
    # Three tags, one of them unchanged: an old and a new image of each.
    assert joint.runs["customer"].details["changed_rows"]["public.tags"] == 6  # type: ignore[index]


def test_preview_is_json_with_every_digit(world: World) -> None:
    text = world.gold.preview("customer", "990")
    parsed = json.loads(text)
    assert (parsed["id"], parsed["email"], parsed["country"]) == (990, "a@b", None)
    assert '"balance" : 0.10' in text
    assert parsed["account"]["created_at"] == "2026-01-02T12:00:00.123456Z"
    order, line = next(iter(world.shop.rows["public.order_items"]))
    assert json.loads(world.gold.preview("parcel_line", f"{order},{line}"))["order_id"] == order


@pytest.mark.parametrize(
    ("name", "key", "message"),
    [
        ("custmer", "1", "unknown document 'custmer'; did you mean 'customer'?"),
        ("country", "999", "country has no document with the key 999"),
        ("country", "x", "'x' is not a key of public.countries (id SMALLINT)"),
        (
            "parcel_line",
            "1",
            "the key has 2 column(s) (order_id BIGINT, line SMALLINT), 1 given",
        ),
    ],
)
def test_preview_names_a_wrong_key(world: World, name: str, key: str, message: str) -> None:
    with pytest.raises(SmeltError) as caught:
        world.gold.preview(name, key)
    assert message in str(caught.value)


def test_documents_weigh_about_their_size(world: World) -> None:
    for doc in world.documents[:2]:  # the third has no other kind of field
        tree, _ = resolve(doc, world.catalog())
        assert tree is not None
        sizes = dict.fromkeys(tree.tables(), (100, 20_000))
        query = weights_query(tree, lambda name: world.lake.sql("silver", name.silver_name), sizes)
        weighed = {
            tuple(row[f"k{i}"] for i in range(len(tree.key))): row["bytes"]
            for row in rows_of(world.spark, query)
        }
        stored_sizes = {
            key: len(json.dumps({name: value for name, value in row.items() if name not in OWN}, default=str))
            for key, row in world.table(doc.name).items()
        }
        assert weighed.keys() == stored_sizes.keys()
        for key, number in stored_sizes.items():
            assert number / 3 <= weighed[key] <= 4 * number, (doc.name, key, number, weighed[key])


def test_a_full_rebuild_finds_nothing_to_change(world: World) -> None:
    """The stored documents equal a full build, including every LSN and hash; Spark and other readers agree.

    A table with the cut's mark gets no commit. (`test_random_schemas` rebuilds documents with every field.)
    """
    before, runs_before = {name: world.table(name) for name in world.names}, world.runs()
    rebuilt = ["parcel_line", "country"]
    marked = {name for name in rebuilt if runs_before[name].mode == "incremental"}
    assert marked
    world.gold.cycle(rebuild=rebuilt)
    runs = world.runs()
    for name in rebuilt:
        run = runs[name]
        assert (run.mode, run.reason, run.changes) == ("full", "requested", 0), name
        assert name not in marked or run.delta_version == runs_before[name].delta_version
        assert world.table(name) == before[name]
    # A customer has values of all types.
    assert plain(world.table_by_spark("customer")) == plain(before["customer"])


@pytest.fixture(scope="module")
def small(world: World) -> World:
    """Return a world over the lake with small documents, for tests of cuts, tables and definitions."""
    world.define([PARCEL_LINE, COUNTRY, HOME])
    world.cycle(world.shop.commit(), full={"home": "first build"})
    return world


def test_an_unread_change_rebuilds_nothing(small: World) -> None:
    world = small
    before = {name: world.table(name) for name in world.names}
    runs = world.step(lambda shop: shop.put("customers", id=1, notes="changed"))
    assert built({name: runs[name] for name in world.names}) == {}
    assert runs["home"].details["changed_rows"] == {"public.customers": 2}
    assert {name: world.table(name) for name in world.names} == before


def test_truncated_tables_leave_empty_lists_and_sums(
    small: World,
) -> None:
    """Two tables are emptied, and a third is emptied and filled in one transaction."""
    world, shop = small, small.shop
    parcels = [row for row in shop.all("logistics.parcels") if row["order_id"] is not None]
    lines = {(row["order_id"], row["line"]) for row in parcels}
    assert 0 < len(lines) < len(shop.rows["public.order_items"])

    def change(shop: Shop) -> None:
        shop.truncate("customer_tags")
        shop.truncate("logistics.parcels")
        shop.transaction()
        remaining = [dict(row) for row in shop.all("addresses")][1:]
        shop.put("addresses", id=9, city="lost", country_id=1)
        shop.truncate("addresses")
        for row in remaining:
            shop.put("addresses", **row)
        shop.put("addresses", id=5, city="filled")

    runs = world.step(change)
    built_runs = built({name: runs[name] for name in world.names})
    assert built_runs.keys() == {"home", "parcel_line"}, "no country has addresses, tags or parcels"
    assert built_runs["parcel_line"] == len(lines), "and no line has addresses or tags"
    row = world.table("home")[3,]
    assert (row["tags"], row["tag_count"]) == ([], 0)
    assert {row["weight"] for row in world.table("parcel_line").values()} == {None}


@pytest.mark.torture
def test_joined_purged_and_copied_tables_are_followed(small: World) -> None:
    """Upkeep rewrites files without a change; a copy writes all rows again, with few new values.

    (Upkeep uses these two statements too; `test_random_schemas` runs upkeep with gold behind.)
    """
    world, shop = small, small.shop
    shop.tiny = False  # a purge needs deletion vectors
    shop.put("addresses", id=1, city="before the upkeep")
    shop.remove("order_items", 4, 1)
    shop.commit()
    joined, purged = (world.lake.sql("silver", name) for name in ("addresses", "order_items"))
    (result_row,) = world.spark.sql(f"OPTIMIZE {joined}").collect()
    assert result_row["metrics"]["numFilesRemoved"] > result_row["metrics"]["numFilesAdded"] == 1
    (result_row,) = world.spark.sql(f"REORG TABLE {purged} APPLY (PURGE)").collect()
    assert result_row["metrics"]["deletionVectorStats"]["numDeletionVectorRowsRemoved"] > 0

    def change(shop: Shop) -> None:
        shop.put("orders", id=10, total=money("10.10"))  # bronze does not get these two
        shop.remove("orders", 14)
        shop.lose("orders")
        shop.resnapshot("orders")
        shop.resnapshot("countries")
        shop.put("orders", id=11, total=money("11.11"))

    runs = world.step(change)
    assert runs["parcel_line"].details["changed_rows"]["public.orders"] > len(shop.rows["public.orders"])  # type: ignore[index]
    assert 0 < runs["parcel_line"].changes < len(world.table("parcel_line"))


BROKEN = PARCEL_LINE.replace("parcel_line", "broken")
NUMBERED = document(BROKEN.replace("column: line", "sql: cast(sku as int)"))


def heal(world: World) -> None:
    """Make every SKU a number, so that gold can build the document that needs numbers."""
    for order, line in list(world.shop.rows["public.order_items"]):
        world.shop.put("order_items", order_id=order, line=line, sku="1")
    world.shop.commit()
    healed = world.start_gold([*world.documents, NUMBERED]).cycle()
    assert healed is not None
    assert "broken" in healed.tables
    assert world.control.open_errors() == []


def test_a_document_that_fails_stops_alone_and_heals(small: World) -> None:
    world = small
    unknown = document(PARCEL_LINE.replace("column: line", "column: lin").replace("parcel_line", "unknown"))
    gold = world.start_gold([*world.documents, NUMBERED, unknown])
    world.shop.put("order_items", order_id=1, line=1, sku="not a number")
    world.shop.commit()
    cut = gold.cycle()
    assert cut is not None
    assert set(cut.tables) == set(world.names)
    place = Path(world.lake.uri("gold", "broken"))
    left = {*place.glob("part-*"), *place.glob(".part-*")}
    assert left, "Spark removes nothing of a failed attempt"
    for file in left:
        os.utime(file, (0, 0))
    (place / "part-of-today.parquet").touch()
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
    heal(world)
    assert not any(file.exists() for file in left), "the files of attempts would accumulate"


def test_changed_definitions_rebuild_their_documents_alone(small: World) -> None:
    """One definition has a further field, one a new type; one gives the same content and keeps every LSN."""
    world = small
    last = world.control.latest_cut("gold")
    assert last is not None
    if "broken" not in last.tables:  # where this test runs alone
        heal(world)
    before, version = world.table("parcel_line"), world.runs()["parcel_line"].delta_version
    table = world.table("country")
    timed = BROKEN.replace("column: line", "sql: timestamp_ntz'2024-02-29 10:00:00'")
    longer = PARCEL_LINE.replace("  - order_id\n", "  - order_id\n  - sku\n")
    reworded = COUNTRY.replace("  - name\n", "  - name: {column: name, default: none}\n")
    runs_before = world.runs()
    world.define([longer, reworded, HOME])
    gold = world.start_gold([*world.documents, document(timed)])
    assert gold.cycle() is not None
    assert world.control.open_errors() == []
    runs = world.runs()
    for name in ("parcel_line", "country", "broken"):
        assert (runs[name].mode, runs[name].reason) == ("full", "the definition changed"), name
    assert runs["home"].mode == "none" or runs["home"].run_id == runs_before["home"].run_id
    world.check()
    assert before.keys() == world.table("parcel_line").keys()
    assert {row["sku"] for row in world.table("parcel_line").values()} == {"1"}
    old = world.spark.sql(f"SELECT * FROM {world.lake.sql('gold', 'parcel_line')} VERSION AS OF {version}")
    assert {(row.order_id, row.number) for row in old.collect()} == before.keys(), "the old one is readable"
    # An existing table gets its first timestamp without a zone.
    rows = rows_of(world.spark, f"SELECT DISTINCT string(number) FROM {world.lake.sql('gold', 'broken')}")
    assert [tuple(row) for row in rows] == [("2024-02-29 10:00:00",)]
    assert all(row["name"] is not None for row in world.shop.all("countries"))
    assert world.table("country") == table


@pytest.fixture(scope="module")
def two(small: World) -> World:
    """Return a world over the lake with two documents: later events affect a table of either document."""
    small.define([text for name, text in small.texts.items() if name != "country"])
    return small


class Forgetful(ControlTables):
    """Control tables after a clean-up of old cuts."""

    def latest_cut(self, layer: Any, *, at: Any = None, known_by: Any = None) -> Cut | None:
        forgotten = layer == "silver" and isinstance(at, Lsn)
        return None if forgotten else super().latest_cut(layer, at=at, known_by=known_by)


def test_expired_and_repeated_cuts_are_built(two: World, tmp_path: Path) -> None:
    """A table of silver was damaged, built into gold, and rebuilt at this LSN with another version."""
    world = two
    damage = f"UPDATE {world.lake.sql('silver', 'addresses')} SET city = 'damaged' WHERE id > 2"
    with signed(world.spark):
        world.spark.sql(damage)
    world.shop.put("customers", id=2, email="built beside damage")
    world.shop.put("customers", id=3, email="third@example.com")
    cut = world.shop.commit()
    world.gold = world.start_gold(world.documents, Forgetful(world.lake))
    world.cycle(cut, full=dict.fromkeys(world.names, "is no longer recorded"))
    world.check(["parcel_line"])
    assert "damaged" in str(world.table("home"))
    addresses = [table for table in world.catalog() if table.name == "addresses"]
    assert rebuild_silver(world.spark, pipeline_of(world, tmp_path), addresses, Output()) == []
    newest = world.control.latest_cut("silver")
    assert newest is not None
    assert (newest.commit_lsn, newest.tables == cut.tables) == (cut.commit_lsn, False)
    world.gold = world.start_gold(world.documents)
    world.cycle(newest)
    assert world.runs()["home"].mode == "incremental"
    world.check()
    assert world.gold.cycle() is None


def test_lost_feeds_and_restored_tables_build_fully(two: World, tmp_path: Path) -> None:
    """Unchanged documents stay. The new log of the restored table reaches the version in gold's cut."""
    world, shop = two, two.shop
    log = Path(world.lake.uri("silver", "addresses"), "_delta_log")
    address = next(iter(shop.all("addresses")))
    shutil.copytree(log, tmp_path / "backup")
    shop.put("addresses", **{**address, "city": "one"})
    cut = shop.commit()
    world.cycle(cut)
    before = world.table("parcel_line")
    shutil.rmtree(log)  # the files of the lost version remain, and a view of the version still reads them
    shutil.copytree(tmp_path / "backup", log)
    shop.put("addresses", **{**address, "city": "three"})
    second_cut = shop.commit()
    assert second_cut.tables["addresses"] == cut.tables["addresses"]
    # The process that built from the lost version trusts neither its place nor its view.
    recreated = "silver.addresses was not in the cut of the last build, or was rolled back"
    world.cycle(second_cut, full={"home": recreated})
    world.check()
    assert "three" in str(world.table("home"))
    shop.put("orders", id=1, customer_id=4, status="paid", total=money("123.45"))
    third_cut = shop.commit()
    # Like a vacuum beyond the feed's retention: files of the change are removed, the state remains.
    table = Path(world.lake.uri("silver", "orders"))
    log = table / "_delta_log" / f"{third_cut.tables['orders']:020}.json"
    paths = [json.loads(line)["cdc"]["path"] for line in log.read_text().splitlines() if '"cdc"' in line]
    assert paths
    for path in paths:
        (table / path).unlink()
    # A process that has read the removed files still reads them, until a restart.
    jvm: Any = world.spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    world.gold = world.start_gold(world.documents)
    world.cycle(third_cut, full={"parcel_line": "changes of silver.orders"})
    world.check()
    after = world.table("parcel_line")
    unchanged = [
        key for key, row in before.items() if row["_content_hash"] == after.get(key, {}).get("_content_hash")
    ]
    assert 0 < len(unchanged) < len(after)
    assert all(before[key] == after[key] for key in unchanged)
