"""Test the start of a next build, and the reasons for a full build: keys, records of cuts, errors."""

from __future__ import annotations

import errno
import time
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.classic.dataframe import DataFrame

from deltasmelt.bronze import backoff
from deltasmelt.bronze.effects import Effect, guarded
from deltasmelt.bronze.errors import DefiniteError, TransientError
from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.gold.builder.document import DocumentBuild
from deltasmelt.gold.cycle import Gold
from deltasmelt.gold.incremental.change_feed import images_query
from deltasmelt.gold.incremental.starts import holds_the_same
from deltasmelt.gold.verify.verify import verify
from deltasmelt.pipelines.runtime import stages as stages_module
from deltasmelt.pipelines.runtime.stages import Stages
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.silver.spark.access import Jvm, access_of
from deltasmelt.silver.spark.semantics import PINNED, unpinned
from tests.gold.shop import SHAPES, catalog, moment, money
from tests.gold.shop_documents import document
from tests.gold.world import Model, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.gold.language.document import Document
    from deltasmelt.silver.schema.catalog import SilverTable
    from tests.gold.shop import Shapes

pytestmark = pytest.mark.spark

LINES = """
document: lines
root: public.orders
fields:
  - id
  - items: {many: public.order_items, on: {order_id: id}, fields: [line, sku]}
"""
KEYLESS = """
document: keyless
root: public.products
fields: [name]
"""
TOTALS = """
document: totals
root: public.customers
fields:
  - id
  - paid: {sum: public.orders.total, on: {customer_id: id}}
  - count: {sql: "cast(notes as int)"}
"""


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    read = ("public.customers", "public.orders", "public.order_items", "public.products", "public.addresses")
    lake = str(tmp_path_factory.mktemp("starts") / "lake")
    world = World(spark, lake, [LINES, KEYLESS], Model(shapes={name: SHAPES[name] for name in read}))
    for customer in list(world.shop.all("customers")):
        world.shop.put("customers", id=customer["id"], notes="1")
    world.cycle(world.shop.commit(), full=dict.fromkeys(world.names, "first build"))
    return world


def keyed(name: str, *key: str) -> Shapes:
    """Return the shop with another key for one table."""
    return {**SHAPES, name: (SHAPES[name][0], key)}


def gold_over(world: World, shapes: Shapes) -> Gold:
    return Gold(world.spark, world.lake, world.documents, lambda: catalog(shapes), world.control)


class OverShop(Stages):
    """Stages that read the shop's catalog, because no reader records relations."""

    def catalog(self) -> dict[TableName, SilverTable]:
        return catalog()


def gold_stages(world: World, folder: Path, documents: list[Document]) -> Stages:
    file = folder / "pipeline.yml"
    file.write_text(
        "pipeline: shop\n"
        "source: {dsn: postgresql://smelt@127.0.0.1/shop, slot: s, publication: p, tables: [public.*]}\n"
        f"lake: {{path: {world.lake.path}}}\n"
    )
    return OverShop(world.spark, load_pipeline(file), documents, layers=("gold",))


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the calls that wait for Spark's jobs."""
    done: Counter[str] = Counter()

    def count(name: str) -> None:
        call = getattr(DataFrame, name)

        def counted(frame: Any, *args: Any, **more: Any) -> Any:
            done[name] += 1
            return call(frame, *args, **more)

        monkeypatch.setattr(DataFrame, name, counted)

    for name in ("collect", "first", "localCheckpoint"):
        count(name)
    return done


def test_a_change_costs_few_statements(world: World, statements: Counter[str]) -> None:
    """A changed table's images once; for each document its affected roots, the documents, and the MERGE."""
    twice = [world.documents[0], document(LINES.replace("lines", "lines_too")), world.documents[1]]
    gold = world.start_gold(twice)
    gold.cycle()

    def cost() -> dict[str, int]:
        world.shop.commit()
        statements.clear()
        assert gold.cycle() is not None
        assert world.control.open_errors() == []
        return dict(statements)

    world.shop.put("order_items", order_id=14, line=1, sku="counted")
    assert cost() == {"localCheckpoint": 1 + 2 * 2, "collect": 2}
    world.shop.put("orders", id=77, customer_id=1, status="new", total=money("1.00"), placed_at=moment(1))
    world.shop.put("order_items", order_id=77, line=1, sku="counted")
    assert cost() == {"localCheckpoint": 2 + 2 * 2, "collect": 2}
    assert {run.name: (run.mode, run.inserts) for run in gold.runs} == {
        "lines": ("incremental", 1), "lines_too": ("incremental", 1), "keyless": ("none", 0),
    }  # fmt: skip
    world.shop.put("customers", id=1, notes="2")
    assert cost() == {}, "no document reads the table"
    world.shop.remove("order_items", 77, 1)
    world.shop.remove("orders", 77)
    world.shop.put("customers", id=1, notes="1")
    world.cycle(world.shop.commit())
    world.check()


def test_unshared_images_belong_to_one_document(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at a server: each document's own columns, and no view after the document's build."""
    committed, left, read = DocumentBuild._committed, dict[str, int](), set[tuple[str, ...]]()

    def noted(feed: str, key: Any, columns: list[str], **how: Any) -> str:
        read.add(tuple(columns))
        return images_query(feed, key, columns, **how)

    def ended(build: DocumentBuild, *of: Any) -> int:
        views = build._spark.catalog.listTables()
        left[build.document.name] = sum(view.name.startswith("deltasmelt_images_") for view in views)
        return committed(build, *of)

    monkeypatch.setattr(Jvm, "shares_views", False)
    monkeypatch.setattr("deltasmelt.gold.builder.images.images_query", noted)
    monkeypatch.setattr(DocumentBuild, "_committed", ended)
    gold = world.start_gold(
        [world.documents[0], document(LINES.replace("lines", "numbers").replace(", sku", ""))]
    )
    gold.cycle()
    world.shop.put("order_items", order_id=14, line=1, sku="unshared")
    world.shop.commit()
    read.clear()
    assert gold.cycle() is not None
    assert {run.name: (run.mode, run.updates) for run in gold.runs} == {
        "lines": ("incremental", 1), "numbers": ("none", 0),
    }  # fmt: skip
    assert read == {("line", "order_id", "sku"), ("line", "order_id")}
    assert left == {"lines": 0, "numbers": 0}


def test_an_array_follows_its_tables_new_key(world: World) -> None:
    before = world.table("lines")
    assert [item["line"] for item in before[14,]["items"]] == [1, 2, 3]
    world.shop.put("order_items", order_id=14, line=1, sku="z")
    world.cycle(world.shop.commit())
    assert gold_over(world, keyed("public.order_items", "order_id", "sku", "line")).cycle() is not None
    run = world.runs()["lines"]
    assert (run.mode, run.reason) == ("full", "the definition changed")
    assert [item["sku"] for item in world.table("lines")[14,]["items"]] == ["S0", "S2", "z"]
    gold_over(world, SHAPES).cycle()
    assert [item["line"] for item in world.table("lines")[14,]["items"]] == [1, 2, 3]


def test_upkeep_and_comments_build_nothing_again(world: World, tmp_path: Path) -> None:
    """A cut recorded again with versions of the same rows is not a new cut."""
    spark, control = world.spark, world.control
    world.start_gold(world.documents).cycle()
    cut = control.latest_cut("silver")
    assert cut is not None
    properties = "SET TBLPROPERTIES ('a.note' = 'kept')"
    for layer, names in (("silver", ("orders", "order_items", "products")), ("gold", ("lines", "keyless"))):
        for name in names:
            spark.sql(f"ALTER TABLE {world.lake.sql(layer, name)} {properties}")  # type: ignore[arg-type]
    spark.sql(f"OPTIMIZE {world.lake.sql('silver', 'order_items')}")
    orders = world.lake.sql("silver", "orders")
    spark.sql(f"ALTER TABLE {orders} ALTER COLUMN id COMMENT 'a (attribute 1)', total COMMENT 'attribute 4'")
    spark.sql(f"ALTER TABLE {orders} ALTER COLUMN id COMMENT 'b (attribute 1)'")
    spark.sql(f"COMMENT ON TABLE {orders} IS 'Orders'")
    later = {
        name: DeltaTable(world.lake.uri("silver", name)).version() if name in cut.tables else version
        for name, version in cut.tables.items()
    }
    assert later["orders"] == cut.tables["orders"] + 4
    before = {name: world.table(name) for name in world.names}
    control.record_cut(replace(cut, tables=later, recorded_at=None))
    assert world.start_gold(world.documents).cycle() is not None
    assert {(run.mode, run.changes) for run in world.runs().values()} == {("none", 0)}
    assert {name: world.table(name) for name in world.names} == before

    widened = f"delta.`{tmp_path}/t`"
    feature = "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
    spark.sql(f"CREATE TABLE {widened} (a INT) USING DELTA {feature}")
    spark.sql(f"ALTER TABLE {widened} ALTER COLUMN a TYPE BIGINT")
    assert not holds_the_same(f"{tmp_path}/t", 0, 1), "the same operation as a comment's, but another type"


def test_a_cut_recorded_during_builds_is_built_again(world: World) -> None:
    """Gold's cut names its record, so gold has not seen the newer record."""
    world.shop.put("products", id=1, name="before")
    cut = world.shop.commit()
    calls: list[Cut] = []

    def catalog_then() -> dict[TableName, SilverTable]:
        if not calls:
            world.shop.put("products", id=1, name="derived again")
            world.shop.derive_again()
        calls.append(cut)
        return world.catalog()

    gold = Gold(world.spark, world.lake, world.documents, catalog_then, world.control)
    for name in ("before", "derived again"):
        built = gold.cycle()
        assert built is not None
        assert built.commit_lsn == cut.commit_lsn
        assert world.table("keyless")[1,]["name"] == name
        assert world.runs()["keyless"].mode == "incremental"
    assert gold.cycle() is None


def test_an_unknown_failure_stops_its_document_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a silver table that only one document reads disappears, and reappears."""
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.0)
    texts = "document: addressed\nroot: public.addresses\nfields: [id, city]\n"
    documents = [*world.documents, document(texts)]
    world.shop.put("addresses", id=1, city="Somewhere")
    world.shop.put("products", id=2, name="goes on")
    world.shop.commit()
    files = [
        Path(uri.removeprefix("file://"))
        for uri in DeltaTable(world.lake.uri("silver", "addresses")).file_uris()
    ]
    for file in files:
        file.rename(file.with_suffix(".away"))
    gold = world.start_gold(documents)
    gold.cycle()
    (error,) = world.control.open_errors()
    assert (error.scope, error.name, error.code) == ("document", "addressed", "document-failed")
    assert "tried the build twice" in str(error.remedy)
    assert world.runs()["keyless"].updates == 1
    for file in files:
        file.with_suffix(".away").rename(file)
    world.shop.put("addresses", id=1, city="Elsewhere")
    world.shop.commit()
    gold.cycle()
    assert world.control.open_errors() == []
    assert world.runs()["addressed"].inserts == len(world.shop.rows["public.addresses"])


@pytest.mark.parametrize(
    "change", [{"name": "changed"}, {"launched": date(2027, 1, 1)}], ids=["with_commit", "without_commit"]
)
def test_foreign_commit_during_build_is_corrected(
    world: World, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gold's cut must not excuse the commit by naming its version."""
    committed, left = DocumentBuild._committed, [world.lake.sql("gold", "keyless")]

    def late(build: DocumentBuild, *of: Any) -> int:
        if left and build.document.name == "keyless":
            world.spark.sql(f"UPDATE {left.pop()} SET name = 'foreign'")
        return committed(build, *of)

    monkeypatch.setattr(DocumentBuild, "_committed", late)
    world.shop.put("products", id=2, **change)
    world.cycle(world.shop.commit(), full={"keyless": "another program made version"})
    world.check()


def test_a_failed_document_pauses_between_builds(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut within the pause costs no build of the document; after the pause, no new cut is needed.

    The retry is repeated until a cut names the document. A run that must catch up waits for no pause.
    """
    ahead, builds, run = [0.0], Counter[str](), DocumentBuild.run

    def counted(build: DocumentBuild, *of: Any, **named: Any) -> Any:
        builds[build.document.name] += 1
        return run(build, *of, **named)

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0], sleep=time.sleep)
    monkeypatch.setattr(backoff, "time", clock)
    monkeypatch.setattr(stages_module, "GRACE_SECONDS", 600)
    monkeypatch.setattr(DocumentBuild, "run", counted)
    stages = gold_stages(world, tmp_path, [*world.documents, document(TOTALS)])

    def commit(notes: str, name: str) -> Cut:
        world.shop.put("customers", id=1, notes=notes)
        world.shop.put("products", id=4, name=name)
        return world.shop.commit()

    for notes, name in (("not a number", "first"), ("1", "within the pause")):
        cut = commit(notes, name)
        assert stages.cycle(at_once=False)
        assert world.table("keyless")[4,]["name"] == name
        assert [error.code for error in world.control.open_errors()] == ["document-failed"]
        assert not stages.cycle(at_once=False)
        assert builds["totals"] == 1
    ahead[0] = backoff.FIRST_SECONDS
    with monkeypatch.context() as away:
        away.setattr(ControlTables, "record_cut", unreachable)
        with pytest.raises(TransientError):
            stages.cycle(at_once=False)
    assert stages.cycle(at_once=False), "the retry worked, and its cut is still owed"
    assert world.control.open_errors() == []
    assert stages.gold_cut is not None
    assert (stages.gold_cut.commit_lsn, "totals" in stages.gold_cut.tables) == (cut.commit_lsn, True)
    assert not stages.cycle(at_once=False)
    for notes, name in (("not a number", "second"), ("2", "left out")):
        commit(notes, name)
        assert stages.cycle(at_once=False)
        assert len(world.control.open_errors()) == 1
    assert stages.cycle(), "a run that must catch up builds the document without a new cut"
    assert world.control.open_errors() == []
    assert not stages.cycle()


def unreachable(*_: object) -> None:
    raise TransientError("the lake does not answer", code="lake-unreachable")


def test_an_unavailable_lake_is_no_documents_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.0)
    gold = world.start_gold(world.documents)
    world.shop.put("products", id=3, name="waits")
    world.shop.commit()

    def away(door: Effect, where: str, effect: Callable[[], Any]) -> Any:
        if door in (Effect.OPEN_TABLE, Effect.REFRESH) and where.endswith("gold/keyless"):
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        return effect()

    with guarded(away):
        for _ in range(5):
            with pytest.raises(TransientError, match="the lake does not answer"):
                gold.cycle()
            assert world.control.open_errors() == []
        assert gold.cycle() is not None, "the others wait no longer"
        assert [(error.name, error.code) for error in world.control.open_errors()] == [
            ("keyless", "document-failed")
        ]
    world.shop.put("products", id=3, name="goes on")
    world.shop.commit()
    gold.cycle()
    assert world.control.open_errors() == []
    assert world.runs()["keyless"].updates == 1


def test_a_keyless_document_follows_its_roots_key(world: World) -> None:
    def keys() -> set[tuple[Any, ...]]:
        rows = world.spark.sql(f"SELECT _key, _commit_lsn FROM {world.lake.sql('gold', 'keyless')}").collect()
        return {tuple(row["_key"].asDict().items()) for row in rows}

    assert keys() == {(("id", number),) for number in range(1, 6)}
    gold_over(world, keyed("public.products", "price")).cycle()
    assert world.control.open_errors() == []
    assert world.runs()["keyless"].reason == "the definition changed"
    assert keys() == {(("price", money(f"{number}0.00")),) for number in range(1, 6)}
    gold_over(world, keyed("public.products", "price", "id")).cycle()
    assert {key[1] for key in keys()} == {("id", number) for number in range(1, 6)}
    gold_over(world, SHAPES).cycle()
    assert world.control.open_errors() == []
    assert keys() == {(("id", number),) for number in range(1, 6)}


def test_a_table_joining_a_cut_builds_its_documents(world: World, tmp_path: Path) -> None:
    """The table's first copy ended while the source was quiet."""
    stages = gold_stages(world, tmp_path, [*world.documents, document(TOTALS)])
    world.shop.lsn += 10
    whole = {**world.shop.versions}
    without = {name: version for name, version in whole.items() if name != "customers"}
    cut = Cut("silver", Lsn(world.shop.lsn), moment(1), without)
    world.control.record_cut(cut)
    stages.cycle()
    assert [error.code for error in world.control.open_errors()] == ["document-waits"]
    assert not stages.cycle()
    world.control.record_cut(replace(cut, tables=whole))
    assert stages.cycle()
    assert world.control.open_errors() == []
    assert stages.gold_cut is not None
    assert stages.gold_cut.tables.keys() == {"lines", "keyless", "totals"}
    assert not stages.cycle()


def test_a_failed_document_gets_repaired_rows(world: World) -> None:
    """Gold built another document in between, so the newest gold cut of this LSN follows the repair."""
    world.documents.append(document(TOTALS))
    shop = world.shop
    gold = world.start_gold(world.documents)
    gold.cycle()
    built = world.table("totals")
    # Silver was damaged, and a rebuild derives silver again at gold's own LSN.
    shop.put("orders", id=1, total=money("77.00"))
    shop.put("order_items", order_id=1, line=1, sku="repaired")
    shop.put("customers", id=1, notes="not a number")
    shop.derive_again()
    gold.cycle()
    assert [error.name for error in world.control.open_errors()] == ["totals"]
    assert world.table("lines")[1,]["items"][0]["sku"] == "repaired"
    # A later change repairs the cause of the failure.
    shop.put("customers", id=1, notes="1")
    gold = world.start_gold(world.documents)
    cut = shop.commit()
    gold.cycle()
    assert world.control.open_errors() == []
    assert cut.commit_lsn == world.control.latest_cut("gold").commit_lsn  # type: ignore[union-attr]
    assert world.table("totals") != built
    paid = {key: row["paid"] for key, row in world.table("totals").items()}
    assert paid == {
        (customer["id"],): sum(
            order["total"] for order in shop.all("orders") if order["customer_id"] == customer["id"]
        )
        or None
        for customer in shop.all("customers")
    }


def test_a_map_with_binary_keys_is_refused(world: World) -> None:
    """The document's content hash would change with each build."""
    field = '{found: {sql: "array(map(cast(name as binary), id))"}}'
    text = f"document: bytes\nroot: public.products\nfields:\n  - id\n  - {field}\n"
    world.start_gold([*world.documents, document(text)]).cycle()
    (error,) = world.control.open_errors()
    assert (error.name, error.code) == ("bytes", "document-invalid")
    assert (
        error.message
        == "bytes: the field 'found' is a map with keys of type BINARY, which cannot be JSON names"
    )
    assert error.remedy == "convert the keys to text, for example by hex(…)"


CLOCKED = """
document: clocked
root: public.customers
fields:
  - id
  - first:
      one: public.orders
      on: {customer_id: id}
      fields: [{at: {sql: "cast(split(status, ',')[0] as timestamp)"}}]
"""


def test_a_document_of_the_day_is_refused(world: World) -> None:
    gold = world.start_gold([*world.documents, document(CLOCKED)])
    gold.cycle()
    (error,) = [error for error in world.control.open_errors() if error.name == "clocked"]
    assert error.code == "document-invalid"
    assert (
        "public.orders: \"cast(split(status, ',')[0] as timestamp)\": the text becomes a TIMESTAMP"
        in error.message
    )
    assert "to_timestamp(text, 'yyyy-MM-dd HH:mm:ss')" in str(error.remedy)
    with pytest.raises(DefiniteError, match="a text with only a time"):
        gold.preview("clocked", "1")
    world.start_gold(world.documents).cycle()
    assert [error.name for error in world.control.open_errors() if error.name == "clocked"] == []


VALUES = r"""
document: valued
root: public.customers
fields:
  - id
  - day: {sql: "cast(created_at as date)"}
  - hour: {sql: "date_format(created_at, 'yyyy-MM-dd HH')"}
  - third: {sql: "cast(balance as decimal(38, 18)) * balance"}
  - both: {sql: "cast(map(id, tier) as string)"}
  - tried: {sql: "try_cast(email as int)"}
  - kept: {sql: "to_timestamp('2026-07-01 12:00:00', 'yyyy-MM-dd HH:mm:ss')"}
  - parsed: {sql: "try_to_timestamp('2026-7-1 5:00', 'yyyy-MM-dd HH:mm')"}
  - path: {sql: "replace(email, '@', '\\\\d')"}
  - none: {sql: "size(cast(null as array<int>))"}
  - text: {column: tier, default: "a\u2028b\u0085c\u000bd\u000ce"}
  - orders: {many: public.orders, on: {customer_id: id}, fields: [id, placed_at]}
"""
OTHER = {
    "spark.sql.session.timeZone": "Asia/Tokyo",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.parser.escapedStringLiterals": "true",
    "spark.sql.parser.quotedRegexColumnNames": "true",
    "spark.sql.variable.substitute": "true",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.legacy.castComplexTypesToString.enabled": "true",
    "spark.sql.legacy.sizeOfNull": "true",
    "spark.sql.legacy.literal.pickMinimumPrecision": "false",
}


def test_session_settings_change_no_document(world: World) -> None:
    """The test includes a document with texts in which Python sees line ends."""
    documents = [*world.documents, document(VALUES)]
    world.documents = documents
    world.start_gold(documents).cycle()
    before = world.table("valued")
    assert {row["text"] for row in before.values()} >= {"a\u2028b\x85c\x0bd\x0ce"}
    second_session = world.spark.newSession()
    for name, value in OTHER.items():
        second_session.conf.set(name, value)
    gold = Gold(second_session, world.lake, documents, world.catalog, world.control)
    gold.cycle(rebuild=["valued", "lines"])
    assert world.control.open_errors() == []
    runs = world.runs()
    assert {(runs[name].reason, runs[name].changes) for name in ("valued", "lines")} == {("requested", 0)}
    assert world.table("valued") == before
    assert verify(second_session, world.lake, gold.built("valued")).equal


def test_pinned_settings_are_known_and_changes_reported(spark: SparkSession) -> None:
    fresh = spark.newSession()
    ours = {
        "spark.sql.session.timeZone",
        "spark.sql.variable.substitute",
        "spark.sql.decimalOperations.allowPrecisionLoss",
        "spark.sql.parquet.outputTimestampType",
    }
    for name, value in PINNED.items():
        if name not in ours:
            assert fresh.conf.get(name).lower() == value.lower(), name  # type: ignore[union-attr]
    session = access_of(spark).child()
    assert unpinned(session) == {}
    session.conf.set("spark.sql.legacy.sizeOfNull", "true")
    session.conf.set("spark.sql.ansi.enabled", "false")
    assert unpinned(session) == {"spark.sql.legacy.sizeOfNull": "true", "spark.sql.ansi.enabled": "false"}
