"""Test the checks of every second: traces in the catalog, and a slot near its limit."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from deltasmelt.bronze.catalog.publication import MADE
from deltasmelt.bronze.checks.slot_risk import RiskLevel
from deltasmelt.bronze.checks.wal_budget import WalBudget
from deltasmelt.bronze.config.sections import BronzeSettings
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.progress import Progress
from deltasmelt.bronze.reader.pipeline_errors import PipelineErrors, RetryGate
from deltasmelt.bronze.reader.watch import ColumnsFingerprint, SlotWatch, Watch, catalog_fingerprint
from deltasmelt.bronze.setup.slot import SlotState, read_slot
from deltasmelt.bronze.store.gaps import is_open
from deltasmelt.bronze.store.table_marks import TableMarks
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    bronze_rows,
    current_lsn,
    execute,
    fetch,
    make_reader,
    read_all,
    source_of,
)
from tests.bronze.running import Running
from tests.patience import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

SCHEMA = [
    "CREATE TABLE t (id int PRIMARY KEY, a int)",
    "INSERT INTO t VALUES (1, 1)",
    "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE other (id int PRIMARY KEY)",
    "CREATE TYPE mood AS ENUM ('low')",
    "CREATE TYPE pair AS (x int, y int)",
    "CREATE PUBLICATION smelt FOR TABLE t, p",
]


@pytest.fixture
def source(database: str) -> SourceSettings:
    source = source_of(database, tables=["public.t", "public.p"])
    execute(source, *SCHEMA)
    return source


def trace(source: SourceSettings) -> tuple[object, ...]:
    with connect(source) as connection:
        query = "SELECT oid FROM pg_class WHERE relname IN ('t', 'p', 'p1')"
        oids = [row[0] for row in connection.execute(query)]
        query = "SELECT oid FROM pg_type WHERE typname IN ('mood', 'pair')"
        types = [row[0] for row in connection.execute(query)]
        read = catalog_fingerprint(connection, "smelt", oids, types)
        return (*read, ColumnsFingerprint().read(connection, oids))


@pytest.mark.postgres
@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ALTER a TYPE int USING a + 1",
        "ALTER TABLE t ADD v int DEFAULT 7",
        "ALTER TABLE t ADD v float8 DEFAULT random()",
        "DROP TABLE t",
        "ALTER TABLE p ATTACH PARTITION other FOR VALUES FROM (10) TO (20)",
        "ALTER TABLE p DETACH PARTITION p1",
        "DROP TABLE p1",
        "TRUNCATE p1",
        "ALTER PUBLICATION smelt DROP TABLE t; ALTER PUBLICATION smelt ADD TABLE t",
        "ALTER PUBLICATION smelt SET (publish = 'insert')",
        "ALTER PUBLICATION smelt ADD TABLES IN SCHEMA public",
        "DROP PUBLICATION smelt",
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
        "ALTER TABLE p DROP CONSTRAINT p_pkey",
        "ALTER TABLE t RENAME a TO b",
        "ALTER TABLE t DROP a",
        "ALTER TYPE mood RENAME VALUE 'low' TO 'high'",
        "ALTER TYPE mood ADD VALUE 'high'",
        "ALTER TYPE pair DROP ATTRIBUTE y",
        "ALTER TYPE pair ADD ATTRIBUTE z int",
        "ALTER TYPE pair RENAME ATTRIBUTE y TO z",
    ],
)
def test_a_statement_without_events_leaves_a_trace(source: SourceSettings, statement: str) -> None:
    before = trace(source)
    execute(source, *statement.split("; "))
    assert trace(source) != before


@pytest.mark.postgres
def test_what_happens_all_the_time_leaves_none(source: SourceSettings) -> None:
    execute(source, "VACUUM ANALYZE t", "CREATE TABLE x (id int)")
    before = trace(source)
    execute(
        source,
        "INSERT INTO t SELECT i, i FROM generate_series(2, 5000) i",
        "UPDATE t SET a = 0",
        "VACUUM ANALYZE t",
        "CREATE INDEX ON t (a)",
        "DROP TABLE x",
    )
    assert trace(source) == before


@pytest.mark.postgres
def test_columns_are_read_after_counted_changes_alone(source: SourceSettings) -> None:
    columns = ColumnsFingerprint()

    def counted() -> int:
        return int(fetch(source, "SELECT pg_stat_get_tuples_updated('pg_catalog.pg_attribute'::regclass)"))

    with connect(source) as connection:
        oid = connection.execute("SELECT 'public.t'::regclass::oid").fetchone()
        assert oid is not None
        first = columns.read(connection, oid)
        execute(source, "ALTER TABLE other ADD n int DEFAULT 7", "CREATE TABLE y (id serial)")
        assert columns.read(connection, oid) == first
        before = counted()
        execute(source, "ALTER TABLE t RENAME a TO b")
        wait_for(lambda: counted() > before, 30)  # a backend reports its counts as it ends, after the client
        assert columns.read(connection, oid) != first


@pytest.mark.postgres
def test_a_rewrite_is_noticed_by_a_running_reader(source: SourceSettings, lake_path: str) -> None:
    def copies() -> int:
        rows = bronze_rows(lake_path)
        return sum((row["op"], row["table_name"]) == ("snapshot_end", "t") for row in rows)

    hasty = source.with_timing(Timing(watch=0.1))
    with Running(hasty, lake_path) as running:
        wait_for(lambda: copies() == 1)
        time.sleep(0.5)
        assert copies() == 1
        execute(source, "ALTER TABLE t ALTER a TYPE bigint USING a * 1000")
        wait_for(lambda: copies() == 2, 30)
        assert running.error is None
    read_all(source, lake_path)
    assert copies() == 2
    assert_bronze_equals_source(source, lake_path, "public.t")


@pytest.mark.postgres
def test_a_table_without_identity_leaves_and_comes_back(source: SourceSettings, lake_path: str) -> None:
    """Keys of a table and of partitions, an identity index, NOTHING on a partition; `other` continues."""
    tables = ("t", "p", "i", "q", "other")
    source = source.model_copy(update={"tables": [f"public.{name}" for name in tables]})
    execute(
        source,
        "CREATE TABLE i (id int NOT NULL, a int)",
        "CREATE UNIQUE INDEX i_id ON i (id)",
        "ALTER TABLE i REPLICA IDENTITY USING INDEX i_id",
        "CREATE TABLE q (id int PRIMARY KEY, a int) PARTITION BY RANGE (id)",
        "CREATE TABLE q1 PARTITION OF q FOR VALUES FROM (0) TO (5)",
        "CREATE TABLE q2 PARTITION OF q FOR VALUES FROM (5) TO (10)",
        "INSERT INTO i VALUES (1, 1)",
        "INSERT INTO q VALUES (1, 1), (6, 1)",
        "INSERT INTO p VALUES (1)",
        f"COMMENT ON PUBLICATION smelt IS '{MADE}'",
    )
    read_all(source, lake_path)
    control = ControlTables(Lake(lake_path))

    def works(statement: str) -> bool:
        try:
            execute(source, statement)
        except psycopg.errors.ObjectNotInPrerequisiteState:
            return False
        return True

    with Running(source, lake_path) as running:
        wait_for(lambda: running.reader.progress.read()["phase"] == "streaming")
        execute(
            source,
            "ALTER TABLE t DROP CONSTRAINT t_pkey",
            "ALTER TABLE p DROP CONSTRAINT p_pkey",
            "DROP INDEX i_id",
            "ALTER TABLE q2 REPLICA IDENTITY NOTHING",
            "INSERT INTO t VALUES (2, 2)",
        )
        for statement in (
            "UPDATE t SET a = 7",
            "UPDATE p SET id = 2",
            "DELETE FROM i",
            "UPDATE q SET a = 7",
            "INSERT INTO other VALUES (1)",
        ):
            wait_for(partial(works, statement), 5)
        wait_for(lambda: len(control.open_errors()) == 4)
        errors = {error.name: error for error in control.open_errors()}
        assert {name: error.code for name, error in errors.items()} == {
            "public.t": "table-without-key",
            "public.p": "table-without-key",
            "public.i": "table-without-key",
            "public.q": "replica-identity-nothing",
        }
        assert all(
            ("the reader leaves the table out of the publication") in error.message
            for error in errors.values()
        )
        execute(
            source,
            "INSERT INTO i VALUES (3, 3)",
            "ALTER TABLE t ADD PRIMARY KEY (id)",
            "ALTER TABLE p ADD PRIMARY KEY (id)",
            "ALTER TABLE i ADD PRIMARY KEY (id)",
            "ALTER TABLE i REPLICA IDENTITY DEFAULT",
            "ALTER TABLE q2 REPLICA IDENTITY DEFAULT",
        )
        wait_for(lambda: running.error is not None or control.open_errors() == [], 40)
        execute(
            source, "UPDATE t SET a = 8", "UPDATE q SET a = 8", "DELETE FROM p", "INSERT INTO p VALUES (4)"
        )
        assert running.error is None
    read_all(source, lake_path)
    assert_bronze_equals_source(source, lake_path, *(f"public.{name}" for name in tables))


@pytest.mark.postgres
def test_a_rewrite_is_noticed_beside_a_copy(source: SourceSettings, lake_path: str) -> None:
    read_all(source, lake_path)
    wider = source.model_copy(update={"tables": ["public.t", "public.other"]})
    copying, go_on = threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "snapshot-exported":
            copying.set()
            go_on.wait(60)

    def gap() -> bool:
        return is_open(open_existing(f"{lake_path}/bronze/changes"), TableName("public", "t"))

    with Running(wider, lake_path, reached=hold) as running:
        try:
            wait_for(copying.is_set)
            assert not gap()
            execute(source, "ALTER TABLE t ALTER a TYPE bigint USING a * 1000")
            wait_for(gap, 30)
        finally:
            go_on.set()
        wait_for(lambda: running.error is not None or not gap(), 30)
        assert running.error is None
    read_all(wider, lake_path)
    assert_bronze_equals_source(wider, lake_path, "public.t", "public.other")


@pytest.mark.postgres
def test_an_overtaken_look_requests_no_second_copy(
    source: SourceSettings, lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wider = source.model_copy(update={"tables": ["public.t", "public.other"]})
    read_all(wider, lake_path)
    execute(source, "ALTER TABLE t ALTER a TYPE bigint USING a * 1000")
    copying, arrived, copied = threading.Event(), threading.Event(), threading.Event()
    open_gaps = TableMarks.open_gaps

    def overtaken(marks: TableMarks, tables: Sequence[TableName], lsn: Lsn, *, beyond: bool = False) -> None:
        if copying.is_set() and not arrived.is_set():
            arrived.set()
            assert copied.wait(30)
        open_gaps(marks, tables, lsn, beyond=beyond)

    def reached(point: str) -> None:
        if point == "snapshot-exported" and not copied.is_set():
            copying.set()
            assert arrived.wait(30)
        if point == "snapshot-committed":
            copied.set()

    monkeypatch.setattr(TableMarks, "open_gaps", overtaken)
    with Running(wider, lake_path, reached=reached) as running:
        wait_for(copying.is_set)
        execute(source, "ALTER TABLE other ALTER id TYPE bigint USING id + 100")

        def taken() -> dict[str, int]:
            ends = [row["table_name"] for row in bronze_rows(lake_path) if row["op"] == "snapshot_end"]
            return {name: ends.count(name) for name in ("t", "other")}

        wait_for(lambda: running.error is not None or taken()["other"] == 2, 30)
        assert running.error is None
    read_all(wider, lake_path)
    assert taken() == {"t": 2, "other": 2}
    assert_bronze_equals_source(wider, lake_path, "public.t", "public.other")


@pytest.mark.postgres
def test_a_target_waits_for_a_second_round(source: SourceSettings, lake_path: str) -> None:
    read_all(source, lake_path)
    with connect(source) as connection:
        until = Lsn(current_lsn(connection) + 300_000)
    copying, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "snapshot-exported":
            copying.set()
            go_on.wait(60)

    reader = make_reader(source, lake_path, reached=hold)

    def run() -> None:
        reader.run(until=until)
        ended.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        wait_for(lambda: reader.progress.read()["phase"] == "streaming")
        time.sleep(0.5)  # the first round, which has nothing to copy, is over
        execute(source, "ALTER TABLE t ALTER a TYPE bigint USING a * 1000")
        wait_for(copying.is_set)
        execute(source, "SELECT pg_logical_emit_message(true, 'noise', repeat('x', 400000))")
        wait_for(lambda: reader.progress.read()["durable"] > until)
        assert not ended.wait(1)
    finally:
        go_on.set()
    assert ended.wait(20)
    thread.join()
    assert_bronze_equals_source(source, lake_path, "public.t")


@pytest.mark.postgres
def test_a_failed_watch_ends_the_reader(
    source: SourceSettings, lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> tuple[object, ...]:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr("deltasmelt.bronze.reader.watch.catalog_fingerprint", fails)
    with Running(source, lake_path) as running:
        assert isinstance(running.wait_until_failed(), ZeroDivisionError)


@pytest.mark.postgres
def test_a_long_look_leaves_the_watch_free(source: SourceSettings) -> None:
    looks: list[float] = []

    def meanwhile() -> bool:
        looks.append(time.monotonic())
        time.sleep(0.3)
        return True

    hasty = source.with_timing(Timing(watch=0.05))
    nothing: Any = None
    gate = RetryGate(PipelineErrors(Lake(""), "shop", nothing), hasty.timing)
    watch = Watch(hasty, Progress(), list, meanwhile, lambda: True, retry_gate=gate)
    watch.start()
    try:
        wait_for(lambda: len(looks) >= 3, 15)
    finally:
        watch.stop()


SLOT = SlotState("s", "pgoutput", Lsn(5), 1, "reserved", 100)


def test_each_level_of_danger_is_reported_once() -> None:
    watch = SlotWatch()

    def look(
        now: float, safe: int | None, status: str = "reserved", copies: float | None = None
    ) -> RiskLevel | None:
        warnings_now = watch.check(replace(SLOT, safe_wal_size=safe, wal_status=status), now, copies)
        return None if warnings_now is None else warnings_now.level

    assert look(0, None) is None, "there is no limit"
    assert look(5, 10_000) is None, "no rate is known yet"
    assert look(10, 9_990) is None, "83 minutes are left"
    assert look(15, 9_980, copies=7200) == RiskLevel.SHORT, "the copies take longer"
    assert look(20, 9_970, copies=7200) is None
    assert look(25, 9_970, copies=7200) is None, "nothing is written for a moment"
    assert look(30, 9_960, copies=7200) is None
    assert look(35, 5_000) is None
    assert look(40, 9_990) is None, "the reader caught up"
    assert look(45, 5_000) == RiskLevel.SHORT
    assert look(50, -100, "unreserved") == RiskLevel.NEXT_CHECKPOINT
    assert look(55, -100, "unreserved") is None
    assert look(60, 9_000) is None, "the reader caught up"
    assert look(65, 100) == RiskLevel.SHORT
    assert look(70, None) is None, "the limit was taken away"
    assert look(75, 100) is None
    assert look(80, 90) == RiskLevel.SHORT


def test_half_of_the_budget_is_reported_once() -> None:
    watch = SlotWatch()

    def look(now: float, left: int) -> str | None:
        slot = replace(SLOT, safe_wal_size=left << 20, restart=Lsn(1))
        used = (1000 - left) << 20
        budget = WalBudget(1000 << 20, used, used, left << 20, None, reads=True)
        warnings_now = watch.check(slot, now, None, budget)
        return None if warnings_now is None else warnings_now.message

    assert look(0, 600) is None
    warnings_first = look(1000, 480)
    assert warnings_first is not None
    assert (
        "used 52% of the 1,000 MB of WAL that the server keeps for the slot, 480 MB is left" in warnings_first
    )
    assert "67 min at the present rate" in warnings_first
    assert "the reader is 520 MB behind" in warnings_first
    assert "raise max_slot_wal_keep_size" in warnings_first
    assert look(2000, 470) is None
    assert look(3000, 520) is None, "a segment less"
    assert look(4000, 480) is None, "it is still about half"
    assert look(5000, 700) is None
    assert look(6000, 450) is not None
    lost = look(6001, 440)
    assert lost is not None
    assert "at the present rate the slot is lost in 44 s" in lost
    assert look(7000, 445) is None, "from the higher level back to half"


def test_a_limit_below_a_segment_is_reported_hourly() -> None:
    watch = SlotWatch()

    def look(now: float, left: int, status: str) -> bool:
        budget = WalBudget(1 << 20, 1 << 20, 0, max(left, 0) << 20, None, reads=True)
        slot = replace(SLOT, safe_wal_size=left << 20, wal_status=status)
        return watch.check(slot, now, None, budget) is not None

    passes = [
        (now, look(now, -1, "unreserved") or look(now + 60, 15, "reserved")) for now in range(5, 8000, 600)
    ]
    assert [now for now, warned in passes if warned] == [5, 4205]


@pytest.mark.postgres
def test_a_long_copy_holds_no_wal_back(own_server: EmbeddedServer, lake_path: str) -> None:
    source = source_of(own_server.dsn(), slot="smelt_long_copy")
    execute(
        source,
        "ALTER SYSTEM SET max_slot_wal_keep_size = '64MB'",
        "SELECT pg_reload_conf()",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
    )
    copying, go_on = threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "snapshot-exported":
            copying.set()
            go_on.wait(60)

    def restart() -> Lsn:
        with connect(source) as connection:
            slot = read_slot(connection, source.slot)
            assert slot is not None
            assert slot.wal_status in {"reserved", "extended"}
            return slot.restart

    write = "SELECT pg_logical_emit_message(false, 'noise', repeat('x', 1000000)) FROM generate_series(1, 8)"
    settings = BronzeSettings(flush_interval=0.05, heartbeat=0.2)
    with Running(source, lake_path, reached=hold, bronze=settings) as running:
        try:
            wait_for(copying.is_set)
            begin = moved = restart()
            while moved < begin + (96 << 20):  # half as much again as the server keeps
                execute(source, write)
                before, deadline = moved, time.monotonic() + 20
                while (moved := restart()) < before + (4 << 20):
                    assert time.monotonic() < deadline
                    execute(source, "CHECKPOINT")  # says which transactions run; the slot can move there
                    time.sleep(0.1)
            assert running.error is None
            assert not go_on.is_set()
        finally:
            go_on.set()
        wait_for(lambda: running.reader.progress.read()["snapshots"]["public.t"]["done"])
    assert running.error is None
    assert_bronze_equals_source(source, lake_path, "public.t")


@pytest.mark.postgres
def test_a_slot_in_danger_is_reported_in_time(
    own_server: EmbeddedServer,
    lake_path: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "deltasmelt.reader")
    source = source_of(own_server.dsn(), timing=Timing(watch=0.1, watch_slot=0.2), slot="smelt_danger")
    execute(
        source,
        "ALTER SYSTEM SET max_slot_wal_keep_size = '64MB'",
        "ALTER SYSTEM SET max_wal_size = '4GB'",
        "SELECT pg_reload_conf()",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
    )
    copying, go_on = threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "snapshot-exported":
            copying.set()
        if point in ("snapshot-exported", "parts-written") and copying.is_set():
            go_on.wait(60)

    def said(text: str) -> int:
        return sum(
            "slot smelt_danger" in record.message and text in record.message for record in caplog.records
        )

    write = "SELECT pg_logical_emit_message(false, 'noise', repeat('x', 1000000)) FROM generate_series(1, {})"
    with Running(source, lake_path, reached=hold) as running:
        try:
            wait_for(copying.is_set)
            execute(source, "INSERT INTO t VALUES (2)")
            # On a busy machine seconds lie between two looks; the limit is not to be passed meanwhile.
            for text, megabytes in (("the slot is lost in", 1), ("next checkpoint", 4)):
                deadline = time.monotonic() + 30
                while not said(text):
                    assert time.monotonic() < deadline, text
                    execute(source, write.format(megabytes))
                    time.sleep(0.3)
            assert "max_slot_wal_keep_size" in running.reader.progress.read()["said"]
        finally:
            go_on.set()
        wait_for(lambda: running.error is not None or running.reader.progress.read()["changes"] >= 1)
    assert running.error is None
    assert (said("the slot is lost in"), said("next checkpoint")) == (1, 1)
