"""Test the reader's threads: stream, copies and watch, each at the worst moment for the others."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.config.sections import SnapshotSettings
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.errors import TableError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.reader.carried_tables import CarriedTables
from deltasmelt.bronze.reader.catalog_poll import CatalogPoll
from deltasmelt.bronze.reader.copies import SnapshotThread
from deltasmelt.bronze.reader.pipeline_errors import PipelineErrors
from deltasmelt.bronze.reader.table_errors import TableErrors, UnreadableTables
from deltasmelt.bronze.store.gaps import is_open
from deltasmelt.bronze.store.landing import Landing
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    current_lsn,
    execute,
    make_reader,
    read_all,
    source_of,
)
from tests.patience import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deltasmelt.bronze.config.sections import SourceSettings

A, B = TableName("public", "a"), TableName("public", "b")


def failed(table: TableName, code: str = "copy-failed") -> TableError:
    return TableError(table, "it cannot be copied", code=code)


class Control(ControlTables):
    """`control.errors` in memory.

    `meanwhile` is called once, between a read of the open errors and the reader's next step.
    """

    def __init__(self, *errors: OpenError, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.errors = list(errors)
        self.meanwhile = meanwhile

    def open_errors(self) -> list[OpenError]:
        listed = list(self.errors)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return listed

    def record_errors(self, errors: Sequence[OpenError]) -> None:
        keys = [open_error.key for open_error in self.errors]
        self.errors += [error for error in errors if error.key not in keys]

    def close_all(self, errors: Sequence[OpenError]) -> None:
        closed = [error.key for error in errors]
        self.errors = [open_error for open_error in self.errors if open_error.key not in closed]


def test_poll_keeps_error_of_concurrently_failing_copy() -> None:
    before = OpenError("table", str(B), "copy-failed", "of the process before")
    control = Control(before)
    errors = TableErrors(control, Timing())
    copies = threading.Thread(target=lambda: errors.copy_failed(failed(B), None))

    def fail() -> None:
        copies.start()
        copies.join(0.3)

    control.meanwhile = fail
    errors.record_poll({A: (), B: ()}, {B})
    copies.join()
    assert [(error.name, error.code) for error in control.errors] == [(str(B), "copy-failed")]


def test_requested_table_with_failing_copy_is_retried_immediately() -> None:
    control = Control()
    errors = TableErrors(control, Timing())
    errors.copy_failed(failed(B), Lsn(10))
    assert not errors.may_be_tried(B, Lsn(10), by_stream=False)
    assert errors.may_be_tried(B, Lsn(20), by_stream=False)
    assert not errors.may_be_tried(B, Lsn(20), by_stream=True), "its gap would be opened by each copy"


def test_request_of_stream_permits_later_request_of_person(database: str) -> None:
    control = Control()
    nothing: Any = None
    errors = TableErrors(control, Timing())
    tables = CarriedTables(source_of(database), nothing, errors, nothing)

    def due(mark: int) -> bool:
        return tables._may_be_tried(A, {A: Lsn(mark)}, tables._requests, tables.newest)

    errors.copy_failed(failed(A), Lsn(10))
    tables.request([A])  # with a mark at 20
    assert not due(20)
    tables._newest = CatalogPoll(request_count=tables.request_count)
    assert not due(20), "the stream's mark is not taken for a person's by the look after"
    tables.request([B])
    assert due(30)
    tables.request([A])
    assert not due(30)
    tables._newest = CatalogPoll(request_count=tables.request_count)
    errors.copy_failed(failed(A), Lsn(20))  # begun before that mark was set
    assert not due(30)


def test_tables_are_omitted_during_poll_of_omissions() -> None:
    unreadable = UnreadableTables(Timing())
    ended = threading.Event()

    def leave_out() -> None:
        for number in range(3000):
            assert unreadable.add(TableName("public", f"t{number}"), Lsn(1), KeyError("odd"))
        ended.set()

    stream = threading.Thread(target=leave_out)
    stream.start()
    while not ended.is_set():
        unreadable.errors()
        unreadable.release({TableName("public", f"t{number}") for number in range(3000)}, {})
    stream.join()
    assert len(unreadable.errors()) == 3000


@pytest.fixture
def copies(database: str) -> SnapshotThread:
    """Return the copies of a pipeline whose threads the test simulates."""
    shapes: Any = SimpleNamespace(unknown_columns=dict)
    nothing: Any = None
    landing = Landing(nothing, shapes)
    errors = PipelineErrors(Lake(""), "shop", nothing)
    return SnapshotThread(source_of(database), SnapshotSettings(), landing, nothing, errors)


def set_poll(copies: SnapshotThread, **found: Any) -> CatalogPoll:
    """Set the result of a catalog poll on either thread."""
    copies.tables._newest = CatalogPoll(**found)
    return copies.tables.newest


def test_finished_round_stays_complete_until_stream_request(copies: SnapshotThread) -> None:
    assert not copies.complete
    copies._end_round(set_poll(copies))
    assert copies.complete
    copies.tables.request([A])
    assert not copies.complete
    copies._end_round(set_poll(copies, request_count=1))
    assert copies.complete


def test_table_awaiting_session_is_incomplete_despite_session_begin(
    copies: SnapshotThread,
) -> None:
    poll = set_poll(copies, rejoining=frozenset({A}))
    copies.tables.new_stream(Lsn(5), frozenset({A}))  # while this round copies other tables
    copies._end_round(poll)
    assert not copies.complete


def test_tables_seen_by_watcher_during_round_are_incomplete(copies: SnapshotThread) -> None:
    poll = set_poll(copies)
    set_poll(copies)  # the watch's
    copies._end_round(poll)
    assert not copies.complete


def test_later_round_with_waiting_table_is_incomplete(copies: SnapshotThread) -> None:
    copies._end_round(set_poll(copies))
    copies._end_round(set_poll(copies, waiting=frozenset({A})))
    assert not copies.complete


class EndingCopies:
    """Copies whose last snapshot ends right after the stream's thread read its LSN."""

    def __init__(self) -> None:
        self.complete = False
        self.held_up = None
        self.retry_gate = SimpleNamespace(refused=lambda: None)
        self.tables = SimpleNamespace(wants_new_stream=False, wants_stream_from=None, newest=CatalogPoll())
        self._lsn = ZERO

    def raise_failure(self) -> None:
        pass

    @property
    def lsn(self) -> Lsn:
        read, self._lsn, self.complete = self._lsn, Lsn(500), True
        return read


class IdleStream:
    """A stream that reaches each target in one step."""

    def __init__(self, at: Lsn) -> None:
        self.durable = self.newest = SimpleNamespace(frontier=at)

    def step(self, *, target: Lsn, **_: float) -> bool:
        self.durable.frontier = max(self.durable.frontier, target)
        return True


def test_target_lies_after_every_completing_snapshot(database: str, lake_path: str) -> None:
    reader = make_reader(source_of(database), lake_path)
    stream: Any = IdleStream(Lsn(200))
    copies: Any = EndingCopies()
    receiver: Any = None
    assert reader._follow(stream, receiver, copies, until=Lsn(100), stop=threading.Event())
    assert stream.durable.frontier >= Lsn(500)


@pytest.mark.postgres
def test_target_waits_for_copies_requested_by_watcher(database: str, lake_path: str) -> None:
    source = source_of(database, tables=["public.t"])
    execute(
        source,
        "CREATE TABLE t (id int PRIMARY KEY, a int)",
        "INSERT INTO t VALUES (1, 1)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "INSERT INTO other VALUES (1)",
    )
    read_all(source, lake_path)
    wider: SourceSettings = source.model_copy(update={"tables": ["public.t", "public.other"]})
    copying, go_on = threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "snapshot-exported":
            copying.set()
            go_on.wait(60)

    def gap() -> bool:
        return is_open(open_existing(f"{lake_path}/bronze/changes"), TableName("public", "t"))

    with connect(source) as connection:
        until = current_lsn(connection)
    reader = make_reader(wider, lake_path, reached=hold)
    thread = threading.Thread(target=reader.run, kwargs={"until": until}, daemon=True)
    thread.start()
    try:
        wait_for(copying.is_set)
        execute(source, "ALTER TABLE t ALTER a TYPE bigint USING a * 1000")
        wait_for(gap, 30)
    finally:
        go_on.set()
    thread.join(60)
    assert not thread.is_alive()
    assert not gap()
    assert_bronze_equals_source(wider, lake_path, "public.t", "public.other")
