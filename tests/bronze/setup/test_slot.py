"""Replication slots on real servers: created, found, refused."""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from deltasmelt.bronze.config.sections import SourceSettings
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.errors import DefiniteError, SmeltError, TransientError
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.postgres.conninfo import address_of, replication_conninfo
from deltasmelt.bronze.setup.create_slot import ensure_slot
from deltasmelt.bronze.setup.slot import SlotState, read_slot, slot_problem
from tests.bronze.replaying import execute
from tests.fix_postgres import CopiedServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg.pq.abc import PGconn


def source(dsn: str, **values: object) -> SourceSettings:
    return SourceSettings.model_validate({"dsn": dsn, "slot": "smelt", "publication": "smelt_pub", **values})


@pytest.fixture(params=[16, 18])
def settings(request: pytest.FixtureRequest) -> Iterator[SourceSettings]:
    """Yield the source of a fresh database, with a unique slot name."""
    dsn: str = request.getfixturevalue("database" if request.param == 16 else "database18")
    name = f"slot_{uuid.uuid4().hex[:8]}"
    yield source(dsn, slot=name)
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = None
        for _ in range(200):  # a reader that has just left holds on for a moment
            row = connection.execute(
                "SELECT active FROM pg_replication_slots WHERE slot_name = %s", [name]
            ).fetchone()
            if row is None or not row[0]:
                break
            time.sleep(0.05)
        if row is not None:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [name])


def dsn_of(settings: SourceSettings) -> str:
    assert settings.dsn is not None
    return settings.dsn.get_secret_value()


def refusal(settings: SourceSettings) -> DefiniteError:
    with connect(settings) as connection, pytest.raises(DefiniteError) as caught:
        ensure_slot(connection, settings.with_timing(Timing(slot_release=0.2)))
    assert caught.value.where == address_of(settings)
    assert caught.value.remedy
    return caught.value


def test_a_missing_slot_is_made_and_then_found(settings: SourceSettings) -> None:
    with connect(settings) as connection:
        assert read_slot(connection, settings.slot) is None
        created = ensure_slot(connection, settings)
        existing = ensure_slot(connection, settings)
    assert (created.plugin, created.active_pid, created.wal_status) == ("pgoutput", None, "reserved")
    assert created.confirmed_flush > ZERO
    assert existing.confirmed_flush == created.confirmed_flush
    assert existing.invalidation is None


def test_unmanaged_missing_slot_is_error_with_working_sql(settings: SourceSettings) -> None:
    unmanaged = settings.model_copy(update={"manage": False})
    error = refusal(unmanaged)
    assert error.code == "slot-missing"
    execute(dsn_of(settings), str(error.remedy).partition(": ")[2].partition(" (or")[0])
    with connect(settings) as connection:
        assert ensure_slot(connection, unmanaged).plugin == "pgoutput"


def test_a_slot_of_another_plugin() -> None:
    # The embedded servers have no other plugin: the decision alone is tested here.
    settings = source("postgresql://me@db/shop")
    problem = slot_problem(
        SlotState("s", "wal2json", Lsn(1), None, "reserved", None, database="shop"), settings, "shop"
    )
    assert problem is not None
    assert problem.code == "slot-wrong-plugin"
    assert "wal2json" in problem.message


def test_a_physical_slot_of_the_same_name(settings: SourceSettings) -> None:
    execute(dsn_of(settings), f"SELECT pg_create_physical_replication_slot('{settings.slot}')")
    error = refusal(settings)
    assert error.code == "slot-physical"
    assert settings.slot in error.message
    assert "source.slot" in str(error.remedy)


def test_a_slot_of_another_database(settings: SourceSettings) -> None:
    elsewhere = make_conninfo(dsn_of(settings), dbname="postgres")
    execute(elsewhere, f"SELECT pg_create_logical_replication_slot('{settings.slot}', 'pgoutput')")
    error = refusal(settings)
    assert error.code == "slot-other-database"
    assert "belongs to database postgres" in error.message


def test_a_temporary_slot_of_another_session(settings: SourceSettings) -> None:
    with psycopg.connect(dsn_of(settings), autocommit=True) as second:
        second.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', true)", [settings.slot])
        assert refusal(settings).code == "slot-temporary"


def streaming(settings: SourceSettings) -> PGconn:
    execute(dsn_of(settings), "CREATE PUBLICATION smelt_pub")
    walsender = pq.PGconn.connect(replication_conninfo(settings, application_name="another reader").encode())
    command = f"START_REPLICATION SLOT {settings.slot} LOGICAL 0/0"
    command += " (proto_version '1', publication_names 'smelt_pub')"
    assert walsender.exec_(command.encode()).status == pq.ExecStatus.COPY_BOTH
    return walsender


def test_slot_in_use_names_reading_session(settings: SourceSettings) -> None:
    with connect(settings) as connection:
        ensure_slot(connection, settings)
    walsender = streaming(settings)
    try:
        error = refusal(settings)
    finally:
        walsender.finish()
    assert error.code == "slot-in-use"
    assert "another reader" in error.message
    assert "pg_terminate_backend" in str(error.remedy)


def test_departing_reader_is_awaited_and_reported(settings: SourceSettings) -> None:
    with connect(settings) as connection:
        ensure_slot(connection, settings)
        walsender = streaming(settings)
        leaving = threading.Timer(0.5, walsender.finish)
        leaving.start()
        messages: list[str] = []
        slot = ensure_slot(connection, settings, progress=messages.append)
        leaving.join()
    assert slot.active_pid is None
    assert settings.slot in messages[0]


def test_slot_creation_names_awaited_transactions(settings: SourceSettings) -> None:
    messages: list[str] = []
    dsn = dsn_of(settings)
    execute(dsn, "CREATE TABLE t (id int PRIMARY KEY)")
    with psycopg.connect(dsn) as idle, connect(settings) as connection:
        idle.execute("INSERT INTO t VALUES (1)")
        blocker = f"pid {idle.info.backend_pid} ("
        with pytest.raises(TransientError) as caught:
            ensure_slot(connection, settings.with_timing(Timing(slot_transactions=1.0)))
        assert caught.value.code == "slot-waits-for-transactions"
        assert blocker in caught.value.message
        assert read_slot(connection, settings.slot) is None

        def told(text: str) -> None:
            messages.append(text)
            idle.commit()

        slot = ensure_slot(connection, settings, progress=told)
    assert slot.confirmed_flush > ZERO
    assert blocker in messages[0]


def test_concurrent_starts_share_single_slot(settings: SourceSettings) -> None:
    answers: list[SlotState | SmeltError] = []
    gate = threading.Barrier(4)

    def start() -> None:
        with connect(settings) as connection:
            gate.wait()
            try:
                answers.append(ensure_slot(connection, settings))
            except SmeltError as error:
                answers.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    slots = [result for result in answers if isinstance(result, SlotState)]
    assert len(slots) == 4
    assert len({slot.confirmed_flush for slot in slots}) == 1


@pytest.mark.parametrize("version", [16, 18])
def test_a_slot_whose_log_is_gone(version: int) -> None:
    limits = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    with CopiedServer(version=18 if version == 18 else 16, settings=limits) as server:
        settings = source(server.dsn())
        with connect(settings) as connection:
            ensure_slot(connection, settings)
            for _ in range(4):
                connection.execute("SELECT pg_switch_wal() FROM pg_logical_emit_message(false, 'x', 'x')")
            connection.execute("CHECKPOINT")
            slot = read_slot(connection, settings.slot)
            assert slot is not None
            assert slot.invalidation == "wal_removed"
        error = refusal(settings)
        assert error.code == "slot-lost"
        assert "max_slot_wal_keep_size" in str(error.remedy)
        assert f"pg_drop_replication_slot('{settings.slot}')" in str(error.remedy)


def test_server_without_logical_wal_or_free_slot() -> None:
    limits = {"wal_level": "replica"}
    with CopiedServer(settings=limits) as server:
        error = refusal(source(server.dsn()))
    assert error.code == "wal-level"
    assert "ALTER SYSTEM SET wal_level = logical;" in str(error.remedy)
    with CopiedServer(settings={"max_replication_slots": "1"}) as server:
        settings = source(server.dsn())
        execute(server.dsn(), "SELECT pg_create_physical_replication_slot('taken')")
        with connect(settings) as connection, pytest.raises(DefiniteError) as caught:
            ensure_slot(connection, settings)
    assert caught.value.code == "slots-exhausted"


def test_a_role_without_replication(settings: SourceSettings) -> None:
    name = f"r_{conninfo_to_dict(dsn_of(settings))['dbname']}"
    execute(dsn_of(settings), f"CREATE ROLE {name} LOGIN")
    try:
        weak = settings.model_copy(update={"user": name})
        with connect(weak) as connection, pytest.raises(DefiniteError) as caught:
            ensure_slot(connection, weak)
        assert caught.value.code == "replication-privilege"
        assert f'ALTER ROLE "{name}" REPLICATION;' in str(caught.value.remedy)
    finally:
        execute(dsn_of(settings), f"DROP ROLE {name}")


def test_interrupted_wait_leaves_no_slot_and_usable_connection(settings: SourceSettings) -> None:
    dsn = dsn_of(settings)
    execute(dsn, "CREATE TABLE t (id int PRIMARY KEY)")

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with psycopg.connect(dsn) as idle, connect(settings) as connection:
        idle.execute("INSERT INTO t VALUES (1)")
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            ensure_slot(connection, settings, progress=interrupt)
        assert time.monotonic() - started < 30
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert read_slot(connection, settings.slot) is None


def test_wait_with_failed_cancel_raises_original_error(
    settings: SourceSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = settings.with_timing(Timing(slot_transactions=0.3, cancel=0.3, client_check=0.3))

    def not_taken(**_: object) -> None:
        raise psycopg.errors.CancellationTimeout("nobody answers")

    with psycopg.connect(dsn_of(settings)) as idle:
        idle.execute("SELECT txid_current()")
        connection = connect(hasty)
        monkeypatch.setattr(connection, "cancel_safe", not_taken)
        with pytest.raises(TransientError) as caught:
            ensure_slot(connection, hasty)
        assert caught.value.code == "slot-waits-for-transactions"
        connection.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "deltasmelt-slot"]
