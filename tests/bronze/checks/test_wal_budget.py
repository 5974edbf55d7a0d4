"""The WAL that a slot holds back, the cause and the remaining time: as text, and on a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from deltasmelt.bronze.checks.inspect import inspect
from deltasmelt.bronze.checks.wal_budget import WalBudget, read_budget
from deltasmelt.bronze.config.sections import BronzeSettings
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.setup.slot import read_slot
from tests.bronze.replaying import execute, read_all, source_of
from tests.bronze.running import Running
from tests.patience import wait_for

if TYPE_CHECKING:
    from deltasmelt.bronze.checks.finding import Finding
    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

MB = 1 << 20
NOISE = "SELECT pg_logical_emit_message(false, 'noise', repeat('x', 1000000)) FROM generate_series(1, 80)"


def test_budget_states_time_left_and_holder_of_wal() -> None:
    assert WalBudget(1024 * MB, 300 * MB, 300 * MB, 724 * MB, 2 * MB, reads=False).message == (
        "300 MB of WAL held back; 724 MB of WAL left until max_slot_wal_keep_size (1 GB) is reached; "
        "the server writes 2 MB/s now: 6 min left; no reader uses the slot"
    )
    assert WalBudget(None, 300 * MB, 280 * MB, None, 0.0, reads=True).message == (
        "300 MB of WAL held back; no limit except the server's disk, whose free space PostgreSQL does not "
        "report; the server writes 0 MB/s now; the reader is 280 MB behind (a slow lake, or a large "
        "transaction)"
    )
    assert WalBudget(None, MB, MB, None, None, reads=False).cause == "", "every slot holds some"


def test_budget_of_passed_and_missing_limit() -> None:
    """A passed limit is used up; a missing limit never is."""
    assert WalBudget(64 * MB, 90 * MB, 0, 0, None, reads=True).used == 1
    assert WalBudget(64 * MB, 0, 0, 80 * MB, None, reads=True).used == 0
    assert WalBudget(0, 5 * MB, 0, 0, None, reads=True).used == 1, "a limit of nothing is one"
    assert WalBudget(0, 0, 0, 16 * MB, None, reads=True).used == 0
    assert WalBudget(None, 90 * MB, 0, None, 1.0, reads=True).used == 0
    assert WalBudget(None, 90 * MB, 0, None, 1.0, reads=True).seconds_left is None
    assert WalBudget(64 * MB, 0, 0, 64 * MB, 0.0, reads=True).seconds_left is None, "nothing is written"


def wal_finding(source: SourceSettings) -> Finding:
    with connect(source) as connection:
        all_of_them = inspect(connection, source)
    return next(finding for finding in all_of_them if finding.code in {"wal-held", "slot-at-risk"})


@pytest.mark.postgres
def test_check_names_absent_reader_before_open_transaction(
    own_server: EmbeddedServer, lake_path: str
) -> None:
    source = source_of(own_server.dsn(), slot="smelt_budget")
    execute(source, "CREATE TABLE t (id int PRIMARY KEY)")
    read_all(source, lake_path)
    fresh = wal_finding(source)
    assert (fresh.level, fresh.code) == ("info", "wal-held")
    assert "no limit except the server's disk" in fresh.message
    execute(source, NOISE)
    assert "no reader uses the slot" in wal_finding(source).message

    execute(source, "ALTER SYSTEM SET max_slot_wal_keep_size = '120MB'", "SELECT pg_reload_conf()")
    half = wal_finding(source)
    assert (half.level, half.code) == ("warning", "slot-at-risk")
    assert "(120 MB) is reached" in half.message
    assert half.remedy is not None
    assert half.remedy.startswith("start the pipeline; ")

    execute(source, "ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
    settings = BronzeSettings(flush_interval=0.05, heartbeat=0.2)
    with Running(source, lake_path, bronze=settings), psycopg.connect(own_server.dsn()) as open_one:
        open_one.execute("INSERT INTO t VALUES (1)")
        pid = open_one.info.backend_pid
        execute(source, NOISE)

        def cause() -> str:
            execute(source, "CHECKPOINT")
            with connect(source) as connection:
                slot = read_slot(connection, source.slot)
                assert slot is not None
                budget = read_budget(connection, slot)
                assert budget is not None
                return budget.cause

        wait_for(lambda: f"since the oldest open transaction: pid {pid} " in cause())
        open_one.rollback()
        wait_for(lambda: not cause())


@pytest.mark.postgres
def test_slot_on_standby_has_no_budget(own_server: EmbeddedServer) -> None:
    source = source_of(own_server.dsn(), slot="smelt_standby")
    execute(source, "SELECT pg_create_logical_replication_slot('smelt_standby', 'pgoutput')")
    own_server.stop()
    (own_server.data / "standby.signal").touch()
    own_server.start()
    with connect(source) as connection:
        slot = read_slot(connection, source.slot)
        assert slot is not None
        assert read_budget(connection, slot) is None
        assert "server-in-recovery" in {finding.code for finding in inspect(connection, source)}
