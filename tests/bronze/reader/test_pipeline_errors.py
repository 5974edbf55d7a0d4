"""A fault of several hours costs few attempts and one row; only successful work ends the fault."""

from __future__ import annotations

import errno
import logging
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from deltalake.exceptions import DeltaError

from deltasmelt.bronze import backoff
from deltasmelt.bronze.config.sections import SnapshotSettings
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.effects import Effect, guarded
from deltasmelt.bronze.errors import DefiniteError, SmeltError, TableError, TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.progress import Progress
from deltasmelt.bronze.reader.catalog_poll import CatalogPoll
from deltasmelt.bronze.reader.copies import SnapshotThread
from deltasmelt.bronze.reader.pipeline_errors import PipelineErrors, RetryGate
from deltasmelt.bronze.reader.table_errors import TableErrors
from deltasmelt.bronze.reader.watch import Watch
from deltasmelt.bronze.store.landing import Landing
from tests.bronze.replaying import execute, make_reader, read_all, source_of
from tests.bronze.running import Running
from tests.bronze.simulated import TWO_HOURS, SimulatedHours, most_attempts
from tests.patience import wait_for

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from pathlib import Path


TIMING = Timing(retry_first=5.0, retry_longest=3600.0, first_contact=1e9)
A = TableName("public", "a")


def transient(code: str) -> TransientError:
    return TransientError("it passes", code=code)


def rows_of(lake_path: str) -> list[dict[str, Any]]:
    """Return all rows of `control.errors`, open and closed."""
    rows: list[dict[str, Any]] = ControlTables(Lake(lake_path))._errors.rows().to_pylist()
    return rows


def codes(lake_path: str) -> list[str]:
    return [error.code for error in ControlTables(Lake(lake_path)).open_errors()]


@contextmanager
def lasting(at: Effect, place: str, error: Exception) -> Iterator[None]:
    """Fail each effect of a kind at places that contain a text, without carrying out the effect."""

    def fails(door: Effect, where: str, effect: Callable[[], Any]) -> Any:
        if door is at and place in where:
            raise error
        return effect()

    with guarded(fails):
        yield


def lines(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.levelno >= logging.WARNING for record in caplog.records)


@pytest.mark.postgres
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            (Effect.RECEIVE, "", TransientError("could not write: No space left", code="server-resources")),
            marks=pytest.mark.torture,
        ),
        (Effect.WRITE_PART, "/bronze/changes/", OSError(errno.ENOSPC, "No space left on device")),
        pytest.param(
            (Effect.COMMIT, "/bronze/changes", DeltaError("403 Forbidden: AccessDenied")),
            marks=pytest.mark.torture,
        ),
        (
            Effect.CONNECT,
            "deltasmelt shop",
            psycopg.OperationalError("FATAL:  sorry, too many clients already"),
        ),
        pytest.param(
            (Effect.START_STREAM, "", TransientError("catalog is out of shape", code="server-error")),
            marks=pytest.mark.torture,
        ),
    ],
    ids=["disk full at the source", "disk full at the lake", "denied", "no free connection", "catalog error"],
)
def test_long_stream_fault_makes_few_attempts_and_row(
    database: str, lake_path: str, caplog: pytest.LogCaptureFixture, fault: tuple[Effect, str, Exception]
) -> None:
    """Two hours of a stream fault cost few attempts and a single row of errors."""
    source = source_of(database, timing=TIMING)
    execute(source, "CREATE TABLE a (id int PRIMARY KEY)")
    read_all(source, lake_path)
    execute(source, "INSERT INTO a VALUES (1)")
    before, reader, most = rows_of(lake_path), make_reader(source, lake_path), most_attempts(TIMING)
    stop = SimulatedHours(most=most)
    with lasting(*fault):
        reader.run(stop=stop)
    assert stop.passed >= TWO_HOURS
    assert len(stop.pauses) <= most
    assert lines(caplog) <= 2 * most
    assert len(rows_of(lake_path)) == len(before) + 1
    assert len(codes(lake_path)) == 1, "it lasts"
    with Running(source, lake_path):
        wait_for(lambda: codes(lake_path) == [])


@pytest.mark.postgres
def test_restarted_idle_stream_proves_recovery(database: str, lake_path: str) -> None:
    source = source_of(database)
    execute(source, "CREATE TABLE a (id int PRIMARY KEY)")
    read_all(source, lake_path)
    ControlTables(Lake(lake_path)).open_error(OpenError("pipeline", "shop", "server-resources", "of before"))
    with Running(source, lake_path) as running:
        wait_for(lambda: codes(lake_path) == [])
        # Of a process that was started by mistake; a look closes it.
        ControlTables(Lake(lake_path)).open_error(OpenError("pipeline", "shop", "password-rejected", "wrong"))
        execute(source, "CREATE TABLE b (id int PRIMARY KEY)")
        running.reader._copies.tables.request([A])  # type: ignore[union-attr]
        wait_for(lambda: codes(lake_path) == [])


def copies_of(
    lake_path: str, rounds: Callable[[], CatalogPoll], monkeypatch: pytest.MonkeyPatch, timing: Timing
) -> SnapshotThread:
    """Return copies with simulated catalog polls."""
    sink: Any = SimpleNamespace(tables=SimpleNamespace(requests=lambda _: {}))
    shapes: Any = SimpleNamespace(unknown_columns=dict)
    landing = Landing(sink, shapes)
    source = source_of("postgresql://nobody@127.0.0.1:1/none", timing=timing)
    control = ControlTables(Lake(lake_path))
    copies = SnapshotThread(source, SnapshotSettings(), landing, control, errors_of(lake_path))

    def look(_: threading.Event) -> CatalogPoll:
        copies.tables._newest = rounds()
        return copies.tables.newest

    monkeypatch.setattr(copies.tables, "poll", look)
    monkeypatch.setattr(copies._watch, "start", lambda: None)
    return copies


def errors_of(lake_path: str) -> PipelineErrors:
    errors = PipelineErrors(Lake(lake_path), "shop", ControlTables(Lake(lake_path)))
    errors.of_this_pipeline = True
    return errors


@pytest.mark.parametrize("code", ["server-resources", "too-many-connections", "concurrent-change"])
def test_long_copy_fault_makes_few_attempts_and_row(
    lake_path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    """Two hours of a fault of the copies cost few attempts and a single row of errors."""

    def rounds() -> CatalogPoll:
        raise transient(code)

    most = most_attempts(TIMING)
    copies = copies_of(lake_path, rounds, monkeypatch, TIMING)
    copies._stop = hours = SimulatedHours(most=most)
    copies._run()
    assert hours.passed >= TWO_HOURS
    assert len(hours.pauses) <= most
    assert lines(caplog) <= most
    assert [row["code"] for row in rows_of(lake_path)] == [code]
    assert codes(lake_path) == [code]


@pytest.mark.postgres
@pytest.mark.parametrize("error", [DefiniteError("it stays", code="server-error"), transient("lock-timeout")])
def test_long_poll_failure_during_copies_makes_few_attempts(
    database: str, lake_path: str, caplog: pytest.LogCaptureFixture, error: SmeltError
) -> None:
    """The poll fails for two hours while tables are copied."""

    def look() -> bool:
        raise error

    source, most = source_of(database, timing=TIMING), most_attempts(TIMING)
    execute(source, "CREATE TABLE a (id int PRIMARY KEY)")
    gate = RetryGate(errors_of(lake_path), TIMING)
    watch = Watch(source, Progress(), list, look, retry_gate=gate)
    watch._stop = hours = SimulatedHours(most=most)
    watch._run()
    assert watch.failure is None
    assert hours.passed >= TWO_HOURS
    assert len(hours.pauses) <= most
    assert lines(caplog) <= most
    assert codes(lake_path) == (["server-error"] if isinstance(error, DefiniteError) else [])
    assert len(rows_of(lake_path)) == len(codes(lake_path))
    gate.worked()
    assert codes(lake_path) == []


def test_uncopyable_table_makes_few_attempts_and_row(lake_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hours of failing copies of a table cost few attempts and a single row of errors."""
    now = 0.0
    monkeypatch.setattr(backoff, "time", SimpleNamespace(monotonic=lambda: now))
    errors, attempts = TableErrors(ControlTables(Lake(lake_path)), Timing()), 0
    while now < TWO_HOURS:
        if errors.may_be_tried(A, Lsn(5), by_stream=False):
            attempts += 1
            errors.copy_failed(TableError(A, "a bad block", code="copy-failed"), Lsn(5))
        errors.record_poll({A: ()}, {A})
        now += 30.0
    assert attempts <= 6 + TWO_HOURS / (0.9 * 600)
    assert len(rows_of(lake_path)) == 1
    TableErrors(ControlTables(Lake(lake_path)), Timing()).record_poll({A: ()}, {A})
    assert codes(lake_path) == ["copy-failed"], "a restart shows nothing"
    errors.copy_failed(TableError(A, "a bad block", code="copy-failed"), Lsn(9))
    assert {row["commit_lsn"] for row in rows_of(lake_path)} == {5, 9}, "whoever asked anew sees it"
    errors.copied([A])
    assert codes(lake_path) == []


def test_poll_opens_and_closes_errors_in_single_commits(lake_path: str) -> None:
    errors = TableErrors(ControlTables(Lake(lake_path)), Timing())
    tables = [TableName("public", f"t{number}") for number in range(150)]
    table_errors = {table: [TableError(table, "it has no key", code="table-without-key")] for table in tables}
    errors.record_poll(table_errors)
    uri = f"{lake_path}/control/errors"
    version = open_existing(uri).version()
    assert version <= 1
    assert len(codes(lake_path)) == 150
    errors.record_poll(table_errors)
    assert open_existing(uri).version() == version
    errors.record_poll(
        dict.fromkeys(tables[:100], ()) | {table: table_errors[table] for table in tables[100:120]}
    )
    assert open_existing(uri).version() == version + 1
    assert len(codes(lake_path)) == 20


def test_stop_of_a_server_is_one_error(lake_path: str) -> None:
    control = ControlTables(Lake(lake_path))
    errors = PipelineErrors(Lake(lake_path), "shop", control)
    errors.of_this_pipeline = True
    stream = RetryGate(errors, TIMING, stream=True)
    stream.worked()
    stream.failed(transient("stream-ended"))
    assert codes(lake_path) == []
    for _ in range(2):
        stream.failed(transient("server-unreachable"))
        assert codes(lake_path) == ["server-unreachable"]
    stream.worked()
    assert codes(lake_path) == []
    for _ in range(2):
        stream.failed(transient("stream-ended"))
    assert codes(lake_path) == ["stream-ended"], "a stream that ends again and again is an error"


def test_unclosed_error_is_closed_by_next_success(lake_path: str) -> None:
    gate = RetryGate(errors_of(lake_path), TIMING)
    gate.failed(transient("connection-lost"))
    with lasting(Effect.COMMIT, "/control/errors", OSError("the lake is down")):
        gate.failed(transient("lake-unwritable"))
        with pytest.raises(TransientError):
            gate.worked()
    assert codes(lake_path) == ["connection-lost"]
    gate.failed(transient("lock-timeout"))
    assert codes(lake_path) == ["connection-lost", "lock-timeout"], "another failure shows nothing"
    gate.worked()
    assert codes(lake_path) == []


def test_errors_of_ended_worker_close_with_stream(lake_path: str) -> None:
    errors = errors_of(lake_path)
    stream, copies = RetryGate(errors, TIMING, stream=True), RetryGate(errors, TIMING)
    copies.failed(transient("connection-lost"))
    stream.worked()
    assert errors.strays(ControlTables(Lake(lake_path)).open_errors()) == []
    copies.ended()
    strays = errors.strays(ControlTables(Lake(lake_path)).open_errors())
    assert [stray.code for stray in strays] == ["connection-lost"]


def test_shared_error_stays_single_row_until_both_recover(lake_path: str) -> None:
    errors = errors_of(lake_path)
    stream, copies = RetryGate(errors, TIMING, stream=True), RetryGate(errors, TIMING)
    ControlTables(Lake(lake_path)).open_error(OpenError("pipeline", "shop", "slot-lost", "of before"))
    for line in (stream, copies):
        line.failed(transient("connection-lost"))
    copies.failed(transient("too-many-connections"))
    assert errors.strays(ControlTables(Lake(lake_path)).open_errors()) == []
    stream.worked()
    assert codes(lake_path) == ["connection-lost", "too-many-connections"]
    copies.worked()
    assert codes(lake_path) == []
    assert len(rows_of(lake_path)) == 3


def test_round_failing_with_lake_is_retried_after_recovery(
    lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter(["connection-lost", "lake-unwritable", "lake-unwritable"])
    down = False

    def rounds() -> CatalogPoll:
        nonlocal down
        code = next(failures, None)
        down = code == "lake-unwritable"
        if code is not None:
            raise transient(code)
        return CatalogPoll()

    def lake(door: Effect, where: str, effect: Callable[[], Any]) -> Any:
        if down and door is Effect.COMMIT:
            raise OSError("the lake is down")
        return effect()

    with guarded(lake):
        copies = copies_of(lake_path, rounds, monkeypatch, Timing(retry_first=0.01))
        copies.start()
        try:
            wait_for(lambda: copies.complete or copies._failure is not None, 5)
            copies.raise_failure()
            wait_for(lambda: codes(lake_path) == [], 5)
        finally:
            copies.stop()


@pytest.mark.postgres
def test_a_start_that_is_refused_writes_nothing(
    database: str, database18: str, lake_path: str, tmp_path: Path
) -> None:
    source = source_of(database)
    execute(source, "CREATE TABLE a (id int PRIMARY KEY)")
    with Running(source, lake_path):
        wait_for(lambda: codes(lake_path) == [])
        before = rows_of(lake_path)
        away = source_of("postgresql://nobody@127.0.0.1:1/none", timing=Timing(first_contact=0.1))
        hasty = source.with_timing(Timing(slot_release=0.5))
        for settings, pipeline in (
            (source, "other"), (away, "other"), (source_of(database18), "shop"), (hasty, "shop"),
        ):  # fmt: skip
            with pytest.raises(SmeltError):
                make_reader(settings, lake_path, pipeline=pipeline).run()
            assert rows_of(lake_path) == before, (settings, pipeline)
        fresh = tmp_path / "fresh"
        with pytest.raises(SmeltError):
            make_reader(away, str(fresh)).run()
        assert not fresh.exists()


def test_failures_of_gone_table_are_forgotten(lake_path: str) -> None:
    errors = TableErrors(ControlTables(Lake(lake_path)), Timing())
    errors.copy_failed(TableError(A, "a bad block", code="copy-failed"), Lsn(5))
    errors.may_be_tried(A, Lsn(5), by_stream=True)
    assert not errors.may_be_tried(A, Lsn(5), by_stream=False)
    errors.record_poll({TableName("public", "other"): ()})
    assert errors.may_be_tried(A, Lsn(5), by_stream=False), "a table of this name begins without a pause"
