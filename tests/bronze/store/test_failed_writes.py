"""A failed write ends its session: no commit refers to missing rows."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from deltasmelt.bronze.config.sections import BronzeSettings
from deltasmelt.bronze.effects import Effect, guarded
from deltasmelt.bronze.errors import DefiniteError, TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import parquet
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.parquet import PartWriter, UnusableWriterError
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.pgoutput.decoder import StreamDecoder
from deltasmelt.bronze.store.contract import CHANGES_SCHEMA, ROWS_SCHEMA
from deltasmelt.bronze.store.gaps import healed_at, is_whole
from deltasmelt.bronze.store.landing import Landing
from deltasmelt.bronze.store.position import read_position
from deltasmelt.bronze.store.relations import ShapeLog
from deltasmelt.bronze.store.sink import DeltaSink
from deltasmelt.bronze.stream.session import InOrder, RefusedError, StreamSession
from tests.bronze.faults import Fault, Faults
from tests.bronze.store.test_sink import at, contents, open_sink, rows
from tests.bronze.written_log import (
    IDENTITY,
    Process,
    ScriptedReceiver,
    Server,
    no_catalog,
    selected,
    transaction,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltasmelt.bronze.stream.receiver import Batch, Receiver

T = TableName("public", "t")
LOG = [transaction(100, 3), transaction(200, 3), transaction(300, 3)]
EVERY_ROW = [(lsn, seq) for lsn in (100, 200, 300) for seq in range(3)]


def stream_of(
    server: Server, sink: DeltaSink, of: type[ScriptedReceiver] = ScriptedReceiver, **pace: float
) -> StreamSession:
    position = sink.position
    assert position is not None
    shapes = ShapeLog(sink.relations(), sink.add_relations)
    return StreamSession(
        cast("Receiver", of(server, position.confirm)),
        StreamDecoder(no_catalog, selected, shapes.until(position.frontier)),
        position,
        Landing(sink, shapes, resnapshots=False),
        BronzeSettings(**{"flush_interval": 1e-6, "heartbeat": 1e-6, **pace}),
    )


def run_until_it_fails(stream: StreamSession, *, steps: int = 20) -> TransientError:
    """Step like the reader, and close after a failed step."""
    try:
        with pytest.raises(TransientError) as caught:
            step_to_the_end(stream, steps)
    finally:
        stream.close()
    return caught.value


def step_to_the_end(stream: StreamSession, steps: int, pause: float = 0.0) -> None:
    for _ in range(steps):
        stream.step(patience=0)
        time.sleep(pause)
    stream.finish()


def assert_nothing_is_lost(server: Server, lake_path: str) -> None:
    """Check that bronze has all confirmed rows, and that another session brings the rest."""
    position = read_position(Lake(lake_path))
    assert position is not None
    assert server.confirmed <= position.confirm
    stored = {row for row in EVERY_ROW if row[0] <= position.frontier}
    assert stored <= set(contents(lake_path))
    Process(server, lake_path).run(sessions=1)
    assert [row for row in contents(lake_path) if row[0] != 150] == EVERY_ROW


@pytest.fixture
def sink(lake_path: str) -> DeltaSink:
    sink_made = DeltaSink(Lake(lake_path), "shop", IDENTITY)
    sink_made.commit(at(49))
    return sink_made


@pytest.mark.parametrize("door", [Effect.OPEN_PART, Effect.WRITE_PART, Effect.CLOSE_PART, Effect.FLUSH])
@pytest.mark.parametrize("when", ["before", "after"])
def test_failed_write_is_followed_by_no_commit(
    sink: DeltaSink, lake_path: str, door: Effect, when: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "deltasmelt.bronze.stream.session._PENDING_WRITES", 50
    )  # everything is handed over before one has ended
    server = Server(LOG)
    stream = stream_of(server, sink)
    faults = Faults(Fault(door, 1, when, "bronze/changes/stream-"))
    with guarded(faults):
        error = run_until_it_fails(stream)
    assert error.code == "lake-unwritable"
    assert len(faults.failed) == 1
    assert contents(lake_path) == []
    assert server.confirmed == 50
    assert_nothing_is_lost(server, lake_path)


def test_write_failing_mid_file_leaves_no_nameable_file(
    sink: DeltaSink, lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The store takes a part of the bytes: Arrow's file has rows and no footer that says where.
    class Filling:
        def __init__(self, file: Any) -> None:
            self._file = file
            self._left = 400

        def write(self, data: Any) -> int:
            self._left -= len(data)
            if self._left < 0:
                raise OSError(28, "No space left on device")
            return int(self._file.write(data))

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    class FillingSystem:
        def __init__(self, system: Any) -> None:
            self._system = system

        def open_output_stream(self, name: str) -> Any:
            return pa.PythonFile(Filling(self._system.open_output_stream(name)), "w")

        def __getattr__(self, name: str) -> Any:
            return getattr(self._system, name)

    of = parquet.file_system
    with monkeypatch.context() as patch:
        patch.setattr(
            "deltasmelt.bronze.lake.parquet.file_system",
            lambda uri: FillingSystem(of(uri)) if uri.endswith("changes") else of(uri),
        )
        sink.discard()
        server = Server(LOG)
        error = run_until_it_fails(stream_of(server, sink))
    assert "No space left" in error.message
    assert contents(lake_path) == []
    assert server.confirmed == 50
    assert not list(Path(lake_path, "bronze/changes").glob("*.parquet"))
    assert_nothing_is_lost(server, lake_path)


def test_marks_behind_failed_commit_are_not_committed(
    sink: DeltaSink, lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Or a step would wait for the hanging commit, where the writer is slow and each transaction is a commit.
    monkeypatch.setattr("deltasmelt.bronze.stream.session._PENDING_WRITES", 50)
    server = Server(LOG)
    hanging, go_on = threading.Event(), threading.Event()

    def hang(door: Effect, where: str, effect: Callable[[], Any]) -> Any:
        if door is Effect.COMMIT and "bronze/changes" in where and not hanging.is_set():
            hanging.set()
            assert go_on.wait(30)
            raise OSError(5, "the store answered at last, and said no")
        return effect()

    class HoldingBack(ScriptedReceiver):
        def take(self, *, most: int, timeout: float) -> Batch | None:
            if not hanging.is_set() and self._batches and self._batches[0].keepalive is not None:
                return None
            return super().take(most=most, timeout=timeout)

    stream = stream_of(server, sink, HoldingBack, flush_interval=0.01, heartbeat=0.02)
    with guarded(hang):
        try:
            while not hanging.is_set():
                stream.step(patience=0)
            for _ in range(10):  # the keepalive's marks become due meanwhile
                time.sleep(0.01)
                stream.step(patience=0)
            go_on.set()
            with pytest.raises(TransientError):
                step_to_the_end(stream, 1000, pause=0.005)
        finally:
            go_on.set()
            stream.close()
    assert server.confirmed == 50
    assert_nothing_is_lost(server, lake_path)


def test_after_a_task_that_failed_none_is_run() -> None:
    tasks_run: list[str] = []

    def fail() -> None:
        time.sleep(0.05)
        raise OSError("full")

    tasks = InOrder("test", pending=5)
    for task in (lambda: tasks_run.append("first"), fail, lambda: tasks_run.append("second")):
        tasks.submit(task)
    with pytest.raises(OSError, match="full"):
        tasks.finish()
    with pytest.raises(RefusedError):
        tasks.finish()
    tasks.submit(lambda: tasks_run.append("third"))
    with pytest.raises(RefusedError):
        tasks.finish()
    tasks.close()
    assert tasks_run == ["first"]


def write_by_twenty(writer: PartWriter, table: pa.Table) -> None:
    for start in range(0, table.num_rows, 20):
        writer.write(table.slice(start, 20))


@pytest.mark.parametrize("door", [Effect.OPEN_PART, Effect.WRITE_PART, Effect.CLOSE_PART, Effect.FLUSH])
def test_failed_file_writer_is_unusable_and_leaves_nothing(
    tmp_path: Path, door: Effect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltasmelt.bronze.lake.parquet.FILE_BYTES", 3_000)
    writer = PartWriter(str(tmp_path), "stream", schema=CHANGES_SCHEMA)
    table = pa.concat_tables([rows(1, 20)] * 10)
    with guarded(Faults(Fault(door, 2, "after"))), pytest.raises(OSError, match="injected"):
        write_by_twenty(writer, table)
    for call in (lambda: writer.write(rows(1, 1)), writer.finish):
        with pytest.raises(UnusableWriterError):
            call()
    assert list(tmp_path.iterdir()) == []


def test_sink_rejects_work_between_failed_commit_and_session(lake_path: str) -> None:
    """After a failed commit the sink accepts nothing until the next session."""
    sink = open_sink(lake_path)
    sink.write(rows(10, 1))
    with guarded(Faults(Fault(Effect.COMMIT, 1, "before"))), pytest.raises(TransientError):
        sink.commit(at(10))
    for call in (lambda: sink.commit(at(11)), lambda: sink.write(rows(11, 1))):
        with pytest.raises(TransientError):
            call()
    assert read_position(Lake(lake_path)) is None
    sink.discard()
    sink.write(rows(10, 1))
    sink.commit(at(10))
    assert contents(lake_path) == [(10, 0)]
    assert len(list(Path(lake_path, "bronze/changes").glob("stream-*"))) == 1


def test_commit_with_lost_answer_keeps_files(lake_path: str) -> None:
    sink = open_sink(lake_path)
    sink.write(rows(10, 1))
    with guarded(Faults(Fault(Effect.COMMIT, 1, "after"))), pytest.raises(TransientError):
        sink.commit(at(10))
    sink.discard()
    position = sink.position
    assert position is not None
    assert position.frontier == Lsn(10)
    sink.write(rows(11, 1))
    sink.commit(at(11))
    assert contents(lake_path) == [(10, 0), (11, 0)]


@pytest.mark.parametrize(
    "unseen",
    [Fault(Effect.REFRESH, 2, "before"), Fault(Effect.COMMIT, 1, "after")],
    ids=["came about and not seen", "answer lost"],
)
def test_stream_continues_after_applied_snapshot_commit(lake_path: str, unseen: Fault) -> None:
    """Found by seed 1 of `test_reader_faults`: Delta refused the stream because of the reader's own entry."""
    sink = open_sink(lake_path)
    sink.claim()
    sink.write(rows(10, 1))
    faults = Faults(unseen)
    with guarded(faults), pytest.raises(TransientError):
        sink.tables.commit_snapshot(T, Lsn(5), [])
    assert faults.failed
    sink.commit(at(10))
    assert contents(lake_path) == [(10, 0)]
    assert open_sink(lake_path).tables.snapshots([T]) == {T: Lsn(5)}


class Late:
    """A guard that gives up the first commit, and lets it succeed during the next."""

    def __init__(self) -> None:
        self._given_up: Callable[[], Any] | None = None
        self.came_about = False

    def __call__(self, door: Effect, where: str, effect: Callable[[], Any]) -> Any:
        if door is not Effect.COMMIT or self.came_about:
            return effect()
        if self._given_up is None:
            self._given_up = effect
            raise OSError(errno.ETIMEDOUT, "no answer", where)
        self._given_up()
        self.came_about = True
        return effect()


def test_late_commit_is_adopted_during_next_attempt(lake_path: str) -> None:
    sink = open_sink(lake_path)
    sink.claim()
    sink.write(rows(10, 1))
    late = Late()
    with guarded(late):
        with pytest.raises(TransientError):
            sink.commit(at(10))
        sink.discard()
        before = sink.position
        sink.write(pa.concat_tables([rows(10, 1), rows(20, 1)]))
        with pytest.raises(TransientError, match="had abandoned became visible"):
            sink.commit(at(20))
        assert late.came_about
        sink.discard()
        position = sink.position
        assert (before, position and position.frontier) == (None, Lsn(10))
        sink.write(rows(20, 1))
        sink.commit(at(20))
    assert contents(lake_path) == [(10, 0), (20, 0)]
    assert len(list(Path(lake_path, "bronze/changes").glob("stream-*"))) == 2


def test_replaced_reader_is_rejected_after_unseen_own_commit(lake_path: str) -> None:
    sink = open_sink(lake_path)
    sink.claim()
    with guarded(Faults(Fault(Effect.COMMIT, 1, "before"))), pytest.raises(TransientError):
        sink.tables.commit_snapshot(T, Lsn(5), [])
    open_sink(lake_path).claim()
    sink.write(rows(10, 1))
    with pytest.raises(DefiniteError) as caught:
        sink.commit(at(10))
    assert caught.value.code == "lake-in-use"
    assert contents(lake_path) == []


def test_gap_opened_just_before_snapshot_commit_heals(
    sink: DeltaSink, lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, commit = f"{lake_path}/bronze/changes", sink._changes.commit

    def stream_is_first(*of: Any, **more: Any) -> int:
        sink.tables.open_gaps([T], Lsn(200))
        return commit(*of, **more)

    monkeypatch.setattr(sink._changes, "commit", stream_is_first)
    sink.tables.commit_snapshot(T, Lsn(250), [])
    assert healed_at(open_existing(uri), T) == Lsn(250)
    monkeypatch.undo()
    sink.tables.commit_snapshot(T, Lsn(400), [])
    assert is_whole(open_existing(uri), T, Lsn(300))


def test_files_of_unattempted_snapshot_commit_are_removed(sink: DeltaSink, lake_path: str) -> None:
    writer = sink.parts("snapshot-7")
    writer.write(rows(500, 2).cast(ROWS_SCHEMA))
    parts = writer.finish()
    [file] = [Path(lake_path, "bronze", "changes", part.path) for part in parts]
    with guarded(Faults(Fault(Effect.REFRESH, 1, "before"))), pytest.raises(TransientError):
        sink.tables.commit_snapshot(T, Lsn(500), parts)
    assert file.exists()
    sink.tables.commit_snapshot(T, Lsn(501), [])
    assert not file.exists()
