"""Test the waits of a reader and their limits: no free slot, missing privileges, cancelled commands."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.errors import DefiniteError, SmeltError, TransientError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.postgres.replication import ReplicationConnection
from deltasmelt.bronze.stream.receiver import Nudge
from deltasmelt.pipelines.runtime.progress_text import reader_text
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    current_lsn,
    execute,
    fetch,
    make_reader,
    read_all,
    session,
    source_of,
)
from tests.bronze.running import Running
from tests.fix_postgres import CopiedServer, drop_database, make_database
from tests.patience import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

pytestmark = pytest.mark.postgres

HELD = (
    "SELECT (SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'smelt_tmp_test') + "
    "(SELECT count(*) FROM pg_stat_activity WHERE application_name = 'exporter')"
)


@pytest.fixture(scope="module")
def narrow() -> Iterator[EmbeddedServer]:
    """Yield a server with room for the stream and one snapshot."""
    with CopiedServer(settings={"max_replication_slots": "2", "max_wal_senders": "2"}) as server:
        yield server


@pytest.fixture
def source(narrow: EmbeddedServer) -> Iterator[SourceSettings]:
    dsn = make_database(narrow.dsn())
    source = source_of(dsn, slot="smelt_narrow")
    execute(source, "CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    yield source
    drop_database(narrow.dsn(), dsn)


class Interrupted(Exception):  # noqa: N818 - what a caller's own code may raise
    """An interruption during the wait for a slot."""


def waits_once() -> Callable[[], bool]:
    """Return a check that cancels the wait at the second call."""
    looks = iter([False])
    return lambda: next(looks, True)


@pytest.mark.parametrize("fixture", ["database", "database18"])
def test_abandoned_slot_leaves_no_slot_and_walsender(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, fixture: str
) -> None:
    source = source_of(request.getfixturevalue(fixture))
    execute(source, "CREATE TABLE t (id int)")

    def raising(error: Exception) -> Callable[[], bool]:
        def cancelled() -> bool:
            raise error

        return cancelled

    with session(source) as open_transaction:
        open_transaction.autocommit = False
        open_transaction.execute("INSERT INTO t VALUES (1)")
        exporter = ReplicationConnection(source, application_name="exporter")
        assert exporter.export_snapshot("smelt_tmp_test", waits_once()) is None
        exporter.close()
        wait_for(lambda: fetch(source, HELD) == 0, 3)

        # The second is the loss of another connection, over which the caller watches the waiting.
        for error in (Interrupted(), psycopg.OperationalError("the other session has ended")):
            exporter = ReplicationConnection(source, application_name="exporter")
            with pytest.raises(type(error)):
                exporter.export_snapshot("smelt_tmp_test", raising(error))
            exporter.close()
            wait_for(lambda: fetch(source, HELD) == 0, 3)

        # A process that is killed cancels nothing: the server itself notices that its client has gone.
        looked_for = source.with_timing(Timing(client_check=0.3))
        exporter = ReplicationConnection(looked_for, application_name="exporter")
        monkeypatch.setattr(exporter._connection, "cancel_safe", lambda **_: None)
        assert exporter.export_snapshot("smelt_tmp_test", waits_once()) is None
        assert fetch(source, HELD) == 2
        exporter.close()
        wait_for(lambda: fetch(source, HELD) == 0, 3)


def test_copies_wait_for_free_slot_while_streaming(source: SourceSettings, lake_path: str) -> None:
    execute(source, "SELECT pg_create_physical_replication_slot('of_a_standby')")
    control = ControlTables(Lake(lake_path))
    with Running(source, lake_path) as running:
        progress = running.reader.progress
        wait_for(lambda: [error.code for error in control.open_errors()] == ["slots-exhausted"])
        assert "max_replication_slots" in str(control.open_errors()[0].remedy)
        execute(source, "INSERT INTO a VALUES (2)")
        wait_for(lambda: progress.read()["changes"] == 1)
        assert running.error is None
        execute(source, "SELECT pg_drop_replication_slot('of_a_standby')")
        wait_for(lambda: running.error is not None or "public.a" in progress.read()["snapshots"], 40)
        wait_for(lambda: control.open_errors() == [])
        assert running.error is None
    read_all(source, lake_path)
    assert_bronze_equals_source(source, lake_path, "public.a")


def test_finite_job_waits_for_slot_only_limited_time(source: SourceSettings, lake_path: str) -> None:
    execute(source, "SELECT pg_create_physical_replication_slot('of_a_standby')")
    try:
        with pytest.raises(DefiniteError) as caught:
            read_all(source.with_timing(Timing(refused=1.0)), lake_path)
    finally:
        execute(source, "SELECT pg_drop_replication_slot('of_a_standby')")
    assert caught.value.code == "slots-exhausted"
    read_all(source, lake_path)
    assert ControlTables(Lake(lake_path)).open_errors() == []
    assert_bronze_equals_source(source, lake_path, "public.a")


@pytest.mark.parametrize(("fixture", "forgets"), [("database", True), ("database18", False)])
def test_finite_job_names_blocking_transactions_and_gives_up(
    request: pytest.FixtureRequest,
    lake_path: str,
    monkeypatch: pytest.MonkeyPatch,
    fixture: str,
    *,
    forgets: bool,
) -> None:
    """A job with an end names the transactions for which copies wait."""
    monkeypatch.setattr("deltasmelt.bronze.reader.carried_tables.may_forget", lambda _: forgets)
    source = source_of(request.getfixturevalue(fixture))
    execute(source, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE elsewhere (id int)")
    only = source.model_copy(update={"tables": ["public.a", "public.b"]})
    read_all(only, lake_path)
    hasty = only.with_timing(Timing(refused=1.0, wait_notice=0.2))
    execute(source, "CREATE TABLE b (id int PRIMARY KEY)")
    stop = threading.Event()
    timer = threading.Timer(30, stop.set)
    timer.start()
    messages: list[str] = []
    reader = make_reader(
        hasty, lake_path, progress=lambda told: messages.append(told["copies_wait"] + told["said"])
    )
    with session(source) as idle:
        idle.execute("SET application_name = 'forgotten'")
        idle.autocommit = False
        idle.execute("INSERT INTO elsewhere VALUES (1)")
        with pytest.raises(TransientError) as caught:
            reader.run(until=Lsn.parse(fetch(source, "SELECT pg_current_wal_lsn()::text")), stop=stop)
        assert caught.value.code == "copies-wait-for-transactions"
        assert "copying public.b waits" in caught.value.message
        assert f"pid {idle.info.backend_pid} (" in caught.value.message
        assert "forgotten, idle in transaction" in caught.value.message
        assert "pg_terminate_backend" in str(caught.value.remedy)
        assert any(caught.value.message[:60] in message for message in messages)
    timer.cancel()
    read_all(only, lake_path)
    assert_bronze_equals_source(only, lake_path, "public.a", "public.b")
    assert ControlTables(Lake(lake_path)).open_errors() == []


def test_reader_after_streaming_waits_for_walsender(source: SourceSettings, lake_path: str) -> None:
    read_all(source, lake_path)
    control = ControlTables(Lake(lake_path))
    with Running(source, lake_path) as running:
        walsenders = []
        execute(source, "SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
        for _ in range(20):  # in a race with the reader for both of them
            try:
                walsenders.append(ReplicationConnection(source, application_name="other"))
            except SmeltError:
                time.sleep(0.01)
        assert walsenders
        while len(walsenders) < 2:
            execute(
                source,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_replication WHERE application_name <> 'other'",
            )
            try:
                walsenders.append(ReplicationConnection(source, application_name="other"))
            except SmeltError:
                time.sleep(0.01)
        wait_for(lambda: "senders-exhausted" in {error.code for error in control.open_errors()})
        assert running.error is None
        execute(source, "INSERT INTO a VALUES (3)")
        for walsender in walsenders:
            walsender.close()
        wait_for(lambda: running.error is not None or running.reader.progress.read()["changes"] == 1, 40)
        assert running.error is None
    assert control.open_errors() == []


def test_missing_replication_role_fails_start_and_waits_later(
    narrow: EmbeddedServer, source: SourceSettings, lake_path: str
) -> None:
    """A role without replication is refused at a start, and waited for later."""
    assert source.dsn is not None
    weak = source_of(
        source.dsn.get_secret_value(), slot="smelt_narrow", user="weak", manage=False, tables=["public.*"]
    )
    execute(
        source,
        "CREATE ROLE weak LOGIN",
        "GRANT SELECT ON a TO weak",
        "CREATE PUBLICATION smelt FOR TABLE a",
        "SELECT pg_create_logical_replication_slot('smelt_narrow', 'pgoutput')",
    )
    control = ControlTables(Lake(lake_path))
    try:
        started = time.monotonic()
        with pytest.raises(DefiniteError) as caught:
            read_all(weak, lake_path)
        assert time.monotonic() - started < 10
        assert caught.value.code == "replication-privilege"
        assert 'ALTER ROLE "weak" REPLICATION' in str(caught.value.remedy)
        execute(source, "ALTER ROLE weak REPLICATION")
        with Running(weak, lake_path) as running:
            progress = running.reader.progress
            wait_for(
                lambda: any(
                    snapshot_progress["done"] for snapshot_progress in progress.read()["snapshots"].values()
                )
            )
            execute(
                source,
                "ALTER ROLE weak NOREPLICATION",
                "SELECT pg_terminate_backend(pid) FROM pg_stat_replication",
            )
            wait_for(
                lambda: "replication-privilege" in {open_error.code for open_error in control.open_errors()}
            )
            wait_for(lambda: progress.read()["phase"] == "waiting")
            assert 'ALTER ROLE "weak" REPLICATION' in reader_text(progress.read())
            execute(source, "ALTER ROLE weak REPLICATION", "INSERT INTO a VALUES (4)")
            wait_for(lambda: running.error is not None or progress.read()["changes"] == 1, 40)
            assert running.error is None
    finally:
        execute(source, "DROP OWNED BY weak", "DROP ROLE weak")


def test_finite_job_waits_for_server_only_limited_time(
    own_server: EmbeddedServer, lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(own_server.dsn(), slot="smelt_ends")
    execute(source, "CREATE TABLE a (id int PRIMARY KEY)")
    read_all(source, lake_path)
    with connect(source) as connection:
        beyond = Lsn(current_lsn(connection) + (1 << 40))

    def stop_at(point: str) -> None:
        if point == "slot-ready":
            monkeypatch.setattr(reader, "_reached", lambda _: None)
            own_server.stop("immediate")

    hasty = source.with_timing(Timing(failing=1.0))
    reader = make_reader(hasty, lake_path, reached=stop_at)
    with pytest.raises(TransientError) as caught:
        reader.run(until=beyond)
    assert caught.value.code in {"server-unreachable", "connection-lost"}
    assert isinstance(psycopg.OperationalError(), psycopg.Error)


@pytest.mark.parametrize(
    ("holds", "waits"),
    [
        ("LOCK TABLE pg_publication_rel IN ACCESS EXCLUSIVE MODE", "SELECT"),
        ("INSERT INTO elsewhere VALUES (1)", "pg_create_logical_replication_slot"),
    ],
)
def test_stopped_first_start_ends_immediately_without_traces(
    database: str, lake_path: str, holds: str, waits: str
) -> None:
    source = source_of(database)
    execute(source, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE elsewhere (id int PRIMARY KEY)")
    stop, errors = threading.Event(), []
    reader = make_reader(source, lake_path)

    def run() -> None:
        try:
            reader.run(stop=stop)
        except SmeltError as error:
            errors.append(error)

    ours = (
        "SELECT count(*) FROM pg_stat_activity WHERE starts_with(application_name, 'deltasmelt') AND "
        "datname = current_database()"
    )
    with session(source) as second:
        second.autocommit = False
        second.execute(holds.encode())
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        waiting = f"{ours} AND state = 'active' AND wait_event_type = 'Lock' AND strpos(query, '{waits}') > 0"
        wait_for(lambda: fetch(source, waiting) > 0)
        time.sleep(0.5)
        stop.set()
        thread.join(8)
        assert not thread.is_alive()
        assert errors == []
        wait_for(lambda: fetch(source, ours) == 0, 3)
        slot_count = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s"
        assert fetch(source, slot_count, source.slot) == 0
    read_all(source, lake_path)
    assert ControlTables(Lake(lake_path)).open_errors() == []


def test_silent_stream_is_nudged_for_hours(database: str) -> None:
    pushes: list[None] = []
    receiver: Any = SimpleNamespace(request_reply=lambda: pushes.append(None))
    nudge = Nudge(source_of(database), receiver)
    for _ in range(2_000):
        assert 0.0 < nudge.patience <= Timing().target_poll
        nudge.push()
    assert len(pushes) == 2_000
