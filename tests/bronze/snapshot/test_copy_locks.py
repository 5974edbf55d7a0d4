"""A copy's locks are few and never deadlock with the application; a locked table waits alone."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import deltasmelt.bronze.snapshot.locks
from deltasmelt.bronze.catalog.source_table import SourceTable
from deltasmelt.bronze.config.sections import SnapshotSettings, SourceSettings
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.errors import SmeltError, TableError, TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import ZERO
from deltasmelt.bronze.shapes import Relation
from deltasmelt.bronze.snapshot.copy_out import cells_of
from deltasmelt.bronze.snapshot.locks import groups
from deltasmelt.bronze.snapshot.table_copy import Outcome
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    execute,
    fetch,
    read_all,
    read_snapshot,
    session,
    source_of,
)
from tests.bronze.running import Running
from tests.bronze.snapshot.test_snapshot import take
from tests.patience import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

A, B = TableName("public", "a"), TableName("public", "b")
OUR_LOCKS = """
    SELECT count(*) FROM pg_locks l JOIN pg_stat_activity s USING (pid)
    WHERE s.application_name = 'deltasmelt snapshot' AND l.locktype = 'relation' AND l.granted
      AND s.datname = current_database() AND l.relation >= 16384
"""
"""Locks of users' tables; each statement also locks system catalogs, OIDs below 16384, for a moment."""


def partitioned(partitions: int, rows: int) -> list[str]:
    return [
        "CREATE TABLE m (id int PRIMARY KEY, note text) PARTITION BY HASH (id)",
        *(
            f"CREATE TABLE m{number} PARTITION OF m "
            f"FOR VALUES WITH (MODULUS {partitions}, REMAINDER {number})"
            for number in range(partitions)
        ),
        f"INSERT INTO m SELECT i, 'n' FROM generate_series(1, {rows}) i",
    ]


def at(point: str, act: Callable[[], Any]) -> Callable[[str], None]:
    """Call an action when the snapshot first reaches a point."""
    passed: list[str] = []

    def reached(name: str) -> None:
        if name == point and not passed:
            passed.append(name)
            act()

    return reached


@pytest.mark.postgres
def test_partitions_made_before_locks_are_copied(source: SourceSettings, lake_path: str) -> None:
    """The partitions are made between the catalog poll and the locks."""
    execute(
        source,
        "CREATE TABLE m (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (0) TO (10)",
        "INSERT INTO m VALUES (1)",
        "CREATE TABLE alone (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    )

    def made_meanwhile(tables: list[SourceTable]) -> list[SourceTable]:
        execute(
            source,
            "CREATE TABLE m2 PARTITION OF m FOR VALUES FROM (10) TO (20)",
            "INSERT INTO m VALUES (11), (12)",
        )
        return tables

    outcome = take(source, lake_path, select=made_meanwhile)
    assert outcome.failed == []
    assert_bronze_equals_source(source, lake_path, "public.m", "public.alone")


@pytest.mark.postgres
def test_partition_attached_after_locks_is_copied_as_snapshotted(
    source: SourceSettings, lake_path: str
) -> None:
    """The copy reads the partition in the state of the snapshot."""
    execute(
        source,
        "CREATE TABLE m (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE later (id int PRIMARY KEY)",
        "INSERT INTO later VALUES (15)",
        "INSERT INTO m VALUES (1)",
    )
    attach = "ALTER TABLE m ATTACH PARTITION later FOR VALUES FROM (10) TO (20)"
    outcome = take(
        source,
        lake_path,
        select=lambda tables: [table for table in tables if table.table.name == "m"],
        reached=at("snapshot-locked", lambda: execute(source, attach)),
    )
    assert outcome.failed == []
    assert_bronze_equals_source(source, lake_path, "public.m")


@pytest.mark.postgres
def test_session_blocked_by_slot_creation_proceeds_first(source: SourceSettings, lake_path: str) -> None:
    execute(source, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    stop, failures = threading.Event(), list[BaseException]()

    def copy() -> None:
        try:
            take(source, lake_path, stop=stop)
        except SmeltError as error:
            failures.append(error)

    copying = threading.Thread(target=copy)
    altering = threading.Thread(target=execute, args=(source, "ALTER TABLE t ADD COLUMN later int DEFAULT 7"))
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted"
    with session(source) as older:
        older.execute("BEGIN")
        older.execute("SELECT pg_current_xact_id()")
        copying.start()
        # The slot waits for that transaction; until now nobody waits for us.
        wait_for(lambda: fetch(source, waiting) > 0)
        time.sleep(1)
        altering.start()
        altering.join(15)
        went = not altering.is_alive()  # before the slot can be made
        older.execute("COMMIT")
    stop.set()
    copying.join(30)
    altering.join(30)
    assert went, "the ALTER waits for the copy, whose slot waits for the ALTER"
    assert [getattr(error, "code", error) for error in failures] == ["lock-not-available"]


@pytest.mark.postgres
def test_locked_table_fails_alone_and_names_holder(source: SourceSettings, lake_path: str) -> None:
    source = source.with_timing(Timing(group_locks=1.0))
    execute(source, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    with session(source) as second:

        def lock(tables: list[SourceTable]) -> list[SourceTable]:
            second.execute("BEGIN")
            second.execute("LOCK TABLE a IN ACCESS EXCLUSIVE MODE")
            return tables

        # Making the slot waits for everybody who has a transaction number, as who locks so has.
        table_errors: list[TableError] = []

        def hear(error: TableError) -> None:
            table_errors.append(error)
            second.execute("ROLLBACK")

        outcome = Outcome(report=hear)
        take(source, lake_path, select=lock, outcome=outcome)
        pid = second.info.backend_pid
    assert outcome.copied == [B]
    [error] = outcome.failed
    assert table_errors == [error]
    assert (error.table, error.code) == (A, "table-locked")
    assert f"backend {pid}, AccessExclusiveLock" in error.message


@pytest.mark.postgres
def test_unpublishable_table_is_recorded_and_others_continue(source: SourceSettings, lake_path: str) -> None:
    source = source.with_timing(Timing(catalog_poll=0.3, members_lock=0.3, member_lock=0.3))
    tables = ("a", "b", "c")
    execute(
        source,
        *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in tables),
        *(f"INSERT INTO {name} VALUES (1)" for name in tables),
    )
    control = ControlTables(Lake(lake_path))
    with session(source) as second:
        second.execute("BEGIN")
        second.execute("LOCK TABLE a IN SHARE UPDATE EXCLUSIVE MODE")  # as VACUUM, CREATE INDEX CONCURRENTLY
        with Running(source, lake_path) as running:
            wait_for(lambda: running.error is not None or read_snapshot(Lake(lake_path), B) is not None)
            wait_for(lambda: running.error is not None or control.open_errors() != [])
            assert [(error.name, error.code) for error in control.open_errors()] == [
                ("public.a", "table-locked")
            ]
            execute(source, "INSERT INTO c VALUES (2)")
            wait_for(lambda: running.error is not None or running.reader.progress.read()["changes"] >= 1)
            second.execute("COMMIT")
            wait_for(lambda: running.error is not None or read_snapshot(Lake(lake_path), A) is not None)
            wait_for(lambda: control.open_errors() == [])
            execute(source, "INSERT INTO a VALUES (2)")
        assert running.error is None
    read_all(source, lake_path)
    assert_bronze_equals_source(source, lake_path, *(f"public.{name}" for name in tables))


@pytest.mark.postgres
def test_each_partition_is_locked_once_for_any_workers(source: SourceSettings, lake_path: str) -> None:
    execute(source, *partitioned(30, 3000), "CREATE TABLE t (id int PRIMARY KEY)")
    counts: list[int] = []

    def count(point: str) -> None:
        if point in ("snapshot-exported", "snapshot-block-written"):
            counts.append(fetch(source, OUR_LOCKS))

    outcome = take(source, lake_path, settings=SnapshotSettings(workers=4, chunk_rows=1000), reached=count)
    assert outcome.failed == []
    assert counts[0] == 32
    # A worker that reads: the table or partition itself where another holds it, and the index.
    assert max(counts) <= 32 + 4 * 2
    assert_bronze_equals_source(source, lake_path, "public.m", "public.t")


@pytest.mark.postgres
def test_excess_partitions_are_locked_only_while_read(
    source: SourceSettings, lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more partitions than locks allowed, only the partitions being read are locked."""
    monkeypatch.setattr("deltasmelt.bronze.snapshot.snapshot.lock_budget", lambda _: 4)
    execute(source, *partitioned(20, 2000), *(f"CREATE TABLE t{n} (id int PRIMARY KEY)" for n in range(6)))
    counts: list[int] = []

    def count(point: str) -> None:
        if point in ("snapshot-exported", "snapshot-block-written"):
            counts.append(fetch(source, OUR_LOCKS))

    outcome = take(source, lake_path, settings=SnapshotSettings(workers=2), reached=count)
    assert outcome.failed == []
    assert max(counts) <= 4 + 2 * 2
    assert_bronze_equals_source(source, lake_path, "public.m", *(f"public.t{n}" for n in range(6)))

    # Nobody holds the partitions: one that is emptied after the snapshot looks empty to it.
    original = deltasmelt.bronze.snapshot.locks.Worker.open
    emptied: list[str] = []

    def empty_the_last(
        worker: deltasmelt.bronze.snapshot.locks.Worker, leaf: deltasmelt.bronze.snapshot.locks.Leaf
    ) -> bool:
        if not emptied and leaf.table.name != "m7":
            emptied.append("m7")
            execute(source, "TRUNCATE m7")
        return original(worker, leaf)

    monkeypatch.setattr("deltasmelt.bronze.snapshot.locks.Worker.open", empty_the_last)
    outcome = take(
        source,
        lake_path,
        settings=SnapshotSettings(workers=1),
        select=lambda tables: [source_table for source_table in tables if source_table.kind == "p"],
    )
    assert [(error.table.name, error.code) for error in outcome.failed] == [("m", "table-changed")]
    monkeypatch.undo()
    take(source, lake_path)
    assert_bronze_equals_source(source, lake_path, "public.m")


@pytest.mark.postgres
def test_waiting_session_blocks_only_holder_of_its_lock(source: SourceSettings, lake_path: str) -> None:
    """A TRUNCATE waits for the holder of the partition's lock; only the holder reads the partition."""
    execute(source, *partitioned(6, 6000))
    truncating = [
        threading.Thread(target=execute, args=(source, f"TRUNCATE m{number}")) for number in range(6)
    ]

    def truncate() -> None:
        for truncation in truncating:
            truncation.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted"
        wait_for(lambda: fetch(source, waiting) == 6)

    outcome = take(
        source,
        lake_path,
        settings=SnapshotSettings(workers=3, chunk_rows=1000),
        reached=at("snapshot-exported", truncate),
    )
    for truncation in truncating:
        truncation.join(20)
    assert (outcome.copied, outcome.failed) == ([TableName("public", "m")], [])


@pytest.mark.postgres
def test_what_was_taken_before_a_failure_is_told(source: SourceSettings, lake_path: str) -> None:
    execute(source, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE %s"

    def cut() -> None:
        with session(source) as connection:
            connection.execute(
                f"{end} AND datname = current_database() AND pid <> pg_backend_pid()".encode(),
                ["deltasmelt snapshot"],
            )

    outcome = Outcome()
    with pytest.raises(TransientError):
        take(
            source,
            lake_path,
            settings=SnapshotSettings(workers=1),
            reached=at("snapshot-committed", cut),
            outcome=outcome,
        )
    assert outcome.copied == [A]
    assert outcome.lsn == read_snapshot(Lake(lake_path), A)


def table(name: str, partitions: int = 0) -> SourceTable:
    names = tuple(TableName("public", f"{name}{number}") for number in range(partitions))
    whole = TableName("public", name)
    shape = Relation(1, whole, (), (), "d", ZERO)
    return SourceTable(whole, shape, "p" if partitions else "r", partitions=names)


def test_groups_preserve_order_and_lock_budget() -> None:
    """A table larger than the budget counts with its root alone."""
    tables = [table("a"), table("b", 3), table("c"), table("huge", 50), table("d"), table("e", 4)]
    assert [[member.table.name for member in group] for group in groups(tables, 5)] == [
        ["a", "b"],
        ["c", "huge", "d"],
        ["e"],
    ]
    assert [len(group) for group in groups([table(str(number)) for number in range(7)], 3)] == [3, 3, 1]
    assert list(groups([], 3)) == []


@pytest.mark.postgres
def test_locked_index_excludes_only_its_table(source: SourceSettings, lake_path: str) -> None:
    source = source.with_timing(Timing(partition_lock=1.0))
    execute(
        source,
        "CREATE TABLE a (id int PRIMARY KEY)",
        "INSERT INTO a SELECT generate_series(1, 100)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        "INSERT INTO b SELECT generate_series(1, 100)",
    )
    with session(source) as reindexing:
        reindexing.autocommit = False
        outcome = take(
            source,
            lake_path,
            reached=at("snapshot-exported", lambda: reindexing.execute("REINDEX INDEX a_pkey")),
        )
        reindexing.rollback()
    assert [(error.table, error.code) for error in outcome.failed] == [(A, "table-locked")]
    assert outcome.copied == [B]


def test_unforeseen_row_stops_its_table_until_readable(
    source: SourceSettings, lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(
        source,
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)" for name in ("a", "b", "c")),
        *(
            f"INSERT INTO {name} SELECT n, '{name}' || n FROM generate_series(1, 50) n"
            for name in ("a", "b", "c")
        ),
    )
    control = ControlTables(Lake(lake_path))

    def fails(block: bytearray) -> object:
        if b"b7" in block:
            raise KeyError("a shape of tomorrow")
        return cells_of(block)

    with monkeypatch.context() as broken:
        broken.setattr("deltasmelt.bronze.snapshot.ranges.cells_of", fails)
        read_all(source, lake_path)
    (error,) = control.open_errors()
    assert (error.scope, error.name, error.code) == ("table", "public.b", "copy-failed")
    assert "KeyError: 'a shape of tomorrow'" in error.message
    assert_bronze_equals_source(source, lake_path, "public.a", "public.c")
    assert read_snapshot(Lake(lake_path), B) is None
    read_all(source, lake_path)
    assert control.open_errors() == []
    assert_bronze_equals_source(source, lake_path, "public.a", "public.b", "public.c")


@pytest.mark.postgres
def test_copy_failed_twice_by_server_fails_only_table(own_server: EmbeddedServer, lake_path: str) -> None:
    """The server has too little memory for one row; a single worker copies all tables."""
    source = source_of(own_server.dsn(), slot="smelt_memory", timing=Timing(catalog_poll=1.0))
    execute(
        source,
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)" for name in ("a", "b", "c")),
        *(f"INSERT INTO {name} SELECT n, n FROM generate_series(1, 50) n" for name in ("a", "b", "c")),
        "INSERT INTO b VALUES (51, repeat('x', 60000000))",
    )
    postmaster = int((own_server.data / "postmaster.pid").read_text().split()[0])
    with session(source) as backend:
        status = Path(f"/proc/{backend.info.backend_pid}/status").read_text()
        size = 1024 * int(re.findall(r"VmSize:\s+(\d+)", status)[0])

    def limit(memory: str) -> None:
        """Limit the memory of new backends, under the server's own account, which has the right."""
        owner = Path(f"/proc/{postmaster}").stat()
        command = ["prlimit", f"--pid={postmaster}", f"--as={memory}:"]
        subprocess.run(command, check=True, user=owner.st_uid, group=owner.st_gid)

    limit(str(size + 32 * 1024 * 1024))
    lake, settings, outcome = f"{lake_path}_2", SnapshotSettings(workers=1), Outcome()
    control = ControlTables(Lake(lake))
    with pytest.raises(TransientError, match="out of memory") as caught:
        take(source, lake_path, settings=settings, outcome=outcome)
    assert caught.value.code == "server-resources"
    assert (outcome.failed, sorted(outcome.copied)) == ([], [A, TableName("public", "c")])
    read_all(source, lake, snapshot=settings)
    (error,) = control.open_errors()
    assert (error.scope, error.name, error.code) == ("table", "public.b", "copy-failed")
    assert "twice in a row: the server lacks a resource" in error.message
    assert_bronze_equals_source(source, lake, "public.a", "public.c")
    limit("unlimited")
    read_all(source, lake, snapshot=settings)
    assert control.open_errors() == []
    assert_bronze_equals_source(source, lake, "public.a", "public.b", "public.c")
