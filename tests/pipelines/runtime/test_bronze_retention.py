"""`bronze.retention` from decision to removal: what holds, what is rebuilt, and what is past the boundary."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from deltasmelt.bronze import backoff
from deltasmelt.bronze.lake.client import Transaction
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.parquet import PartWriter
from deltasmelt.bronze.lsn import LAST, Lsn
from deltasmelt.bronze.store.changes_table import commit_changes
from deltasmelt.bronze.store.contract import CHANGES_SCHEMA, MEASURED
from deltasmelt.bronze.store.gaps import is_whole
from deltasmelt.bronze.store.marks import CONFIRM_APP, STREAM_APP, kept_from, renewed_app
from deltasmelt.bronze.store.retention import files_of, keep_from, wants_renewal
from deltasmelt.pipelines.commands.maintain import retention_lines
from deltasmelt.pipelines.commands.rebuild import rebuild_silver
from deltasmelt.pipelines.commands.status import show_status
from deltasmelt.pipelines.health.check import run_check
from deltasmelt.pipelines.health.status import StatusReader
from deltasmelt.pipelines.health.status_json import plain_status
from deltasmelt.pipelines.quality.change_log import check_log, of_log
from deltasmelt.pipelines.quality.cut import quality_cut
from deltasmelt.pipelines.runtime.retention import BronzeRetention, boundary_lines, decide_at_end
from deltasmelt.pipelines.runtime.stages import maintenance
from deltasmelt.pipelines.spark.lake_sql import LakeSql
from deltasmelt.pipelines.terminal.output import Output
from deltasmelt.silver.cycle import Silver
from tests.bronze.store.test_sink import at, open_sink
from tests.pipelines.runtime.test_maintenance import pipeline_of
from tests.silver.histories import INT, START, TEXT, BronzeWriter, insert, relation, update
from tests.silver.stored import cells_at

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.shapes import Relation

PLAIN = (("id", INT), ("note", TEXT))
ORDERS, PEOPLE = (
    relation(name, PLAIN, ["id"], relation_id=number) for number, name in enumerate(["orders", "people"], 1)
)
SHAPES = [ORDERS, PEOPLE]
KEPT = "bronze: {retention: 90d}\nsilver: {history: [public.people]}\n"
KEYS = KEPT.replace("90d", "90d, renew: 1GB")
NAMES = ("orders", "people", "people__history")


class StreamedWriter(BronzeWriter):
    """Writes files with the names and statistics of the reader's files."""

    def renew(self, shape: Relation, lsn: int, rows: list[list[str | None]]) -> None:
        """Add a snapshot that only renews the base."""
        self.snapshot(shape, lsn, rows)
        self._snapshots[-1] = Transaction(renewed_app(shape.table), lsn)

    def commit(self, frontier: int) -> None:
        for row in self._rows:
            row["ingested_at"] = START - (100 - row["commit_lsn"]) * timedelta(days=91)
        parts = PartWriter(self._changes, "stream", schema=CHANGES_SCHEMA, measured=MEASURED)
        parts.write(pa.Table.from_pylist(self._rows, schema=CHANGES_SCHEMA))
        marks = [Transaction(STREAM_APP, frontier), Transaction(CONFIRM_APP, frontier + 1), *self._snapshots]
        commit_changes(open_existing(self._changes), parts.finish(), marks)
        self._rows, self._snapshots = [], []


class World:
    """Two tables, of which `people` has a history; silver runs in the session of all tests."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.pipeline = pipeline_of(str(path), KEYS)
        self.spark, self.path, self.lake = spark, path, self.pipeline.lake_address()
        self.control = ControlTables(self.lake)
        self.bronze = StreamedWriter(self.lake)
        self.silver = Silver(spark, self.lake, self.pipeline.silver, self.control)
        self.retention = BronzeRetention(self.pipeline, self.control)
        self.bronze.relations(SHAPES)

    def changes(self) -> Any:
        return open_existing(self.lake.uri("bronze", "changes"))

    def cycle(self, lsn: int) -> None:
        self.bronze.commit(lsn)
        self.silver.cycle()

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        columns = "id, note, _commit_lsn"
        return {
            name: cells_at(self.spark, self.lake, name, columns + (", _valid_to_lsn" if "__" in name else ""))
            for name in NAMES
        }

    def remove(self, frontier: int) -> None:
        open_sink(str(self.path), "p").commit(at(frontier))


@pytest.mark.spark
def test_base_holds_until_renewed_then_old_goes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.0)
    world = World(spark, tmp_path)
    for shape in SHAPES:
        world.bronze.snapshot(shape, 10, [["1", "a"]])
    world.bronze.commit(20)
    world.bronze.add(
        31, [*(insert(shape, "2", "b") for shape in (ORDERS, PEOPLE)), update(PEOPLE, "1", "a2")]
    )
    world.cycle(40)
    for name in NAMES:
        shutil.copytree(world.lake.uri("silver", name), tmp_path / "backup" / name)
    snapshots_hold_until_silver_has_newer(world)
    before, count = world.rows(), len(world.changes().paths())
    status = StatusReader(world.pipeline).read()
    assert plain_status(status)["retention"]["kept_from"] == "0/2D"
    world.remove(75)
    assert len(world.changes().paths()) == count - 3
    everything_after_boundary_is_there(world, before)
    older_copy_of_silver_loses_nothing_silently(world)
    world.silver.close()


def snapshots_hold_until_silver_has_newer(world: World) -> None:
    bronze = world.bronze
    decided = world.retention.decide()
    assert decided is not None
    assert decided.lsn == 10
    assert [holder.name for holder in decided.holders] == ["public.orders", "public.people"]
    assert decided.held_bytes == decided.holders[0].bytes > 0
    assert "public.orders holds" in "\n".join(boundary_lines(decided))
    # Each may be copied again, within the budget, and stays in all cuts.
    assert all(wants_renewal(world.changes(), shape.table) for shape in SHAPES)
    assert all(is_whole(world.changes(), shape.table, LAST) for shape in SHAPES)
    world.retention = BronzeRetention(pipeline_of(str(world.path), KEPT), world.control)

    bronze.add(41, [update(PEOPLE, "1", "a3"), insert(ORDERS, "3", "c")])
    bronze.commit(43)
    bronze.add(44, [update(ORDERS, "1", "a")])
    bronze.renew(ORDERS, 45, [["1", "a"], ["2", "b"], ["3", "c"]])
    bronze.renew(PEOPLE, 45, [["1", "a3"], ["2", "b"]])
    bronze.commit(50)
    decided = world.retention.decide()  # silver has not loaded the snapshots
    assert decided is not None
    assert {(holder.kind, holder.lsn) for holder in decided.holders} == {("silver", 41)}
    assert decided.lsn == 41
    # A history that a cut names holds, also without its name in this pipeline file.
    plain = BronzeRetention(pipeline_of(str(world.path), "bronze: {retention: 90d}\n"), world.control)
    assert plain.boundary(world.changes(), SHAPES, datetime.now(UTC)).holders == decided.holders
    assert "silver.people__history" in {holder.name for holder in decided.holders}
    for lsn in (51, 61):
        bronze.add(lsn, [update(PEOPLE, "2", f"b{lsn}")])
        bronze.commit(lsn + 9)
    world.silver.cycle()
    kept = pipeline_of(str(world.path), KEPT)
    work = maintenance(world.spark, kept, world.control, ("silver",))
    with patch.object(work, "_tables", list):  # the decision alone
        assert list(work.all_tables()) == []
    assert work.failed == {}
    assert kept_from(world.changes()) == 45


def everything_after_boundary_is_there(world: World, before: dict[str, list[tuple[Any, ...]]]) -> None:
    spark, lake = world.spark, world.lake
    (oldest,) = spark.sql(f"SELECT min(commit_lsn) AS lsn FROM {lake.sql('bronze', 'changes')}").collect()
    assert oldest["lsn"] == 44  # the file of the snapshots stays whole
    assert rebuild_silver(spark, world.pipeline, [shape.table for shape in SHAPES], Output()) == []
    assert world.rows() == before
    read = LakeSql(spark.newSession(), world.pipeline)
    assert read.query("SELECT min(commit_lsn) AS lsn FROM bronze.changes").collect()[0]["lsn"] == 45
    assert read.kept_from == 45
    cut = quality_cut(lake, world.control, with_gold=False, where="p")
    log = next(table for table in cut.tables if table.qualified == "bronze.changes")
    assert all(result.success for result in check_log(of_log(), cut.frame(spark, lake, log), 5))


def older_copy_of_silver_loses_nothing_silently(world: World) -> None:
    """The plain table continues from the snapshot, and the history stops."""
    spark, lake, control = world.spark, world.lake, world.control
    for name in NAMES:
        shutil.rmtree(lake.uri("silver", name))
        shutil.copytree(world.path / "backup" / name, lake.uri("silver", name))
    world.bronze.add(81, [insert(ORDERS, "4", "d")])
    world.cycle(90)
    (error,) = control.open_errors()
    assert (error.code, error.name) == ("changes-removed", "public.people")
    assert "smelt rebuild FILE silver public.people" in str(error.remedy)
    newest = control.latest_cut("silver")
    assert newest is not None
    assert set(newest.tables) == {"orders", "people"}  # the history alone stops
    world.bronze.add(91, [insert(PEOPLE, "9", "i")])
    world.cycle(95)
    assert control.open_errors() == [error]
    assert cells_at(spark, lake, "people", "id") == [(1,), (2,), (9,)]
    assert cells_at(spark, lake, "orders", "id") == [(1,), (2,), (3,), (4,)]
    stopped_history_holds_nothing(world)
    assert rebuild_silver(spark, world.pipeline, [PEOPLE.table], Output()) == []
    assert control.open_errors() == []
    decided = world.retention.decide()
    assert decided is not None
    assert decided.behind == ()
    assert cells_at(spark, lake, "people__history", "id, note, _valid_to_lsn")[-1] == (9, "i", None)


def stopped_history_holds_nothing(world: World) -> None:
    """The boundary moves on with newer snapshots; status and check name the history."""
    world.bronze.renew(ORDERS, 97, [["1", "a"], ["2", "b"], ["3", "c"], ["4", "d"]])
    world.bronze.renew(PEOPLE, 97, [["1", "a3"], ["2", "b61"], ["9", "i"]])
    world.bronze.add(98, [insert(ORDERS, "5", "e")])
    world.cycle(99)
    decided = world.retention.decide()
    assert decided is not None
    assert (decided.lsn, kept_from(world.changes())) == (97, 97)
    assert [(need.name, need.first) for need in decided.behind] == [("silver.people__history", 41)]
    assert "silver.people__history needs the changes from 0/29 on" in "\n".join(boundary_lines(decided))
    shown = plain_status(StatusReader(world.pipeline).read())["retention"]["behind"]
    assert shown == [{"name": "silver.people__history", "first": "0/29", "kind": "silver"}]
    findings = run_check(world.pipeline, offline=True)
    (finding,) = [finding for finding in findings if finding.code == "changes-removed"]
    assert (finding.level, finding.subject) == ("error", "silver.people__history")


@pytest.mark.spark
def test_streaming_query_outlives_removal_with_ignore_deletes(spark: SparkSession, tmp_path: Path) -> None:
    """Without the option it stops; with it, a query from before the removal still reads the removed files."""
    folder = tmp_path / "lake"
    folder.mkdir()
    lake = pipeline_of(str(folder), KEPT).lake_address()
    bronze = StreamedWriter(lake)
    bronze.relations([ORDERS])

    def change(lsn: int) -> None:
        bronze.add(lsn, [insert(ORDERS, str(lsn), "b")])
        bronze.commit(lsn)

    def follow(name: str, **options: str) -> list[int]:
        uri, place = str(lake.uri("bronze", "changes")), tmp_path / name
        stream = spark.readStream.format("delta").options(**options).load(uri).select("commit_lsn")
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(place / "state"))
        query = writer.option("path", str(place / "rows")).trigger(availableNow=True).start()
        query.awaitTermination()
        return sorted(row[0] for row in spark.read.parquet(str(place / "rows")).collect())

    for lsn in (31, 41):
        change(lsn)
    assert follow("plain") == follow("passing", ignoreDeletes="true") == [31, 41]
    behind = {"ignoreDeletes": "true", "startingVersion": "0"}
    keep_from(lake.uri("bronze", "changes"), Lsn(41))
    open_sink(str(folder), "p").commit(at(45))
    assert [file.last for file in files_of(open_existing(lake.uri("bronze", "changes")))] == [41]
    change(51)
    assert follow("passing", ignoreDeletes="true") == [31, 41, 51]
    assert follow("behind", **behind) == [31, 41, 51]
    assert follow("new", ignoreDeletes="true") == [41, 51]
    with pytest.raises(StreamingQueryException, match="ignoreDeletes"):
        follow("plain")


def test_status_and_maintain_name_what_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = pipeline_of(str(tmp_path), KEPT)
    bronze = StreamedWriter(pipeline.lake_address())
    bronze.relations(SHAPES)
    bronze.snapshot(ORDERS, 10, [["1", "a"]])
    for lsn in (31, 41):
        bronze.add(lsn, [insert(ORDERS, str(lsn), "b")])
        bronze.commit(lsn)
    show_status(pipeline, Output())
    shown = capsys.readouterr().out
    assert "bronze   keeps all changes so far" in shown
    assert "public.orders holds" in shown
    assert "its snapshot, or its first copy, begins at 0/A; smelt snapshot FILE public.orders" in shown
    lines = list(retention_lines(pipeline, ControlTables(pipeline.lake_address())))
    assert lines[0].startswith("bronze keeps all changes so far; ")
    assert "public.orders holds" in lines[1]
    decide_at_end(pipeline)  # after a run until caught up
    changes = open_existing(pipeline.lake_address().uri("bronze", "changes"))
    assert kept_from(changes) == 10
    with patch.object(BronzeRetention, "boundary", side_effect=OSError("away")):
        decide_at_end(pipeline)
        assert StatusReader(pipeline).read().retention is None  # the rest of the status is there
    # A clock that is years ahead changes nothing: the newest change bounds the present time.
    decided = BronzeRetention(pipeline, ControlTables(pipeline.lake_address()))
    ahead = decided.boundary(changes, SHAPES, datetime(2100, 1, 1, tzinfo=UTC))
    assert ahead == decided.boundary(changes, SHAPES, datetime.now(UTC))


def test_table_with_error_is_not_renewed(tmp_path: Path) -> None:
    """The reader cannot copy such a table: it uses no budget, and stays in all cuts."""
    pipeline = pipeline_of(str(tmp_path), KEYS)
    control = ControlTables(pipeline.lake_address())
    bronze = StreamedWriter(pipeline.lake_address())
    bronze.relations(SHAPES)
    for shape in SHAPES:
        bronze.snapshot(shape, 10, [["1", "a"]])
    for lsn in (31, 41):
        bronze.add(lsn, [insert(ORDERS, str(lsn), "b")])
        bronze.commit(lsn)
    control.record_errors([OpenError("table", "public.orders", "table-privilege", "no SELECT", "grant")])

    def renewed() -> list[bool]:
        BronzeRetention(pipeline, control).decide()
        changes = open_existing(pipeline.lake_address().uri("bronze", "changes"))
        assert all(is_whole(changes, shape.table, LAST) for shape in SHAPES)
        return [wants_renewal(changes, shape.table) for shape in SHAPES]

    assert renewed() == [False, True]
    control.close_errors("table", "public.orders")
    assert renewed() == [True, True]


def test_growth_is_a_finding_without_retention(tmp_path: Path) -> None:
    pipeline = pipeline_of(str(tmp_path))
    bronze = StreamedWriter(pipeline.lake_address())
    bronze.relations(SHAPES)
    bronze.add(31, [insert(ORDERS, "2", "b")])
    bronze.commit(40)
    (finding,) = [found for found in run_check(pipeline, offline=True) if found.code == "bronze-grows"]
    assert finding.level == "info"
    assert "a day" in finding.message
    assert "after another year" in finding.message
    kept = pipeline_of(str(tmp_path), "bronze: {retention: 90d}\n")
    assert "bronze-grows" not in {found.code for found in run_check(kept, offline=True)}
