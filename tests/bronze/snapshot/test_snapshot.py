"""Snapshots of real tables are complete and consistent with the stream; no partial table is visible."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.config.sections import SnapshotSettings, SourceSettings
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.postgres.connection import connect, identify
from deltasmelt.bronze.setup.publication import ensure_publication
from deltasmelt.bronze.shapes import same_shape
from deltasmelt.bronze.snapshot.snapshot import Snapshot
from deltasmelt.bronze.store.gaps import request_snapshots
from deltasmelt.bronze.store.landing import Landing
from deltasmelt.bronze.store.relations import ShapeLog, read_relations
from deltasmelt.bronze.store.sink import DeltaSink
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    assert_each_change_once,
    bronze_rows,
    current_lsn,
    execute,
    fetch,
    read_all,
    read_snapshot,
    session,
    source_of,
)
from tests.bronze.running import Running
from tests.patience import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.snapshot.executors import ExecutorsAtHand
    from deltasmelt.bronze.snapshot.table_copy import Outcome
    from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

pytestmark = pytest.mark.postgres


def take(
    source: SourceSettings,
    lake_path: str,
    *,
    settings: SnapshotSettings | None = None,
    reached: Callable[[str], None] | None = None,
    select: Callable[[list[SourceTable]], list[SourceTable]] = lambda tables: tables,
    stop: threading.Event | None = None,
    outcome: Outcome | None = None,
    executors: ExecutorsAtHand | None = None,
) -> Outcome:
    """Take a snapshot of all tables, without a stream."""
    with connect(source) as connection:
        tables = select_tables(connection, source)
        ensure_publication(connection, source, [table.table for table in tables])
        sink = DeltaSink(Lake(lake_path), "shop", identify(connection))
    landing = Landing(
        sink, ShapeLog(sink.relations(), sink.add_relations), reached=reached or (lambda _: None)
    )
    return Snapshot(source, settings or SnapshotSettings(), landing, executors=executors).take(
        select(tables), stop or threading.Event(), outcome
    )


def test_many_chunks_and_workers_copy_every_row_once(source: SourceSettings, lake_path: str) -> None:
    execute(
        source,
        "CREATE TABLE t (id int PRIMARY KEY, note text)",
        "INSERT INTO t SELECT i, repeat('x', i % 300) FROM generate_series(1, 30000) i",
        "DELETE FROM t WHERE id % 3 = 0",
        "ANALYZE t",
    )
    outcome = take(source, lake_path, settings=SnapshotSettings(workers=3, chunk_rows=1000))
    assert (outcome.copied, outcome.failed) == ([TableName("public", "t")], [])
    rows = bronze_rows(lake_path)
    assert [row["op"] for row in rows].count("snapshot") == 20000
    assert len({row["seq"] for row in rows}) == 20001
    assert len({row["seq"] >> 32 for row in rows}) > 10
    assert rows[-1]["op"] == "snapshot_end"
    assert {row["commit_lsn"] for row in rows} == {outcome.lsn}
    assert_bronze_equals_source(source, lake_path, "public.t")
    assert DeltaTable(f"{lake_path}/bronze/changes").version() == 1


class Altering:
    """A session that waits to alter the table, started at a point of the snapshot."""

    def __init__(self, source: SourceSettings, point: str) -> None:
        self._source = source
        self._point = point
        self._session = threading.Thread(
            target=execute, args=(source, "ALTER TABLE t ADD COLUMN later int DEFAULT 7")
        )

    def __call__(self, point: str) -> None:
        if point == self._point:
            self._session.start()
            while not fetch(self._source, "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"):
                time.sleep(0.01)

    def done(self) -> None:
        self._session.join(20)
        assert not self._session.is_alive()


def test_waiting_alter_does_not_block_locked_snapshot(source: SourceSettings, lake_path: str) -> None:
    execute(source, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 9000)")
    altering = Altering(source, "snapshot-exported")
    take(source, lake_path, settings=SnapshotSettings(workers=2, chunk_rows=1000), reached=altering)
    altering.done()
    assert_bronze_equals_source(source, lake_path, "public.t")


def test_alter_between_locks_proceeds_first(source: SourceSettings, lake_path: str) -> None:
    execute(source, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    altering = Altering(source, "snapshot-locked")
    with pytest.raises(TransientError) as caught:
        take(source, lake_path, reached=altering)
    assert caught.value.code == "lock-not-available"
    altering.done()
    take(source, lake_path)
    assert_bronze_equals_source(source, lake_path, "public.t")


def test_partitions_copy_through_root_in_any_column_order(source: SourceSettings, lake_path: str) -> None:
    execute(
        source,
        "CREATE TABLE m (id int, day int, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE m2 (note text, gone int, day int NOT NULL, id int NOT NULL, PRIMARY KEY (id, day))",
        "ALTER TABLE m2 DROP COLUMN gone",
        "ALTER TABLE m ATTACH PARTITION m2 FOR VALUES FROM (10) TO (20)",
        "INSERT INTO m SELECT i, i % 20, 'note ' || i FROM generate_series(1, 500) i",
    )
    read_all(source, lake_path)
    execute(
        source, "UPDATE m SET note = 'moved', day = day + 10 WHERE day < 5", "DELETE FROM m WHERE day = 7"
    )
    read_all(source, lake_path)
    assert {row["table_name"] for row in bronze_rows(lake_path)} == {"m"}
    assert_bronze_equals_source(source, lake_path, "public.m")


def test_children_of_inheritance_are_tables_of_their_own(source: SourceSettings, lake_path: str) -> None:
    execute(
        source,
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (more text, PRIMARY KEY (id)) INHERITS (parent)",
        "INSERT INTO parent VALUES (1)",
        "INSERT INTO child VALUES (2, 'x')",
    )
    take(source, lake_path)
    by_table = {
        name: [row["new"] for row in bronze_rows(lake_path) if row["table_name"] == name and row["new"]]
        for name in ("parent", "child")
    }
    assert by_table == {"parent": [["1"]], "child": [["2", "x"]]}


def test_generated_columns_are_absent_from_snapshot_and_stream(
    source: SourceSettings, lake_path: str
) -> None:
    execute(
        source,
        "CREATE TABLE g (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED, b text)",
        "INSERT INTO g VALUES (1, 5, DEFAULT, 'x')",
    )
    read_all(source, lake_path)
    execute(source, "INSERT INTO g VALUES (2, 6, DEFAULT, 'y')")
    read_all(source, lake_path)
    rows = [row for row in bronze_rows(lake_path) if row["new"]]
    assert [(row["columns"], row["new"]) for row in rows] == [
        (["id", "a", "b"], ["1", "5", "x"]),
        (["id", "a", "b"], ["2", "6", "y"]),
    ]
    assert_bronze_equals_source(source, lake_path, "public.g")


def test_odd_names_wide_tables_and_large_values_pass(source: SourceSettings, lake_path: str) -> None:
    wide = ", ".join(f'"c {number}" text' for number in range(400))
    execute(
        source,
        'CREATE SCHEMA "Odd ""one"""',
        f'CREATE TABLE "Odd ""one"""."T.t" ("I""d" int PRIMARY KEY, {wide})',
        'INSERT INTO "Odd ""one"""."T.t" ("I""d", "c 0", "c 399") '
        "VALUES (1, repeat('\"', 9000000), NULL), (2, '', 'z')",
    )
    odd = source.model_copy(update={"tables": ["Odd*.*"]})
    read_all(odd, lake_path)
    assert_bronze_equals_source(odd, lake_path, '"Odd ""one"""."T.t"')


def test_racing_commit_is_in_snapshot_or_stream_only(source: SourceSettings, lake_path: str) -> None:
    execute(source, "CREATE TABLE t (id serial PRIMARY KEY)")
    finished = threading.Event()

    def insert() -> None:
        with session(source) as connection:
            while not finished.is_set():
                connection.execute("INSERT INTO t DEFAULT VALUES")

    writer = threading.Thread(target=insert)
    writer.start()
    try:
        read_all(source, lake_path)
    finally:
        finished.set()
        writer.join()
    read_all(source, lake_path)
    rows = bronze_rows(lake_path)
    assert_each_change_once(rows)
    snapshot = read_snapshot(Lake(lake_path), TableName("public", "t"))
    assert snapshot is not None
    ids = [
        int(row["new"][0])
        for row in rows
        if row["op"] == "snapshot" or (row["op"] == "insert" and row["commit_lsn"] > snapshot)
    ]
    assert sorted(ids) == list(range(1, fetch(source, "SELECT count(*) FROM t") + 1))


def test_table_cannot_be_rewritten_before_its_copy(source: SourceSettings, lake_path: str) -> None:
    execute(
        source,
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "INSERT INTO t SELECT i, i FROM generate_series(1, 100) i",
    )
    blocked: list[str] = []

    def rewrite(point: str) -> None:
        if point == "snapshot-exported":
            with session(source) as connection:
                connection.execute("SET lock_timeout = '200ms'")
                try:
                    connection.execute("ALTER TABLE t ALTER COLUMN n TYPE bigint")
                except Exception as error:  # noqa: BLE001 - its kind is what the test asks for
                    blocked.append(type(error).__name__)

    take(source, lake_path, reached=rewrite)
    assert blocked == ["LockNotAvailable"]
    assert_bronze_equals_source(source, lake_path, "public.t")


def test_missing_privilege_fails_only_table_with_remedy(
    source: SourceSettings, lake_path: str, database: str
) -> None:
    role = f"r_{source.slot}"
    execute(
        source,
        "CREATE TABLE open_to_all (id int PRIMARY KEY)",
        "CREATE TABLE secret (id int PRIMARY KEY)",
        "INSERT INTO open_to_all VALUES (1)",
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"GRANT SELECT ON open_to_all TO {role}",
        "CREATE PUBLICATION smelt FOR ALL TABLES WITH (publish_via_partition_root = true)",
    )
    limited = source.model_copy(update={"user": role, "manage": True})
    try:
        read_all(limited, lake_path)
        assert_bronze_equals_source(source, lake_path, "public.open_to_all")
        (error,) = ControlTables(Lake(lake_path)).open_errors()
        assert (error.scope, error.name) == ("table", "public.secret")
        assert error.remedy is not None
        assert "GRANT SELECT" in error.remedy
        execute(source, f"GRANT SELECT ON secret TO {role}")
        read_all(limited, lake_path)
        assert ControlTables(Lake(lake_path)).open_errors() == []
        assert read_snapshot(Lake(lake_path), TableName("public", "secret")) is not None
    finally:
        execute(source, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_table_dropped_before_its_copy_fails_alone(source: SourceSettings, lake_path: str) -> None:
    execute(source, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")

    def drop_one(tables: list[SourceTable]) -> list[SourceTable]:
        execute(source, "DROP TABLE a")
        return tables

    outcome = take(source, lake_path, select=drop_one)
    assert outcome.copied == [TableName("public", "b")]
    assert [error.table.name for error in outcome.failed] == ["a"]


def test_stopped_snapshot_stays_invisible_and_is_repeated(source: SourceSettings, lake_path: str) -> None:
    execute(
        source,
        "CREATE TABLE t (id int PRIMARY KEY, note text)",
        "INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 5000) i",
        "ANALYZE t",
    )
    stop = threading.Event()
    settings = SnapshotSettings(workers=1, chunk_rows=1000)
    outcome = take(source, lake_path, settings=settings, stop=stop, reached=lambda _: stop.set())
    assert (outcome.copied, outcome.failed) == ([], [])
    assert bronze_rows(lake_path) == []
    assert take(source, lake_path, settings=settings).copied == [TableName("public", "t")]
    assert_bronze_equals_source(source, lake_path, "public.t")


def test_repeated_snapshot_removes_vanished_rows(source: SourceSettings, lake_path: str) -> None:
    execute(source, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    first = take(source, lake_path)
    execute(source, "DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (3)")
    second = take(source, lake_path)
    assert second.lsn > first.lsn
    assert read_snapshot(Lake(lake_path), TableName("public", "t")) == second.lsn
    assert_bronze_equals_source(source, lake_path, "public.t")
    before, after = read_relations(Lake(lake_path))
    assert [before.from_lsn, after.from_lsn] == [first.lsn, second.lsn]
    assert same_shape(before, after), "said again: the stream may announce another one between the two"


def test_interrupted_copy_retries_and_keeps_complete_tables(
    own_server: EmbeddedServer, lake_path: str
) -> None:
    source = source_of(own_server.dsn(), slot="smelt_lost")
    execute(
        source,
        *(f"CREATE TABLE t{number} (id int PRIMARY KEY)" for number in range(3)),
        *(f"INSERT INTO t{number} SELECT generate_series(1, 100)" for number in range(3)),
    )
    points: list[str] = []

    def cut(point: str) -> None:
        points.append(point)
        if point == "snapshot-committed" and points.count(point) == 1:
            execute(
                source,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'deltasmelt snapshot'",
            )

    read_all(source, lake_path, reached=cut, snapshot=SnapshotSettings(workers=1))
    assert points.count("snapshot-committed") == 3
    assert points.count("snapshot-exported") == 2
    assert_bronze_equals_source(source, lake_path, "public.t0", "public.t1", "public.t2")


def test_copy_leaves_no_slot_and_holds_no_wal(source: SourceSettings, lake_path: str) -> None:
    execute(source, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    slots: list[Any] = []
    query = "SELECT count(*) FROM pg_replication_slots WHERE temporary AND database = current_database()"

    def look(point: str) -> None:
        if point == "snapshot-block-written":
            slots.append(fetch(source, query))

    take(source, lake_path, reached=look)
    assert slots == [0]


def test_a_snapshot_is_taken_on_version_18(database18: str, lake_path: str) -> None:
    source = source_of(database18)
    execute(source, "CREATE TABLE t (id int PRIMARY KEY, n text)", "INSERT INTO t VALUES (1, NULL), (2, '')")
    read_all(source, lake_path)
    execute(source, "UPDATE t SET n = 'x' WHERE id = 1")
    read_all(source, lake_path)
    assert_bronze_equals_source(source, lake_path, "public.t")
    with session(source) as connection:
        assert current_lsn(connection) > 0


def test_running_reader_copies_table_requested_by_process(source: SourceSettings, lake_path: str) -> None:
    execute(
        source, "CREATE TABLE t (id int PRIMARY KEY, note text)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')"
    )
    with Running(source, lake_path):
        first = wait_for_copy(lake_path, after=Lsn(0))
        # What no event tells: the rows vanish while nobody publishes it.
        execute(
            source, "ALTER PUBLICATION smelt SET (publish = '')", "DELETE FROM t WHERE id = 1",
            "ALTER PUBLICATION smelt SET (publish = 'insert, update, delete, truncate')",
            "INSERT INTO t VALUES (3, 'c')",
        )  # fmt: skip
        with connect(source) as connection:
            request_snapshots(
                f"{lake_path}/bronze/changes", [TableName("public", "t")], current_lsn(connection)
            )
        second = wait_for_copy(lake_path, after=first)
        execute(source, "UPDATE t SET note = 'z' WHERE id = 3")
        assert second > first
    read_all(source, lake_path)
    assert_each_change_once(bronze_rows(lake_path))
    assert_bronze_equals_source(source, lake_path, "public.t")


def test_request_without_reader_is_served_at_start(source: SourceSettings, lake_path: str) -> None:
    execute(source, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    read_all(source, lake_path, snapshot=SnapshotSettings(mode="never"))
    with connect(source) as connection:
        request_snapshots(f"{lake_path}/bronze/changes", [TableName("public", "t")], current_lsn(connection))
    read_all(source, lake_path, snapshot=SnapshotSettings(mode="never"))
    assert [row["op"] for row in bronze_rows(lake_path)] == ["snapshot_end", "snapshot", "snapshot_end"]
    assert_bronze_equals_source(source, lake_path, "public.t")


def wait_for_copy(lake_path: str, *, after: Lsn) -> Lsn:
    copy_lsns: list[Lsn] = []

    def taken() -> bool:
        lsn = read_snapshot(Lake(lake_path), TableName("public", "t"))
        copy_lsns[:] = [] if lsn is None or lsn <= after else [lsn]
        return bool(copy_lsns)

    wait_for(taken)
    return copy_lsns[0]


def test_failed_copy_is_retried_once_source_permits(source: SourceSettings, lake_path: str) -> None:
    """The running reader needs no restart."""
    source = source.with_timing(Timing(catalog_poll=0.3))
    role = f"r_{source.slot}"
    execute(
        source,
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE hidden PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "INSERT INTO t VALUES (1)",
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"GRANT SELECT ON t TO {role}",
        "CREATE PUBLICATION smelt FOR ALL TABLES WITH (publish_via_partition_root = true)",
    )
    control = ControlTables(Lake(lake_path))
    try:
        with Running(source.model_copy(update={"user": role}), lake_path):
            wait_for(lambda: bool(control.open_errors()))
            assert [error.code for error in control.open_errors()] == ["partition-privilege"]
            execute(source, "INSERT INTO t VALUES (2)", f"GRANT SELECT ON hidden TO {role}")
            wait_for_copy(lake_path, after=Lsn(0))
            assert control.open_errors() == []
            execute(source, "INSERT INTO t VALUES (3)")
        read_all(source, lake_path)
        assert_bronze_equals_source(source, lake_path, "public.t")
    finally:
        execute(source, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_role_time_limits_do_not_end_snapshot(source: SourceSettings, lake_path: str) -> None:
    name = fetch(source, "SELECT current_database()")
    limits = ("statement_timeout", "idle_in_transaction_session_timeout", "lock_timeout")
    execute(
        source,
        "CREATE TABLE t (id int PRIMARY KEY, note text)",
        "INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 20000) i",
        *(f"ALTER DATABASE \"{name}\" SET {limit} = '1ms'" for limit in limits),
    )
    outcome = take(source, lake_path, reached=lambda _: time.sleep(0.01))
    assert outcome.failed == []
    assert [row["op"] for row in bronze_rows(lake_path)].count("snapshot") == 20000


def test_widest_and_narrowest_tables_pass(source: SourceSettings, lake_path: str) -> None:
    """The tables have the most and the fewest columns and rows."""
    many = ", ".join(f"c{number} int" for number in range(1, 1600))
    execute(
        source,
        f"CREATE TABLE widest (id int PRIMARY KEY, {many})",
        "INSERT INTO widest (id, c1599) VALUES (1, 7), (2, NULL)",
        "CREATE TABLE narrow (id text PRIMARY KEY)",
        "INSERT INTO narrow VALUES (''), ('x')",
        "CREATE TABLE nulls (alone int, id int PRIMARY KEY)",
        "INSERT INTO nulls VALUES (NULL, 1)",
        "CREATE TABLE nothing (id int PRIMARY KEY, note text)",
    )
    read_all(source, lake_path)
    for table in ("widest", "narrow", "nothing"):
        assert_bronze_equals_source(source, lake_path, f"public.{table}")
    assert [row["new"] for row in bronze_rows(lake_path) if row["table_name"] == "nulls"] == [
        [None, "1"],
        None,
    ]
