"""Messages of a start and of a copy about delays: prepared transactions, limits of connections."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.config.sections import SnapshotSettings
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.effects import Effect, guarded
from deltasmelt.bronze.errors import DefiniteError, TableError, TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.postgres.lock_holders import describe_holder
from deltasmelt.bronze.setup.create_slot import ensure_slot
from deltasmelt.bronze.setup.publication import ensure_publication
from deltasmelt.pipelines.runtime.progress_text import reader_text
from tests.bronze.enumerated import swallow
from tests.bronze.replaying import assert_bronze_equals_source, execute, make_reader, read_all, source_of
from tests.fix_postgres import CopiedServer, drop_database, make_database
from tests.patience import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from psycopg import Connection

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with CopiedServer(settings={"max_prepared_transactions": "5"}) as server:
        yield server


@pytest.fixture
def source(server: EmbeddedServer) -> Iterator[SourceSettings]:
    dsn = make_database(server.dsn())
    source = source_of(dsn)
    execute(source, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    execute(source, "INSERT INTO a SELECT generate_series(1, 100)")
    yield source
    drop_database(server.dsn(), dsn)


def prepared(*statements: str) -> str:
    return "; ".join(["BEGIN", *statements, "PREPARE TRANSACTION 'left over'"])


def test_first_start_names_blocking_prepared_transaction_within_seconds(
    source: SourceSettings, lake_path: str
) -> None:
    messages: list[str] = []
    hasty = source.with_timing(Timing(wait_notice=0.3))
    reader = make_reader(hasty, lake_path, progress=lambda event: messages.append(reader_text(event)))
    stop = threading.Event()
    thread = threading.Thread(target=reader.run, kwargs={"stop": stop})
    execute(source, prepared("INSERT INTO b VALUES (1)"))
    try:
        thread.start()
        started = time.monotonic()
        wait_for(
            lambda: any("prepared transaction left over of postgres" in message for message in messages), 10
        )
        assert time.monotonic() - started < 10
    finally:
        stop.set()
        thread.join(20)
        execute(source, "ROLLBACK PREPARED 'left over'")
    assert any(
        message.startswith(f"creating slot {source.slot} waits for open transactions") for message in messages
    )


def test_prepared_transaction_holding_lock_is_named(source: SourceSettings) -> None:
    locked: list[TableError] = []
    hasty = source.with_timing(Timing(members_lock=0.2, member_lock=0.2, members_in_parts=1.0))
    a, b = TableName("public", "a"), TableName("public", "b")
    execute(source, prepared("LOCK TABLE b IN ACCESS EXCLUSIVE MODE"))
    try:
        with connect(source) as connection:
            message = describe_holder(connection, b, ["AccessExclusiveLock"])
            assert message == "prepared transaction left over of postgres, AccessExclusiveLock"
            ensure_publication(connection, hasty, [a, b], locked)
    finally:
        execute(source, "ROLLBACK PREPARED 'left over'")
    (error,) = locked
    assert error.table == b
    assert "prepared transaction left over of postgres" in error.message
    assert "ROLLBACK PREPARED" in str(error.remedy)


def limited(source: SourceSettings, limit: int) -> SourceSettings:
    role = source.slot.removeprefix("smelt_")
    execute(
        source,
        f"CREATE ROLE {role} LOGIN REPLICATION CONNECTION LIMIT {limit}",
        f"GRANT CREATE ON DATABASE {role} TO {role}",
        f"ALTER TABLE a OWNER TO {role}",
        f"ALTER TABLE b OWNER TO {role}",
    )
    return source.model_copy(update={"user": role})


def test_role_with_too_few_connections_is_rejected_immediately(
    source: SourceSettings, lake_path: str
) -> None:
    narrow = limited(source, 3)
    try:
        with pytest.raises(DefiniteError, match="may have at most 3 connections") as caught:
            read_all(narrow, lake_path)
        assert caught.value.code == "connection-limit"
        execute(source, str(caught.value.remedy).partition(": ")[2])
        read_all(narrow, lake_path)
    finally:
        execute(source, f"DROP OWNED BY {narrow.user}", f"DROP ROLE {narrow.user}")


def test_role_with_few_connections_uses_fewer_workers(source: SourceSettings, lake_path: str) -> None:
    narrow = limited(source, 8)
    further = [f"t{number}" for number in range(10)]
    execute(source, *(f"CREATE TABLE {name} AS SELECT * FROM a" for name in further))
    execute(source, *(f"ALTER TABLE {name} ADD PRIMARY KEY (id), OWNER TO {narrow.user}" for name in further))
    try:
        read_all(narrow, lake_path, snapshot=SnapshotSettings(workers=16))
        assert ControlTables(Lake(lake_path))._errors.rows().num_rows == 0
        assert_bronze_equals_source(source, lake_path, "public.a", *(f"public.{name}" for name in further))
    finally:
        execute(source, f"DROP OWNED BY {narrow.user}", f"DROP ROLE {narrow.user}")


def test_lost_answer_to_slot_creation_ends_wait(source: SourceSettings) -> None:
    """The slot is there, and the next attempt uses it."""
    hasty = source.with_timing(Timing(wait_notice=0.5, copy_silence=1.0))
    connections: dict[str, Connection[Any]] = {}

    def losing(kind: Effect, where: str, effect: Callable[[], Any]) -> Any:
        if kind is Effect.STATEMENT and threading.current_thread().name == "deltasmelt-slot":
            swallow(connections[where])
        result = effect()
        if kind is Effect.CONNECT and result is not None:
            connections[str(result.info.backend_pid)] = result
        return result

    with guarded(losing), connect(hasty) as connection:
        started = time.monotonic()
        with pytest.raises(TransientError) as caught:
            ensure_slot(connection, hasty)
        assert caught.value.code == "connection-lost"
        assert time.monotonic() - started < 10
    with connect(hasty) as connection:
        assert ensure_slot(connection, hasty).name == source.slot
        connection.execute("SELECT pg_drop_replication_slot(%s)", [source.slot])
