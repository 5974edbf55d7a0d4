"""Progress of a snapshot, and dangers to the slot, reported in words before the slot is lost."""

from __future__ import annotations

import dataclasses
import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.control import Cut, Run
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.notes import StoredNote
from deltasmelt.bronze.lake.place import in_store
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.progress import Progress, snapshot_view
from deltasmelt.bronze.setup.slot import SlotState
from deltasmelt.pipelines.health.status import Status, slot_warnings
from deltasmelt.pipelines.runtime.progress_text import ProgressReporter, snapshot_text
from deltasmelt.pipelines.runtime.reader_progress import NOTE, read_progress, write_progress
from deltasmelt.pipelines.terminal.output import Output
from tests.object_store import Faults, object_store
from tests.patience import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.object_store import ObjectStore

OBJECT = f"_control/{NOTE}"

SLOT = SlotState("s", "pgoutput", Lsn(1), None, "extended", 1000)
STATUS = Status("p", "s", None, "l", None, (), SLOT, None, None, (), (), ())


def test_time_left_counts_tables_in_progress() -> None:
    progress = Progress()
    progress.copying("public.big", 1000, 4)
    progress.copying("public.small", 0, 2)
    progress.copied("public.big", 500, 4096)
    progress.chunk_copied("public.small")
    snapshots = progress.read()["snapshots"]
    view = snapshot_view(snapshots, snapshots["public.big"]["started"] + 30)
    assert view is not None
    assert (view.rows, view.bytes, view.tables) == (500, 4096, ("public.big", "public.small"))
    assert view.fraction == pytest.approx(0.5, abs=0.01)
    assert view.seconds_left == pytest.approx(30, abs=1)
    assert snapshot_text(view).startswith("snapshot: 500 rows, 4.1 kB, 50%, about 30")
    progress.copy_done("public.small")
    progress.copy_done("public.big")
    assert snapshot_view(progress.read()["snapshots"], time.time()) is None


def test_failed_copy_is_inactive_and_end_reported_once() -> None:
    progress = Progress()
    for name in ("good", "bad", "lost"):
        progress.copying(f"public.{name}", 1000)
        progress.copied(f"public.{name}", 500)
    progress.copy_failed("public.bad")
    view = snapshot_view(progress.report()["snapshots"], time.time())
    assert view is not None
    assert (view.tables, view.rows) == (("public.good", "public.lost"), 1000)
    progress.copy_done("public.good")
    assert len(progress.report()["snapshots"]) == 3, "of one round"
    progress.copies_ended()
    report = progress.report()
    assert snapshot_view(report["snapshots"], time.time()) is None
    assert {name: state["failed"] for name, state in report["snapshots"].items()} == {
        "public.good": False, "public.bad": True, "public.lost": True,
    }  # fmt: skip
    assert progress.report()["snapshots"] == {}
    assert progress.report()["copied"] == 1500
    progress.copying("public.bad", 1000)
    assert list(progress.report()["snapshots"]) == ["public.bad"], "it is tried again"


@pytest.mark.parametrize("overtaken", [False, True])
def test_end_of_snapshot_is_reported_at_once(capsys: pytest.CaptureFixture[str], *, overtaken: bool) -> None:
    progress, lines = Progress(), ProgressReporter(Output())
    progress.copying("public.a", 1000)
    progress.copied("public.a", 500, 4096)
    lines.reader(progress.report())
    progress.copy_done("public.a")
    if overtaken:
        progress.report()
    lines.reader(progress.report())
    lines.reader(progress.report())
    first, last = capsys.readouterr().err.splitlines()
    assert "not complete yet: public.a" in first
    assert last.endswith("bronze snapshot complete: 1 table, 500 rows, 4.1 kB")


def test_snapshot_of_dead_reader_is_not_complete(capsys: pytest.CaptureFixture[str]) -> None:
    progress, lines = Progress(), ProgressReporter(Output())
    progress.copying("public.a", 1000)
    progress.copied("public.a", 500, 4096)
    lines.reader(progress.report())
    lines.reader(Progress().report())
    assert "snapshot complete" not in capsys.readouterr().err


def test_terminal_shows_snapshot_in_moving_line(capsys: pytest.CaptureFixture[str]) -> None:
    moved: list[str] = []
    progress, lines = Progress(), ProgressReporter(Output(), moved.append)
    progress.copying("public.a", 1000)
    for _ in range(2):
        progress.copied("public.a", 100)
        lines.reader(progress.report())
    progress.copies_ended()
    lines.reader(progress.report())
    assert [text[:26] for text in moved] == [
        "bronze snapshot: 100 rows,",
        "bronze snapshot: 200 rows,",
        "running",
    ]
    assert capsys.readouterr().err == "", "a snapshot that failed is not complete"


def test_end_of_a_wait_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    progress, lines = Progress(), ProgressReporter(Output())
    progress.set(phase="waiting", said="the server ended the replication stream")
    lines.reader(progress.report())
    progress.connected(Lsn(1))
    lines.reader(progress.report())
    lines.reader(progress.report())
    waits, again = capsys.readouterr().err.splitlines()
    assert waits.endswith("bronze waits: the server ended the replication stream")
    assert again.endswith("bronze continues: the stream is open again")


def test_counts_agree_with_their_nouns(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ProgressReporter(Output())
    for changes in (1, 2000):
        run = Run("silver", "t", "incremental", None, Lsn(1), changes=changes, seconds=1.0)
        lines.cut(Cut("silver", Lsn(1), None, {}), [run])
    shown = capsys.readouterr().err
    assert ": 1 change in 1 table, 1.0 s" in shown
    assert ": 2,000 changes in 1 table, 1.0 s" in shown


def test_seconds_of_cut_span_its_tables(capsys: pytest.CaptureFixture[str]) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    runs = [
        Run("silver", f"t{late}", "snapshot", None, Lsn(1), changes=1, seconds=4.0,
            started_at=begin + timedelta(seconds=late))
        for late in (0, 3, 471)
    ]  # fmt: skip
    ProgressReporter(Output()).cut(Cut("silver", Lsn(1), None, {}), runs)
    assert ": 3 changes in 3 tables, 7 min 55 s" in capsys.readouterr().err


def test_long_fold_of_many_tables_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[str] = []
    on_terminal, lines = ProgressReporter(Output(), moved.append), ProgressReporter(Output())
    clock, copying = 1000.0, Progress()
    copying.copying("public.t", 1000)
    copying.copied("public.t", 10)
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    for done in (0, 1, 40, 41, 94):
        on_terminal.folding(done, 94)
        lines.folding(done, 94)
        on_terminal.reader(copying.report())
        clock += 4
    for reporter in (on_terminal, lines):
        reporter.folding(0, 0)
    shown = [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert shown == ["silver 40 of 94 tables", "silver 94 of 94 tables"]
    assert moved == [f"silver {done} of 94 tables" for done in (0, 1, 40, 41, 94)] + ["running"]


def test_snapshot_names_few_tables() -> None:
    progress = Progress()
    for number in range(94):
        progress.copying(f"public.t{number:02}", 1000)
    view = snapshot_view(progress.read()["snapshots"], time.time())
    assert view is not None
    assert snapshot_text(view).endswith("not complete yet: public.t00, public.t01, public.t02 and 91 more")


def test_another_process_sees_it_while_it_is_fresh(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    progress = Progress()
    progress.copying("public.t", 10)
    progress.copied("public.t", 5)
    write_progress(lake, progress.read())
    assert read_progress(lake) is None  # there is no lake yet, and none is made for this
    (tmp_path / ".locks").mkdir()
    write_progress(lake, progress.read())
    view = read_progress(lake)
    assert view is not None
    assert (view.rows, view.tables) == (5, ("public.t",))
    path = tmp_path / ".locks" / "progress.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "at": time.time() - 60}))
    assert read_progress(lake) is None


@pytest.mark.process
def test_object_store_progress_is_occasionally_written_object() -> None:
    progress = Progress()
    progress.copying("public.t", 10)
    with object_store() as store:
        lake = Lake(in_store("s3://lake/progress", store.options()))
        assert read_progress(lake) is None
        for _ in range(20):
            progress.copied("public.t", 1)
            write_progress(lake, progress.read())
        wait_for(lambda: read_progress(lake) is not None)
        view = read_progress(lake)
        assert view is not None
        assert view.tables == ("public.t",)
        puts = store.requests("PUT", f"/lake/progress/{OBJECT}")
        assert len(puts) == 1
        assert puts[0].condition == ""
        content = {"at": time.time() - 60, "snapshots": progress.read()["snapshots"]}
        objects.replace(lake.root, OBJECT, json.dumps(content).encode())
        assert read_progress(lake) is None, "of a reader that is gone"
    assert read_progress(lake) is None, "a store that is away is no reason to end"


@pytest.mark.process
def test_newest_progress_reaches_slow_store_without_blocking(store: ObjectStore, place: str) -> None:
    root = place
    stored = StoredNote(root, NOTE, interval=0.1)
    store.set_faults(Faults(latency=0.3))
    start = time.monotonic()
    for number in range(100):
        stored.write(str(number).encode())
    assert time.monotonic() - start < 0.2
    store.set_faults()
    wait_for(lambda: (body_stored := objects.read(root, OBJECT)) is not None and body_stored.body == b"99")


def test_slot_danger_is_reported_before_loss() -> None:
    assert slot_warnings(STATUS) == []
    (soon,) = slot_warnings(dataclasses.replace(STATUS, slot_seconds_left=30.0))
    assert "lost in 30 s" in soon
    assert "max_slot_wal_keep_size" in soon
    unreserved = dataclasses.replace(STATUS, slot=dataclasses.replace(SLOT, wal_status="unreserved"))
    assert "next checkpoint" in slot_warnings(unreserved)[0]
    lost = dataclasses.replace(STATUS, slot=dataclasses.replace(SLOT, wal_status="lost"))
    assert slot_warnings(lost) == []
