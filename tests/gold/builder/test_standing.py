"""Logs alone show which documents a cut leaves unchanged, and which need Spark. The tests need no Spark."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from deltasmelt.bronze.effects import Effect, guarded
from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.control import Cut, OpenError, Run
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.gold.builder.build import CutViews
from deltasmelt.gold.builder.build_start import PROVEN, BuildStart, proof
from deltasmelt.gold.builder.document import DocumentBuild, ForeignCommitError
from deltasmelt.gold.builder.gold_table import DEFINITION_PROPERTY
from deltasmelt.gold.builder.spark_settings import GOLD_APP
from deltasmelt.gold.cycle import Gold
from deltasmelt.gold.tree.check import resolved
from deltasmelt.pipelines.runtime.log_entries import positions
from deltasmelt.silver.run.table_log import SilverLog
from deltasmelt.silver.schema.catalog import silver_catalog
from deltasmelt.silver.settings import SilverSettings
from deltasmelt.silver.spark.lazy_session import LazySession
from tests.gold.shop import relation
from tests.gold.shop_documents import document

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.silver.schema.catalog import SilverTable
    from tests.gold.shop import Shapes

SHAPES: Final[Shapes] = {
    "public.orders": ({"id": "int8", "status": "text"}, ("id",)),
    "public.order_items": ({"order_id": "int8", "line": "int2", "sku": "text"}, ("order_id", "line")),
}
LINES: Final = """
document: lines
root: public.orders
fields:
  - id
  - items: {many: public.order_items, on: {order_id: id}, fields: [line, sku]}
"""
UNREAD: Final[Shapes] = {"public.unread": ({"id": "int8"}, ("id",))}
REFUSED: Final = SilverSettings(types={"public.unread.id": "boolean"})
"""A wrong type of a table that no document reads."""
MEANING: Final = "Spark 4"
STARTED: Final = ConfigurationError("Spark was started", code="java-missing")


class Built:
    """A lake in which the document `lines` was built from silver's cut at LSN 20; silver is at LSN 30."""

    def __init__(self, path: str) -> None:
        self.lake, self.text, self.meaning, self.starts = Lake(path), LINES, str(MEANING), 0
        self.control, self.shapes = ControlTables(self.lake), dict(SHAPES)
        for name in ("orders", "order_items"):
            self.append(name)
        tables = {"orders": 0, "order_items": 0}
        self.control.record_cut(Cut("silver", Lsn(20), None, tables))
        self.write_gold(20)
        self.control.record_cut(Cut("gold", Lsn(20), None, {"lines": 1}))
        definition = proof(self.document, resolved(self.document, self.catalog()), "d", MEANING)
        self.run(details={PROVEN: definition})
        self.control.record_cut(Cut("silver", Lsn(30), None, tables))

    @property
    def document(self) -> Any:
        return document(self.text)

    def catalog(self) -> Mapping[TableName, SilverTable]:
        shapes = {**self.shapes, **UNREAD}
        return silver_catalog([relation(name, *shape) for name, shape in shapes.items()], REFUSED)

    def append(self, name: str) -> None:
        write_deltalake(self.lake.uri("silver", name), pa.table({"id": [1]}), mode="append")

    def write_gold(self, lsn: int, definition: str = "d") -> None:
        uri, rows = self.lake.uri("gold", "lines"), pa.table({"id": [1]})
        delta.open_or_create(uri, rows.schema, description="", properties={DEFINITION_PROPERTY: definition})
        mark = CommitProperties(app_transactions=[Transaction(GOLD_APP, lsn)])
        write_deltalake(uri, rows, mode="append", commit_properties=mark)

    def run(self, details: dict[str, object]) -> None:
        self.control.record_runs([Run("gold", "lines", "full", None, Lsn(20), details=details)])

    def cut(self, **tables: int) -> None:
        self.control.record_cut(Cut("silver", Lsn(40), None, tables))

    def record(self, lsn: int, ids: dict[str, int], mark: int = 20, **versions: int) -> None:
        """Record a silver cut that names the tables' ids, and marks: `mark` is the mark of `orders`."""
        tables = {**dict.fromkeys(ids, 0), **versions}
        marks = {name: Lsn(mark if name == "orders" else 20) for name in ids}
        self.control.record_cut(Cut("silver", Lsn(lsn), None, tables, marks=marks, ids=ids))

    def ids(self) -> dict[str, int]:
        """Return the ids of silver's tables."""
        log = SilverLog(self.lake)
        stored = {name: log.read(name) for name in ("orders", "order_items")}
        return {name: one.table_id for name, one in stored.items() if one and one.table_id is not None}

    def standing(self) -> BuildStart:
        return BuildStart(self.lake, self.document, SilverLog(self.lake), self.control)

    def gold(self, control: ControlTables) -> Gold:
        def start() -> SparkSession:
            self.starts += 1
            raise STARTED

        lazy = LazySession(start, fingerprint=self.meaning or None)
        return Gold(lazy, self.lake, [self.document], self.catalog, control)

    def cycle(self) -> Cut | None:
        gold = self.gold(self.control)
        cut = gold.cycle()
        self.runs = gold.runs
        return cut


@pytest.fixture
def built(lake_path: str) -> Built:
    return Built(lake_path)


def test_unchanged_cut_is_recorded_and_healed_error_closed(built: Built) -> None:
    built.control.open_error(OpenError("document", "lines", "document-waits", "m"))
    for lsn in (30, 40):
        cut = built.cycle()
        assert cut is not None
        assert (cut.commit_lsn, cut.tables) == (Lsn(lsn), {"lines": 1})
        (run,) = built.runs
        assert (run.mode, run.from_lsn, run.to_lsn, run.delta_version) == ("none", lsn - 10, lsn, 1)
        built.cut(orders=0, order_items=0)
    assert [run.mode for run in built.control.runs("gold")] == ["full"], "that nothing was done is no news"
    assert built.control.open_errors() == []
    assert built.starts == 0


def test_document_omitted_by_cuts_keeps_last_cut(built: Built) -> None:
    """The mark alone would lead to a second read of all later changes, and would need their files."""
    assert built.cycle() is not None
    for lsn in (32, 34):  # its error, or a shape that silver's cut lacked
        built.control.record_cut(Cut("silver", Lsn(lsn), None, {"orders": 0}))
        built.control.record_cut(Cut("gold", Lsn(lsn), None, {}))
    soon = datetime.now(UTC) + timedelta(days=1)
    assert positions(built.lake, built.control) == {Lsn(20), Lsn(30)}
    built.control.thin_cuts(soon, gold=True, positions=positions(built.lake, built.control))
    built.cut(orders=0, order_items=0)
    assert built.cycle() is not None
    (run,) = built.runs
    assert (run.from_lsn, run.to_lsn) == (30, 40)
    assert built.starts == 0
    # Beyond the retention silver keeps no change for the document, and gold builds the document in full.
    built.control.record_cut(Cut("gold", Lsn(41), None, {}))
    built.control.record_cut(Cut("silver", Lsn(41), None, {"orders": 0, "order_items": 0}))
    built.control.expire_cuts(soon, gold=True)
    assert [int(cut.commit_lsn) for cut in built.control.cuts("silver")] == [41]
    standing = built.standing()
    start = standing.start(standing.table.state(), built.control.latest_cut("gold"))
    assert (start.position, start.cut) == (20, None)


def test_runs_are_read_once_and_proof_is_recorded(built: Built) -> None:
    """Gold records a run if the run proves a state without an earlier proof."""
    control, reads = ControlTables(built.lake), []

    def count(door: Effect, where: str, effect: Callable[[], Any]) -> Any:
        if where.endswith("control/runs") and door in {Effect.OPEN_TABLE, Effect.REFRESH}:
            reads.append(door)
        return effect()

    gold = built.gold(control)
    with guarded(count):
        for lsn in (40, 50, 60):
            built.control.record_cut(Cut("silver", Lsn(lsn), None, {"orders": 0, "order_items": 0}))
            assert gold.cycle() is not None
    assert len(reads) == 1
    standing = built.standing()
    run = Run("gold", "lines", "none", Lsn(20), Lsn(30), details={PROVEN: "of another Spark"})
    assert [standing.is_news(run), standing.is_news(run)] == [True, False]


def test_document_far_behind_is_built_in_full(
    built: Built,
) -> None:
    """A full build is cheaper if the tables have fewer rows than the changes."""
    standing, state = built.standing(), built.standing().table.state()
    for number in range(1, 121):
        built.append("orders")
        log = Path(built.lake.uri("silver", "orders"), "_delta_log", f"{number:020}.json")
        entries = [json.loads(line) for line in log.read_text().splitlines()]
        for entry in entries:
            if "commitInfo" in entry:  # as a MERGE by Spark says it
                entry["commitInfo"] |= {
                    "operation": "MERGE", "operationMetrics": {"numTargetRowsUpdated": "2"}
                }  # fmt: skip
        log.write_text("\n".join(map(json.dumps, entries)))
    tree = resolved(built.document, built.catalog())

    def reason(orders: int) -> str | None:
        built.cut(orders=orders, order_items=0)
        (cut,) = [
            silver_cut for silver_cut in built.control.cuts("silver") if silver_cut.tables["orders"] == orders
        ]
        return standing.full_reason(state, "d", standing.start(state, None), tree, cut)

    assert reason(100) is None, "few versions are read anyhow"
    assert reason(120) == "the changes since the last build have 480 rows, silver's tables have 122"


def test_old_cut_is_recorded_again_once_with_marks(built: Built) -> None:
    built.control.record_cut(Cut("gold", Lsn(30), None, {"lines": 1}))
    cut = built.cycle()
    assert cut is not None
    assert (cut.commit_lsn, cut.tables, cut.marks) == (Lsn(30), {"lines": 1}, {"lines": Lsn(20)})
    assert built.cycle() is None
    assert built.starts == 0


def test_property_only_versions_leave_document_unchanged(built: Built) -> None:
    for layer, name in (("silver", "orders"), ("gold", "lines")):
        table = DeltaTable(built.lake.uri(layer, name))  # type: ignore[arg-type]
        table.alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    built.cut(orders=1, order_items=0)
    cut = built.cycle()
    assert cut is not None
    assert cut.tables == {"lines": 2}


def changed_rows(built: Built) -> None:
    built.append("order_items")
    built.cut(orders=0, order_items=1)


def other_type(built: Built) -> None:
    built.shapes["public.orders"] = ({"id": "int4", "status": "text"}, ("id",))


def other_key(built: Built) -> None:
    built.shapes["public.order_items"] = (SHAPES["public.order_items"][0], ("order_id", "sku"))


def other_text(built: Built) -> None:
    built.text = LINES.replace("[line, sku]", "[line]")


def other_spark(built: Built) -> None:
    built.meaning = "Spark 5"


def unknown_spark(built: Built) -> None:
    built.meaning = ""


def no_table(built: Built) -> None:
    shutil.rmtree(built.lake.uri("gold", "lines"))


def no_silver_table(built: Built) -> None:
    shutil.rmtree(built.lake.uri("silver", "orders"))


def made_anew(built: Built) -> None:
    """Recreate the table, with a log that reaches the cut's version again, with other rows."""
    shutil.rmtree(built.lake.uri("silver", "orders"))
    built.append("orders")


def test_recreated_table_is_recognized_by_id_not_clocks(built: Built) -> None:
    """The clocks of two machines may disagree."""
    ids, then = built.ids(), datetime(2020, 1, 1, tzinfo=UTC)
    for lsn in (50, 60):  # the clock of Spark is ahead: each version is newer than the cut that names it
        built.control.record_cut(Cut("silver", Lsn(lsn), None, dict.fromkeys(ids, 0), then, ids=ids))
        cut = built.cycle()
        assert cut is not None
        assert (cut.commit_lsn, cut.built_from) == (Lsn(lsn), then)
    made_anew(built)
    built.control.record_cut(Cut("silver", Lsn(70), None, dict.fromkeys(ids, 0), then, ids=ids))
    with pytest.raises(ConfigurationError, match="Spark was started"):
        built.cycle()


def moved_id(built: Built, ids: dict[str, int]) -> None:
    made_anew(built)
    assert ids != built.ids()
    built.record(70, built.ids())


def moved_version(built: Built, ids: dict[str, int]) -> None:
    built.append("orders")
    built.record(70, ids, orders=1)


def moved_mark(built: Built, ids: dict[str, int]) -> None:
    """Silver lost its newest version, and reached it again by more changes."""
    built.control.disown("silver", "orders", -1, None)
    built.record(70, ids, mark=70)


def moved_catalog(built: Built, ids: dict[str, int]) -> None:
    other_type(built)
    built.record(70, ids)


def moved_documents(built: Built, ids: dict[str, int]) -> None:
    others_wrote(built)
    built.record(70, ids)


def recreated_documents(built: Built, ids: dict[str, int]) -> None:
    another_definition(built)
    built.record(70, ids)


MOVES: Final = [moved_id, moved_version, moved_mark, moved_catalog, moved_documents, recreated_documents]


@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.__name__)
def test_standing_document_opens_nothing_until_moved(
    built: Built, move: Callable[[Built, dict[str, int]], None]
) -> None:
    """A process asks the logs once; later cuts of the same versions cost one poll of the document's table."""
    gold, ids = built.gold(built.control), built.ids()
    built.record(50, ids)
    assert gold.cycle() is not None
    effects: list[tuple[Effect, str]] = []

    def note(door: Effect, where: str, effect: Callable[[], Any]) -> Any:
        if "/control/" not in where:
            effects.append((door, where))
        return effect()

    with guarded(note):
        for lsn in (60, 65):
            built.record(lsn, ids)
            cut = gold.cycle()
            assert cut is not None
            assert (cut.commit_lsn, cut.tables, cut.marks) == (Lsn(lsn), {"lines": 1}, {"lines": Lsn(20)})
    assert effects == 2 * [(Effect.REFRESH, built.lake.uri("gold", "lines"))]
    (run,) = gold.runs
    assert (run.mode, run.from_lsn, run.to_lsn, run.delta_version) == ("none", 60, 65, 1)
    move(built, ids)
    with pytest.raises(ConfigurationError, match="Spark was started"):
        gold.cycle()


def test_error_of_lacking_table_is_closed(built: Built) -> None:
    """The place of a cut before the error no longer counts: only a decision about the document ends it."""
    gold, ids = built.gold(built.control), built.ids()
    for lsn, names, errors in ((50, ids, 0), (60, {"orders": ids["orders"]}, 1), (70, ids, 0), (80, ids, 0)):
        built.record(lsn, names)
        cut = gold.cycle()
        assert cut is not None
        assert cut.tables == ({} if errors else {"lines": 1})
        assert len(built.control.open_errors()) == errors
    assert built.starts == 0


def test_views_follow_version_id_and_mark(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session of a document keeps a view only for the rows that the view was made for."""
    made: list[str] = []

    def table_at(_spark: object, _lake: Lake, _layer: str, name: str, version: int) -> str:
        made.append(f"{name} {version}")
        return name

    frame = SimpleNamespace(createOrReplaceTempView=lambda _: None)
    monkeypatch.setattr("deltasmelt.gold.builder.build.table_at", table_at)
    monkeypatch.setattr("deltasmelt.gold.builder.build.live_rows", lambda _: frame)
    tree, ids, nothing = resolved(built.document, built.catalog()), built.ids(), cast("Any", None)
    views, both = CutViews(nothing, built.lake), ["order_items 0", "orders 0"]
    other = {**ids, "orders": 5}
    for named, mark, expected in (
        (ids, 20, both), (ids, 20, []), (ids, 70, ["orders 0"]), (other, 70, ["orders 0"]), (other, 70, []),
    ):  # fmt: skip
        made.clear()
        built.record(50, named, mark=mark)
        cut = built.control.latest_cut("silver")
        assert cut is not None
        views.at(tree, cut)
        assert sorted(made) == expected
    made.clear()
    for _ in range(2):
        views.at(tree, Cut("silver", Lsn(50), None, dict.fromkeys(ids, 0), ids=ids))
    assert sorted(made) == sorted(2 * both), "a cut without marks identifies no rows"


def test_commit_during_build_is_never_named(built: Built) -> None:
    build = DocumentBuild.__new__(DocumentBuild)
    build.document, build.table = built.document, built.standing().table
    cut, run = built.control.latest_cut("silver"), Run("gold", "lines", "none", Lsn(20), Lsn(30))
    assert cut is not None
    assert build._committed(cut, run, 1) == 1
    others_wrote(built)
    with pytest.raises(ForeignCommitError, match=r"another program made version 2 \(UPDATE\) of gold.lines"):
        build._committed(cut, run, 1)


def another_definition(built: Built) -> None:
    shutil.rmtree(built.lake.uri("gold", "lines"))
    built.write_gold(20, "e")


def put_back(built: Built) -> None:
    shutil.rmtree(built.lake.uri("gold", "lines"))
    built.write_gold(10)
    built.control.record_cut(Cut("gold", Lsn(20), None, {"lines": 7}))


def others_wrote(built: Built) -> None:
    """A cut without marks excuses no change: gold has always set a mark in each commit of its documents."""
    DeltaTable(built.lake.uri("gold", "lines")).update({"id": "id + 1"})


def long_ago(built: Built) -> None:
    for _ in range(5):
        built.run({})


@pytest.mark.parametrize(
    "what",
    [
        changed_rows, other_type, other_key, other_text, other_spark, unknown_spark, no_table,
        no_silver_table, made_anew, another_definition, put_back, others_wrote,
        long_ago,
    ],
    ids=lambda what: what.__name__,
)  # fmt: skip
def test_whatever_is_not_sure_is_left_to_spark(built: Built, what: Callable[[Built], None]) -> None:
    what(built)
    last = built.control.latest_cut("gold")
    with pytest.raises(ConfigurationError, match="Spark was started"):
        built.cycle()
    assert built.starts == 1
    assert built.control.open_errors() == [], "it is no document's failure"
    assert built.control.latest_cut("gold") == last


def test_invalid_document_is_reported_without_spark(built: Built) -> None:
    built.text = LINES.replace("sku", "skew")
    assert built.cycle() is not None, "the cut leaves it out"
    (error,) = built.control.open_errors()
    assert (error.name, error.code) == ("lines", "document-invalid")
    assert built.starts == 0


def test_document_with_removed_table_leaves_cuts(built: Built) -> None:
    standing = built.standing()
    assert standing.written_by_others(standing.table.state()) is None
    assert [cut.tables for cut in built.control.cuts("gold")] == [{"lines": 1}]
    shutil.rmtree(built.lake.uri("gold", "lines"))
    assert standing.written_by_others(standing.table.state()) is None
    assert [cut.tables for cut in built.control.cuts("gold")] == [{}]
