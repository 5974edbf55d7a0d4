"""Readers of a server with restored files: same identity, same timeline, a log that grows again.

One server serves all tests. Each database has a pipeline with a slot and a lake. All histories part at one
copy of the server's files. The databases differ in the rows written before and after the copy.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from deltasmelt.bronze.config.sections import BronzeSettings
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.client import Transaction
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.reader.recovery import start_over
from deltasmelt.bronze.store.changes_table import commit_marks
from deltasmelt.bronze.store.gaps import request_snapshots, resnapshot_of
from deltasmelt.bronze.store.marks import snapshot_app
from deltasmelt.bronze.store.position import read_position
from deltasmelt.bronze.store.relations import read_relations
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    assert_each_change_once,
    bronze_rows,
    execute,
    fetch,
    make_reader,
    read_all,
    read_snapshot,
    session,
    source_of,
)
from tests.bronze.running import Running, confirmed
from tests.bronze.twin import Twin
from tests.fix_postgres import make_database
from tests.patience import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.store.position import Position
    from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

pytestmark = pytest.mark.postgres

TABLES = (
    "CREATE TABLE items (id int PRIMARY KEY, note text)",
    "CREATE TABLE unread (id int PRIMARY KEY)",
    "INSERT INTO items VALUES (1, 'one'), (2, 'two')",
)
OLD = ("INSERT INTO items VALUES (3, 'undone by the copy')", "DELETE FROM items WHERE id = 1")
NEW = ("INSERT INTO items VALUES (4, 'since the copy')", "UPDATE items SET note = 'new' WHERE id = 2")


ITEMS, GONE = TableName("public", "items"), TableName("public", "gone")


@dataclass(frozen=True)
class Pipeline:
    """One database with its slot and lake."""

    source: SourceSettings
    lake: str

    def read(self) -> None:
        read_all(self.source, self.lake)

    def refused(self, code: str) -> DefiniteError:
        """Return the error of a refused start; assert that the error is recorded and bronze does not move."""
        before = position_of(self.lake)
        with pytest.raises(DefiniteError) as caught:
            self.read()
        assert caught.value.code == code
        errors = {error.code: error for error in ControlTables(Lake(self.lake)).open_errors()}
        assert (errors[code].scope, errors[code].remedy) == ("pipeline", caught.value.remedy)
        after = position_of(self.lake)
        assert (after.frontier, after.version) == (before.frontier, before.version), (
            "a refusal writes nothing"
        )
        return caught.value

    def heal(self) -> None:
        assert start_over(self.source, Lake(self.lake), "shop") is not None
        self.read()
        self.assert_whole()
        assert start_over(self.source, Lake(self.lake), "shop") is None, "nothing is wrong now"

    def assert_whole(self) -> None:
        assert ControlTables(Lake(self.lake)).open_errors() == []
        assert_each_change_once(bronze_rows(self.lake))
        assert_bronze_equals_source(self.source, self.lake, "public.items")


class Pipelines:
    """The pipelines of one server by name, each created on first use."""

    def __init__(self, twin: Twin, folder: Path) -> None:
        self.twin = twin
        self._folder = folder
        self._made: dict[str, Pipeline] = {}

    def __getitem__(self, name: str) -> Pipeline:
        if name not in self._made:
            source = source_of(make_database(self.twin.server.dsn()), exclude=["public.unread"])
            execute(source, *TABLES)
            self._made[name] = Pipeline(source, str(self._folder / name))
            self._made[name].read()
        return self._made[name]

    def __iter__(self) -> Iterator[Pipeline]:
        return iter(self._made.values())

    def grow(self) -> None:
        """Let the log grow past every pipeline's end, without a row of any pipeline."""
        ends = [position_of(pipeline.lake).confirm for pipeline in self]
        with psycopg.connect(self.twin.server.dsn(), autocommit=True) as connection:
            while True:
                row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
                connection.execute("SELECT pg_switch_wal() FROM txid_current()")
                if row is not None and Lsn.parse(row[0]) > max(ends):
                    return


@pytest.fixture(params=[16, pytest.param(18, marks=pytest.mark.torture)])
def pipelines(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pipelines]:
    twin = Twin(tmp_path, version=request.param)
    try:
        yield Pipelines(twin, tmp_path / "lakes")
    finally:
        twin.server.close()


class _DiedError(Exception):
    """A reader's end in the middle of its work."""


def dies_at(point: str, time: int = 1) -> Callable[[str], None]:
    """Return a callback that ends a reader at the n-th visit of a point."""
    calls_left = [time]

    def reached(name: str) -> None:
        calls_left[0] -= name == point
        if not calls_left[0]:
            raise _DiedError

    return reached


def carry_past(source: SourceSettings, lake: str, end: Lsn) -> Position:
    """Read until bronze's position has passed an LSN, without a heartbeat message for this purpose."""
    eager = BronzeSettings(flush_interval=0.05, heartbeat=0.1)
    with Running(source, lake, bronze=eager) as running:
        wait_for(lambda: running.error is not None or position_of(lake).confirm >= end)
        assert running.error is None
    return position_of(lake)


def position_of(lake: str) -> Position:
    position = read_position(Lake(lake))
    assert position is not None
    return position


def sent_of(lake: str) -> Lsn:
    sent = position_of(lake).sent
    assert sent is not None
    return sent.lsn


def end_of(source: SourceSettings) -> Lsn:
    return Lsn.parse(fetch(source, "SELECT pg_current_wal_insert_lsn()::text"))


def move_by_keepalives(pipeline: Pipeline) -> None:
    """Move bronze's place past the copy of the server's files, without a published transaction."""
    execute(pipeline.source, "INSERT INTO unread SELECT generate_series(1, 1000)")
    target = end_of(pipeline.source)
    carry_past(pipeline.source, pipeline.lake, target)
    assert sent_of(pipeline.lake) < target


def write_what_the_copy_undoes(pipelines: Pipelines) -> None:
    lost, copied, shaped, ahead = (pipelines[name] for name in ("lost", "copied", "shaped", "ahead"))
    execute(lost.source, *OLD)
    execute(copied.source, *later(1))
    execute(shaped.source, "ALTER TABLE items ADD COLUMN old int DEFAULT 5")
    for pipeline in (lost, copied, shaped):
        pipeline.read()
    for name in ("idle", "unseen", "silent"):
        move_by_keepalives(pipelines[name])
    silent, uri = pipelines["silent"].lake, f"{pipelines['silent'].lake}/bronze/changes"
    as_copied = Transaction(snapshot_app(ITEMS), int(position_of(silent).frontier))
    commit_marks(open_existing(uri), [as_copied])  # as a copy whose message the stream had not received
    execute(ahead.source, *OLD, "CREATE TABLE gone (id int PRIMARY KEY)")
    request_snapshots(f"{ahead.lake}/bronze/changes", [ITEMS], end_of(ahead.source))
    twice = dies_at("snapshot-committed", 2)
    with pytest.raises(_DiedError):
        make_reader(ahead.source, ahead.lake, reached=twice, bronze=BronzeSettings(flush_interval=60.0)).run()
    snapshot = read_snapshot(Lake(ahead.lake), ITEMS)
    assert snapshot is not None
    assert snapshot > position_of(ahead.lake).frontier, "the stream has not come to the snapshot"
    assert read_snapshot(Lake(ahead.lake), GONE) is not None
    looked_pipeline = pipelines["looked"]
    execute(looked_pipeline.source, "ALTER TABLE items DROP COLUMN note")
    with pytest.raises(_DiedError):
        make_reader(looked_pipeline.source, looked_pipeline.lake, reached=dies_at("stream-starting")).run()
    newest = [relation for relation in read_relations(Lake(looked_pipeline.lake)) if relation.table == ITEMS][
        -1
    ]
    assert newest.from_lsn > position_of(looked_pipeline.lake).frontier, (
        "the stream has not come to the shape"
    )


def later(number: int) -> tuple[str, str]:
    """Return statements for a table created after the copy, in both histories, with the same oid."""
    return f"CREATE TABLE later AS SELECT {number} AS id", "ALTER TABLE later ADD PRIMARY KEY (id)"


@pytest.mark.parametrize("running", [False, pytest.param(True, marks=pytest.mark.torture)])
def test_a_log_put_back_is_refused_until_healed(pipelines: Pipelines, *, running: bool) -> None:
    for name in ("idle", "stopped"):
        pipeline = pipelines[name]
        execute(pipeline.source, "SELECT pg_logical_emit_message(false, 'outside', 'of transactions')")
        pipeline.read()
    parted = [pipelines[name] for name in ("lost", "copied", "shaped", "live", "unseen")]
    alike = [pipelines[name] for name in ("idle", "stopped", "ahead", "looked", "silent")]
    pipelines.twin.copy(running=running)
    write_what_the_copy_undoes(pipelines)

    live = pipelines["live"]
    with Running(live.source, live.lake) as reader:
        execute(live.source, *OLD)
        wait_for(lambda: reader.reader.progress.read()["changes"] == 2)
        pipelines.twin.put_back()
        assert isinstance(failure := reader.wait_until_failed(), DefiniteError)
        assert failure.code == "server-behind"
    for name in ("lost", "unseen"):
        pipelines[name].refused("server-behind")

    for name in ("live", "unseen", "stopped", "ahead"):
        execute(pipelines[name].source, *NEW)
    execute(pipelines["copied"].source, *later(2))
    execute(pipelines["shaped"].source, "ALTER TABLE items ADD COLUMN new int DEFAULT 7")
    pipelines.grow()
    for pipeline in parted:
        pipeline.refused("server-history-differs")
        execute(pipeline.source, "INSERT INTO items VALUES (9, 'after')")
    pipelines["lost"].refused("server-history-differs")
    for pipeline in parted:
        pipeline.heal()
    # Bronze holds nothing that the copy undid, and lacks nothing that the server wrote since.
    for pipeline in alike:
        execute(pipeline.source, "INSERT INTO items VALUES (9, 'after')")
        pipeline.read()
        pipeline.assert_whole()
        assert start_over(pipeline.source, Lake(pipeline.lake), "shop") is None
    for name, reason in (
        ("looked", "the shape of a column that was not dropped is in no cut"),
        ("silent", "nothing proves that the server had what was copied"),
    ):
        rows = bronze_rows(pipelines[name].lake)
        copies = [row for row in rows if (row["op"], row["table_name"]) == ("snapshot_end", "items")]
        assert len(copies) == 2, reason
    changes = open_existing(f"{pipelines['ahead'].lake}/bronze/changes")
    assert resnapshot_of(changes, GONE) is None, "nobody can meet a request for a table that is gone"
    copied = pipelines["copied"]
    assert_bronze_equals_source(copied.source, copied.lake, "public.later")


REPEATABLE = (
    "INSERT INTO items VALUES (3, 'three') ON CONFLICT (id) DO UPDATE SET note = items.note || ' again'",
    "DELETE FROM items WHERE id = (SELECT max(id) FROM items)",
    "SELECT pg_logical_emit_message(false, 'outside', 'of transactions')",
    """
    INSERT INTO items SELECT i, repeat('x', 1000) FROM generate_series(10, 3000) i
    ON CONFLICT (id) DO UPDATE SET note = items.note || 'x'
    """,
    # A text that UTF-8 lacks:
    r"""
    INSERT INTO odd VALUES (1, convert_from('\x41815a'::bytea, 'WIN1252'))
    ON CONFLICT (id) DO UPDATE SET note = excluded.note
    """,
)
"""Statements that each become bronze's newest transaction at every run."""


@contextmanager
def without_snapshots(source: SourceSettings) -> Iterator[None]:
    """Pause the server's background writer, which logs the running transactions every 15 s."""
    writer = int(fetch(source, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'background writer'"))
    os.kill(writer, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(writer, signal.SIGCONT)


def is_compared(server: EmbeddedServer, source: SourceSettings, lake: str, *last: str) -> bool:
    """Crash the server after some statements, read on, and return whether the log was compared.

    The reader compares exactly if the crash left the slot behind bronze. The server saves the slot's place
    with each checkpoint, and after each snapshot of running transactions.
    """
    with closing(session(source)) as second:  # whose transaction lets the slot's catalog_xmin stay
        second.execute("BEGIN")
        second.execute("SELECT txid_current()")
        with without_snapshots(source):
            execute(source, "CHECKPOINT", *last)
            carry_past(source, lake, end_of(source))
        server.restart("immediate")
    execute(
        source, "INSERT INTO items VALUES (2, 'y') ON CONFLICT (id) DO UPDATE SET note = items.note || 'y'"
    )
    behind = confirmed(source) < position_of(lake).confirm
    points: list[str] = []
    read_all(source, lake, reached=points.append)
    assert points.count("log-compared") == behind
    return behind


def test_the_log_of_a_restarted_server_is_compared(own_server: EmbeddedServer, lake_path: str) -> None:
    options = "TEMPLATE template0 ENCODING 'WIN1252' LC_COLLATE 'C' LC_CTYPE 'C'"
    source = source_of(make_database(own_server.dsn(), options))
    execute(source, *TABLES, "CREATE TABLE odd (id int PRIMARY KEY, note text)")
    read_all(source, lake_path)
    *compared, odd = REPEATABLE
    for last in compared:
        assert any(is_compared(own_server, source, lake_path, last) for _ in range(5)), last
    # A text that UTF-8 lacks makes sessions begin anew, and the server may save the slot's place with them.
    is_compared(own_server, source, lake_path, odd)
    is_compared(own_server, source, lake_path, "SELECT pg_log_standby_snapshot()")
    assert_each_change_once(bronze_rows(lake_path))
    assert_bronze_equals_source(source, lake_path, "public.items")
    assert [error.name for error in ControlTables(Lake(lake_path)).open_errors()] == ["public.odd"]


def join(source: SourceSettings, older: psycopg.Connection[Any]) -> None:
    """Let a table join while an open transaction has written the table; a later transaction writes, too."""
    older.execute("INSERT INTO joining VALUES (1)")
    execute(source, "ALTER PUBLICATION smelt ADD TABLE ONLY joining", "INSERT INTO joining VALUES (2)")


def leave(source: SourceSettings, older: psycopg.Connection[Any]) -> None:
    """Let a table leave in this situation; another table's change is sent."""
    older.execute("INSERT INTO leaving VALUES (1)")
    execute(source, "ALTER PUBLICATION smelt DROP TABLE ONLY leaving", "INSERT INTO leaving VALUES (2)")
    execute(source, "INSERT INTO items VALUES (8, 'sent')")


@pytest.mark.parametrize(
    ("happens", "table", "then_excluded"),
    [(join, "joining", "unread"), (leave, "leaving", "unread"), (leave, "items", "leaving")],
)
def test_a_log_sent_in_two_ways_is_one(
    database: str, lake_path: str, happens: Callable[..., None], table: str, then_excluded: str
) -> None:
    source = source_of(database, exclude=["public.unread"])
    execute(source, *TABLES, "CREATE TABLE leaving (id int PRIMARY KEY)")
    read_all(source, lake_path)
    execute(source, "CREATE TABLE joining (id int PRIMARY KEY)")
    with session(source) as older:
        older.execute("BEGIN")
        happens(source, older)
        older.execute("COMMIT")
    source = source.model_copy(update={"exclude": ["public.unread", f"public.{then_excluded}"]})
    end, died = end_of(source), threading.Event()

    def reached(point: str) -> None:
        if point == "snapshot-locked":  # the message that follows a snapshot would be the newest transaction
            died.wait(20)
        if point == "committed" and position_of(lake_path).confirm >= end:
            died.set()
            raise _DiedError

    eager = BronzeSettings(flush_interval=0.05, heartbeat=0.1)
    with pytest.raises(_DiedError):
        make_reader(source, lake_path, reached=reached, bronze=eager).run()
    assert confirmed(source) <= sent_of(lake_path) < end, "nothing was read after the transaction"
    compared: list[str] = []
    read_all(source, lake_path, reached=compared.append)
    assert "log-compared" in compared
    assert_bronze_equals_source(source, lake_path, "public.items", f"public.{table}")
