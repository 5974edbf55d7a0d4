"""Temporary faults between reader and server: broken, silent and slow lines, and ended sessions."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from deltalake import DeltaTable
from psycopg.conninfo import conninfo_to_dict

from deltasmelt.bronze.config.sections import BronzeSettings
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.postgres.liveness import CopyLine
from deltasmelt.bronze.snapshot.copy_out import copy_blocks
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    assert_each_change_once,
    bronze_rows,
    execute,
    fetch,
    read_all,
    source_of,
)
from tests.bronze.running import Running
from tests.patience import wait_for
from tests.torture.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

pytestmark = pytest.mark.postgres

ITEMS = "CREATE TABLE items (id int PRIMARY KEY, note text)"


@pytest.fixture
def proxy(source: SourceSettings) -> Iterator[Proxy]:
    assert source.dsn is not None
    with Proxy(int(str(conninfo_to_dict(source.dsn.get_secret_value())["port"]))) as proxy:
        yield proxy


def through(proxy: Proxy, source: SourceSettings) -> SourceSettings:
    """Return the source behind the proxy."""
    assert source.dsn is not None
    return source_of(proxy.dsn(source.dsn.get_secret_value()), timing=source.timing, slot=source.slot)


def insert(source: SourceSettings, rows: int = 1, width: int = 10) -> None:
    execute(
        source,
        f"INSERT INTO items SELECT i, repeat('x', {width}) "
        f"FROM generate_series((SELECT coalesce(max(id), 0) + 1 FROM items), "
        f"(SELECT coalesce(max(id), 0) FROM items) + {rows}) i",
    )


def changes(running: Running) -> int:
    assert running.error is None
    count: int = running.reader.progress.read()["changes"]
    return count


def connections(running: Running) -> int:
    assert running.error is None
    count: int = running.reader.progress.read()["connections"]
    return count


def wait_for_copy(running: Running, seconds: float = 20.0) -> None:
    wait_for(
        lambda: (
            "public.items" in (copies := running.reader.progress.read()["snapshots"])
            and copies["public.items"]["done"]
        ),
        seconds,
    )


def errors_ever(lake_path: str) -> set[str]:
    place = f"{lake_path}/control/errors"
    if not DeltaTable.is_deltatable(place):
        return set()
    return set(DeltaTable(place).to_pyarrow_table()["code"].to_pylist())


def assert_healed(source: SourceSettings, lake_path: str, *codes: str) -> None:
    """Check that no change is missing or duplicated, and that the fault was recorded and closed.

    The recorded codes must be among `codes`; without `codes` nothing may be recorded.
    """
    read_all(source, lake_path)
    assert ControlTables(Lake(lake_path)).open_errors() == []
    errors = errors_ever(lake_path)
    assert errors <= set(codes)
    assert bool(errors) == bool(codes)
    assert_each_change_once(bronze_rows(lake_path))
    assert_bronze_equals_source(source, lake_path, "public.items")


def test_a_line_cut_repeatedly_loses_nothing(source: SourceSettings, proxy: Proxy, lake_path: str) -> None:
    execute(source, ITEMS)
    with Running(through(proxy, source), lake_path) as running:
        for number in range(4):
            insert(source, 300)
            proxy.cut()
            wait_for(lambda number=number: connections(running) > number + 1)  # type: ignore[misc]
        insert(source)
        wait_for(lambda: changes(running) == 1201)
    # A copy that two cuts in a row meet fails, and is retried after a pause.
    assert_healed(source, lake_path, "connection-lost", "server-unreachable", "copy-failed")


def test_a_line_stalled_within_a_message_is_renewed(
    source: SourceSettings, proxy: Proxy, lake_path: str
) -> None:
    source = source.with_timing(Timing(line_silence=1.5, reader_silence=2.0))
    execute(source, ITEMS)
    with Running(through(proxy, source), lake_path) as running:
        insert(source)
        wait_for(lambda: changes(running) == 1)
        wait_for_copy(running)
        proxy.leave_open = True
        proxy.stall(after=50_000)
        insert(source, 3, width=100_000)
        wait_for(lambda: "connection-lost" in errors_ever(lake_path))
        wait_for(lambda: connections(running) == 2, 40)
        wait_for(lambda: changes(running) == 4)
        [value] = [
            row["message"]
            for row in DeltaTable(f"{lake_path}/control/errors").to_pyarrow_table().to_pylist()
            if row["code"] == "connection-lost"
        ]
        assert value.startswith("nothing has arrived over the replication connection")
    assert_healed(source, lake_path, "connection-lost")


def test_a_copy_with_a_stalled_line_is_renewed(source: SourceSettings, proxy: Proxy, lake_path: str) -> None:
    source = source.with_timing(Timing(line_silence=1.5, copy_silence=1.5))
    execute(source, ITEMS)
    insert(source, 20_000, width=1000)
    stalled = threading.Event()

    def stall(point: str) -> None:
        if point == "snapshot-block-written" and not stalled.is_set():
            stalled.set()
            proxy.stall(after=100_000)

    with Running(through(proxy, source), lake_path, reached=stall) as running:
        wait_for(stalled.is_set)
        wait_for_copy(running, 40)
        insert(source)
        wait_for(lambda: changes(running) == 1, 40)
    assert_healed(source, lake_path, "connection-lost")


def test_a_copy_waiting_for_the_server_stays(source: SourceSettings) -> None:
    source = source.with_timing(Timing(copy_silence=0.5))
    with connect(source) as connection:
        line = CopyLine(source, connection)

        def nothing_came() -> bool:
            line.nothing_came()
            return False

        sleeping = "SELECT 1 FROM (SELECT pg_sleep(3) OFFSET 0) s"
        rows = copy_blocks(connection, sleeping, nothing_came, poll_seconds=source.timing.copy_poll)
        assert b"".join(rows) == b"1\n"
        time.sleep(0.6)  # the server waits for us now
        with pytest.raises(TransientError, match="no part of an answer has arrived"):
            nothing_came()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


@pytest.mark.torture
def test_a_stalled_line_with_waiting_data_is_renewed(
    source: SourceSettings, proxy: Proxy, lake_path: str
) -> None:
    source = source.with_timing(Timing(line_silence=1.5))
    execute(source, ITEMS)
    with Running(through(proxy, source), lake_path) as running:
        wait_for_copy(running)
        proxy.stall(after=100)
        insert(source, 100_000, width=100)  # more than the buffers on the way can hold
        wait_for(lambda: connections(running) == 2, 40)
        wait_for(lambda: changes(running) == 100_000, 40)
    assert_healed(source, lake_path, "connection-lost")


def test_a_quiet_line_is_asked_and_kept(source: SourceSettings, proxy: Proxy, lake_path: str) -> None:
    source = source.with_timing(Timing(line_silence=0.6))
    execute(source, ITEMS)
    with Running(through(proxy, source), lake_path) as running:
        time.sleep(3)
        insert(source)
        wait_for(lambda: changes(running) == 1)
        assert connections(running) == 1
    assert_healed(source, lake_path)


@pytest.mark.torture
def test_a_slow_line_is_only_slow(source: SourceSettings, proxy: Proxy, lake_path: str) -> None:
    execute(source, ITEMS)
    proxy.delay = 0.02
    with Running(through(proxy, source), lake_path) as running:
        for _ in range(5):
            insert(source, 200)
        wait_for(lambda: changes(running) == 1000, 40)
        wait_for_copy(running)
        assert connections(running) == 1
    assert_healed(source, lake_path)


@pytest.mark.torture
def test_a_long_decoding_keeps_its_line(own_server: EmbeddedServer, lake_path: str) -> None:
    timing = Timing(line_silence=0.5)
    source = source_of(own_server.dsn(), timing=timing, slot="smelt_long", exclude=["public.left_out"])
    execute(
        source,
        ITEMS,
        "CREATE TABLE left_out (id int, note text)",
        "ALTER SYSTEM SET wal_sender_timeout = '1s'",
        "ALTER SYSTEM SET logical_decoding_work_mem = '64kB'",
        "SELECT pg_reload_conf()",
    )
    with Running(source, lake_path) as running:
        execute(source, "INSERT INTO left_out SELECT i, repeat('x', 20) FROM generate_series(1, 1500000) i")
        insert(source)
        wait_for(lambda: changes(running) == 1, 60)
        assert connections(running) == 1
    assert_healed(source, lake_path)


@pytest.mark.torture
def test_an_idle_database_lets_the_slot_advance(own_server: EmbeddedServer, lake_path: str) -> None:
    source = source_of(own_server.dsn(), slot="smelt_idle")
    busy = source_of(own_server.dsn("busy"))
    execute(source, ITEMS, "CREATE DATABASE busy")
    execute(busy, "CREATE TABLE noise (n int)")
    behind = (
        "SELECT (pg_current_wal_lsn() - confirmed_flush_lsn)::bigint FROM pg_replication_slots "
        "WHERE slot_name = 'smelt_idle'"
    )
    with Running(source, lake_path, bronze=BronzeSettings(heartbeat=0.3)):
        for _ in range(3):
            execute(busy, "INSERT INTO noise SELECT generate_series(1, 20000)")
            wait_for(lambda: fetch(source, behind) < 10_000)
    assert {row["op"] for row in bronze_rows(lake_path)} == {"snapshot_end"}


def killed_in_mid_air(source: SourceSettings, proxy: Proxy, lake_path: str) -> None:
    """Leave a session as a vanished machine does: its line is silent, and the server's side stays open."""
    proxy.leave_open = True
    with Running(through(proxy, source), lake_path) as running:
        insert(source)
        wait_for(lambda: changes(running) == 1)
        wait_for_copy(running)
        proxy.stall()
    assert fetch(source, "SELECT active FROM pg_replication_slots WHERE slot_name = %s", source.slot)


def test_the_walsender_of_a_vanished_reader_is_ended(
    source: SourceSettings, proxy: Proxy, lake_path: str
) -> None:
    source = source.with_timing(Timing(reader_silence=2.0))
    execute(source, ITEMS)
    killed_in_mid_air(source, proxy, lake_path)
    insert(source)
    started = time.monotonic()
    read_all(source, lake_path)
    assert time.monotonic() - started < 15
    assert_healed(source, lake_path)


@pytest.mark.torture
def test_a_plain_role_waits_for_the_silent_walsender(own_server: EmbeddedServer, lake_path: str) -> None:
    admin = source_of(own_server.dsn(), slot="smelt_stale")
    execute(
        admin,
        ITEMS,
        "CREATE ROLE plain LOGIN REPLICATION",
        "ALTER TABLE items OWNER TO plain",
        "GRANT CREATE ON DATABASE postgres TO plain",
        "ALTER SYSTEM SET wal_sender_timeout = '4s'",
        "SELECT pg_reload_conf()",
    )
    timing = Timing(slot_release=0.5)
    plain = source_of(own_server.dsn(user="plain"), timing=timing, slot="smelt_stale")
    with Proxy(own_server.port) as proxy:
        killed_in_mid_air(plain, proxy, lake_path)
        insert(plain)
        read_all(plain, lake_path)
    assert_healed(plain, lake_path)


@pytest.mark.parametrize("mode", [pytest.param("fast", marks=pytest.mark.torture), "immediate"])
def test_a_server_restarting_under_load_is_awaited(
    own_server: EmbeddedServer, lake_path: str, mode: Any
) -> None:
    source = source_of(own_server.dsn(), slot="smelt_restarts")
    execute(source, ITEMS)
    with Running(source, lake_path) as running:
        for number in range(2):
            insert(source, 2000)
            own_server.restart(mode)
            wait_for(lambda number=number: connections(running) > number + 1, 60)  # type: ignore[misc]
        insert(source)
        wait_for(lambda: changes(running) == 4001)
    assert_healed(
        source, lake_path, "connection-lost", "server-unreachable", "server-starting", "stream-ended"
    )
