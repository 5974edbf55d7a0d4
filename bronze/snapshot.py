"""The first copy of a table, consistent with the stream at one LSN; also the copy that is taken again later.

Why it is right:

* **One LSN.** A temporary slot gives a consistent point P and exports the snapshot there: it holds exactly
  the transactions whose commit record begins before P. The rows get S = P - 1. A transaction that commits
  exactly at P is not in the snapshot and has a larger LSN than S; it comes by the stream, which begins at the
  main slot's point, at or before P. (Materialize's postgres source documents the same off-by-one.)
* **No rewrite slips in.** A table that is rewritten after the snapshot was taken looks empty to it. So the
  tables are locked (ACCESS SHARE, as pg_dump does) before the snapshot is taken, and until they are copied.
* **No deadlock with a session that waits for these locks.** The server sees no cycle that runs through us. So
  whoever waits while the slot is made goes first (`_let_go`), and workers take their locks at once or not at
  all (`_worker`); then everything is let go and tried again.
* **Nothing half-visible.** Rows go to parquet files that no version names. One Delta commit per table names
  them all, with the `snapshot_end` row and the mark `snapshot_app(table)`. A crash before that leaves files
  without a name and a table without a mark, which the next start takes again.
* **Same values as the stream**: see `bronze.copy_out`.

Tables are cut into chunks of pages (`bronze.chunks`). Workers, each with a connection, take chunks from one
queue.

A definite error of one table (a missing privilege, row-level security) fails that table alone. A lost
connection fails all tables that are not committed yet, because the exported snapshot is gone with it; they
are taken again under a new one.
"""

from __future__ import annotations

import os
import threading
import uuid
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import psycopg

from bronze.catalog import describe_relation
from bronze.chunks import chunks_of
from bronze.conninfo import describe
from bronze.copy_out import enlarge_buffer
from bronze.errors import DefiniteError, SmeltError, TableError, TransientError
from bronze.identifiers import quote_literal
from bronze.lsn import ZERO, Lsn
from bronze.replication import ReplicationConnection
from bronze.server import connect, translate, translated, within
from bronze.snapshot_copy import SnapshotCopy, TableCopy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from psycopg.rows import TupleRow

    from bronze.catalog import SourceTable
    from bronze.identifiers import TableName
    from bronze.landing import Landing
    from bronze.settings import SnapshotSettings, SourceSettings

_LOCK_SECONDS: Final = 20
_ANSWER_SECONDS: Final = 30.0
_PLAN_SECONDS: Final = 300.0
"""Behind these a line is taken for dead."""


@dataclass(slots=True)
class Outcome:
    """What became of a snapshot.

    Attributes:
        lsn: S of all tables taken; ZERO where none could be.
        taken: tables that are complete in bronze now.
        failed: definite errors, one for each table that could not be taken.
    """

    lsn: Lsn = ZERO
    taken: list[TableName] = field(default_factory=list)
    failed: list[TableError] = field(default_factory=list)


class Snapshot:
    """Takes tables; one object may take many, one after another.

    Args:
        source: which server.
        settings: workers and size of chunks.
        landing: where rows go.
        application_name: of its connections, as pg_stat_activity shows it.
    """

    def __init__(
        self,
        source: SourceSettings,
        settings: SnapshotSettings,
        landing: Landing,
        *,
        application_name: str = "deltasmelt snapshot",
    ) -> None:
        self._source = source
        self._settings = settings
        self._landing = landing
        self._application_name = application_name

    def take(self, tables: Sequence[SourceTable], stop: threading.Event) -> Outcome:
        """Copy tables as of one LSN. When `stop` is set meanwhile, some may be neither taken nor failed.

        Raises:
            SmeltError: transient (lost connection, lock), or definite for all tables; those not taken are to
            be taken again.
        """
        outcome = Outcome()
        with translated(self._source):
            try:
                self._take(tables, stop, outcome)
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
                # A lock on a table keeps its name, but not that of its schema.
                raise TransientError(
                    f"a table or its schema got another name before its copy: {error.diag.message_primary}",
                    code="concurrent-change",
                    where=describe(self._source),
                    remedy="nothing to do; the tables are looked at again",
                ) from error
        return outcome

    def _take(self, tables: Sequence[SourceTable], stop: threading.Event, outcome: Outcome) -> None:
        with ExitStack() as stack:
            guard = stack.enter_context(self._session())
            guard.execute("BEGIN")
            locked = [table for table in tables if self._lock(guard, table, outcome)]
            if not locked:
                return
            self._landing.reached("snapshot-locked")
            exporter = ReplicationConnection(self._source, application_name=self._application_name)
            try:
                slot = f"smelt_tmp_{os.getpid()}_{uuid.uuid4().hex[:8]}"
                exported = exporter.export_snapshot(slot, lambda: stop.is_set() or self._let_go(guard))
                if exported is None:
                    return
                outcome.lsn = Lsn(exported.consistent_point - 1)
                with within(_PLAN_SECONDS, guard):
                    copies = self._plan(guard, locked, outcome)
                count = min(self._settings.workers, sum(len(copy.chunks) for copy in copies))
                planned = {copy.table for copy in copies}
                held = [table for table in locked if table.table in planned]
                workers = [stack.enter_context(self._worker(exported.name, held)) for _ in range(count)]
            finally:
                # The workers' transactions hold the snapshot now; the temporary slot need not hold WAL any
                # longer.
                exporter.close()
            self._landing.reached("snapshot-exported")
            copying = SnapshotCopy(self._source, self._landing, outcome.lsn, _clock(guard), stop)
            copying.run(copies, workers)
            outcome.taken += [copy.table for copy in copies if copy.done]
            outcome.failed += [copy.error for copy in copies if copy.error is not None]

    def start_empty(self, tables: Sequence[SourceTable], lsn: Lsn) -> None:
        """Mark tables as starting empty at an LSN (`snapshot.mode: never`): a snapshot without rows.

        To silver this is a snapshot like any other: the table holds no row at `lsn`, and the stream's changes
        after it follow.
        """
        if not tables:
            return
        with translated(self._source), connect(self._source) as connection:
            copying = SnapshotCopy(self._source, self._landing, lsn, _clock(connection), threading.Event())
        for table in tables:
            copying.commit_empty(replace(table.relation, from_lsn=lsn), table.storage)

    def _lock(self, guard: psycopg.Connection[TupleRow], table: SourceTable, outcome: Outcome) -> bool:
        """Lock a table against a rewrite; a definite failure becomes an error of that table."""
        try:
            with within(_LOCK_SECONDS + _ANSWER_SECONDS, guard), guard.transaction():
                guard.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
                guard.execute(_lock_statement(table).encode())
        except psycopg.Error as error:
            failure = translate(error, self._source)
            if not isinstance(failure, DefiniteError):
                raise failure from error
            outcome.failed.append(as_table_error(table.table, failure))
            return False
        return True

    def _let_go(self, guard: psycopg.Connection[TupleRow]) -> bool:
        """Give up where somebody waits for our locks: making the slot may be waiting for just that session.

        An ALTER TABLE has its transaction number before it has its lock, and a slot waits for every
        transaction that has one.

        Raises:
            TransientError: naming who waits.
        """
        with within(_ANSWER_SECONDS, guard):
            row = guard.execute(
                "SELECT pid, left(query, 80) FROM pg_stat_activity "
                "WHERE wait_event_type = 'Lock' AND pg_backend_pid() = ANY(pg_blocking_pids(pid)) LIMIT 1"
            ).fetchone()
        if row is not None:
            raise TransientError(
                f"backend {row[0]} waits for a table that is to be copied ({row[1]}); it goes first",
                code="lock-not-available",
                where=describe(self._source),
                remedy="nothing; copying is tried again after it",
            )
        return False

    def _plan(
        self, guard: psycopg.Connection[TupleRow], tables: Sequence[SourceTable], outcome: Outcome
    ) -> list[TableCopy]:
        """Shape (under the lock, so it is the snapshot's) and chunks of each table."""
        copies = []
        for table in tables:
            shape = describe_relation(
                guard, table.relation.relation_id, self._source.keys, self._source.publication
            )
            if shape is None or shape.table != table.table:
                outcome.failed.append(_gone(table.table))
                continue
            leaves = (
                [(leaf, _pages(guard, leaf)) for leaf in table.partitions]
                if table.kind == "p"
                else [(table.table, _pages(guard, table.table))]
            )
            chunks = chunks_of(leaves, table.rows_estimate, self._settings.chunk_rows)
            copies.append(TableCopy(replace(shape, from_lsn=outcome.lsn), chunks, table.storage))
            self._landing.progress.copying(str(table.table), table.rows_estimate, len(chunks))
        return copies

    @contextmanager
    def _worker(self, snapshot: str, tables: Sequence[SourceTable]) -> Iterator[psycopg.Connection[Any]]:
        """A connection whose transaction sees the exported snapshot, and holds the tables itself.

        An ALTER TABLE that waits for the guard's lock would make a worker wait behind it, and the guard waits
        for the worker: a deadlock that the server cannot see. So a worker takes its locks now, at once or not
        at all; where one is not to be had the guard lets go, the ALTER goes on, and all of it is tried again.
        """
        with self._session() as connection:
            with within(_PLAN_SECONDS, connection):
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                connection.execute(f"SET TRANSACTION SNAPSHOT {quote_literal(snapshot)}".encode())
                for table in tables:
                    connection.execute(f"{_lock_statement(table)} NOWAIT".encode())
                enlarge_buffer(connection.pgconn)
            yield connection

    def _session(self) -> closing[psycopg.Connection[TupleRow]]:
        """A connection that is closed at the end without a word: no line may be there for a ROLLBACK.

        The server ends what was open, which is nothing but locks and reads.
        """
        return closing(connect(self._source, application_name=self._application_name))


def _lock_statement(table: SourceTable) -> str:
    """A table, or a root with its partitions; children of table inheritance are tables of their own."""
    only = "" if table.kind == "p" else "ONLY "
    return f"LOCK TABLE {only}{table.table.quoted} IN ACCESS SHARE MODE"


def as_table_error(table: TableName, error: SmeltError) -> TableError:
    """A definite error that concerns one table only."""
    return TableError(table, error.message, code=error.code, remedy=error.remedy)


def _gone(table: TableName) -> TableError:
    return TableError(
        table,
        "the table was dropped or renamed before it could be copied",
        code="table-gone",
        remedy="nothing to do if that was meant; the next start selects tables by their present names",
    )


def _clock(connection: psycopg.Connection[TupleRow]) -> datetime:
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM has one row
    now: datetime = row[0]
    return now


def _pages(connection: psycopg.Connection[TupleRow], table: TableName) -> int:
    row = connection.execute(
        "SELECT pg_relation_size(%s::regclass) / current_setting('block_size')::int", [table.quoted]
    ).fetchone()
    return int(row[0]) if row and row[0] is not None else 0
