"""Take a snapshot of tables, consistent with the stream at one LSN, at the start or later.

Invariants:

* **One LSN.** A temporary slot gives a consistent point P and exports the snapshot there. The snapshot holds
  exactly the transactions whose commit record begins before P. The rows get S = P - 1.
* **No rewrite goes unnoticed**: tables are locked before the snapshot is taken (`_lock`).
* **No deadlock with a session that waits for these locks**: during the slot's creation the session goes first
  (`_let_go`).
* **No partial table is visible.** Rows go to parquet files that no version names. One commit per table names
  its files, with the `snapshot_end` row and the mark `snapshot_app(table)`. A crash before the commit leaves
  unnamed files and a table without a mark; the next start copies the table again.
* **Equal values as in the stream**: see `bronze.snapshot.copy_out`.

PostgreSQL docs: https://www.postgresql.org/docs/current/protocol-replication.html (CREATE_REPLICATION_SLOT)
and https://www.postgresql.org/docs/current/logicaldecoding-explanation.html (Exported Snapshots).
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import uuid
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING, Final

import psycopg

from deltasmelt.bronze.catalog.select import describe_relation
from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.identifiers import quote_literal
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.postgres.blockers import Wait, running_transactions
from deltasmelt.bronze.postgres.connection import connect, translated, until_stopped, within
from deltasmelt.bronze.postgres.conninfo import address_of
from deltasmelt.bronze.postgres.error_translation import table_error, tables_changed
from deltasmelt.bronze.postgres.heartbeat import write_heartbeat
from deltasmelt.bronze.postgres.lock_holders import describe_holder, waiting_for
from deltasmelt.bronze.postgres.replication import ReplicationConnection
from deltasmelt.bronze.snapshot.chunks import chunks_of
from deltasmelt.bronze.snapshot.copy_out import EXPORTER_ENDED, enlarge_buffer, snapshot_gone
from deltasmelt.bronze.snapshot.executor_pool import ExecutorPool
from deltasmelt.bronze.snapshot.locks import (
    Leaf,
    Worker,
    groups,
    held_by,
    leaves_of,
    lock_budget,
    sessions_of,
    weight,
)
from deltasmelt.bronze.snapshot.ranges import (
    dropped_error,
    held_up_by,
    interrupted_again,
    locked_by,
    lost,
)
from deltasmelt.bronze.snapshot.table_copy import Outcome, TableCopy
from deltasmelt.bronze.snapshot.workers import SnapshotCopy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.config.sections import SnapshotSettings, SourceSettings
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.postgres.connection import SourceConnection
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.snapshot.executors import ExecutorsAtHand
    from deltasmelt.bronze.snapshot.remote_copy import Begin
    from deltasmelt.bronze.store.landing import Landing

_LOGGER = logging.getLogger("deltasmelt.reader")

_REWRITING: Final = ("AccessExclusiveLock",)


class Snapshot:
    """A copier of tables; an object may take many snapshots consecutively.

    Args:
        application_name: name of the connections in pg_stat_activity.
        wait: called while the creation of the slot waits for transactions.
        executors: prepares the executors that copy large tables; None: the workers copy all tables.
        condition: returns, for a table's shape, the SQL condition on its rows; empty: all rows.
        on_export: called with the name of each exported snapshot, the LSN of its rows and the locked tables.
            Other sessions can import the snapshot until the call returns.
        hides: checks whether a new partition, by oid and name, may have rules (`bronze.reader.polled_rules`).
    """

    def __init__(
        self,
        source: SourceSettings,
        settings: SnapshotSettings,
        landing: Landing,
        *,
        application_name: str = "deltasmelt snapshot",
        wait: Wait | None = None,
        executors: ExecutorsAtHand | None = None,
        condition: Callable[[Relation], str] = lambda _: "",
        on_export: Callable[[str, Lsn, list[TableName]], None] = lambda *_: None,
        hides: Callable[[SourceConnection, int, TableName], bool] = lambda *_: True,
    ) -> None:
        self._hides = hides
        self._on_export = on_export
        self._condition = condition
        self._pool = ExecutorPool(executors, source, settings, landing)
        self._source = source
        self._timing = source.timing
        self._settings = settings
        self._landing = landing
        self._application_name = application_name
        self._wait = wait or Wait()
        self._say_at = 0.0
        self._interrupted: set[TableName] = set()

    def take(
        self, tables: Sequence[SourceTable], stop: threading.Event, outcome: Outcome | None = None
    ) -> Outcome:
        """Copy tables, each group as of one LSN. After `stop` some tables may be neither taken nor failed.

        The consequences of errors:

        * **A definite error of one table** (a missing privilege, row-level security) fails this table alone.
        * **A lost connection or a failed write** fails all uncommitted tables of the snapshot. The reader
          copies these tables under a new snapshot. Committed tables stay committed, and `Outcome` lists them
          in any case.
        * **A transient error of one table** (a block that cannot be read, too little memory for a row) ends
          this table's copy alone.

        Args:
            stop: cancels between blocks and during waits.
            outcome: filled and returned; lists the taken tables even after an error.

        Raises:
            SmeltError: transient (lost connection, a session that waits for the reader's locks), or definite
                for all tables; the tables without a snapshot still need one.
        """
        outcome = Outcome() if outcome is None else outcome
        with translated(self._source):
            try:
                with self._session() as watcher, until_stopped(stop, watcher), ExitStack() as stack:
                    budget = lock_budget(watcher)
                    large = [table for table in tables if self._pool.is_large(table)]
                    small = [table for table in tables if not self._pool.is_large(table)]
                    self._take_groups(small, stop, outcome, watcher, budget)
                    if large and not stop.is_set():
                        # Only the large tables wait for unavailable executors.
                        begin = self._pool.begin(stack, large, watcher, stop, outcome.fail)
                        if begin is not None:
                            self._take_groups(large, stop, outcome, watcher, budget, begin=begin)
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
                # A table's lock prevents a rename of the table, but not of its schema.
                happened = "a table or its schema was renamed before its copy"
                raise tables_changed(happened, error, self._source) from error
        # Raise after the other tables, so that the reader retries this table soon.
        if outcome.interrupted is not None:
            raise outcome.interrupted
        return outcome

    def _take_groups(
        self,
        tables: Sequence[SourceTable],
        stop: threading.Event,
        outcome: Outcome,
        watcher: SourceConnection,
        budget: int,
        *,
        begin: Begin | None = None,
    ) -> None:
        for group in groups(tables, budget):
            if stop.is_set():
                break
            self._take(group, stop, outcome, watcher, budget, begin=begin)

    def _take(
        self,
        tables: Sequence[SourceTable],
        stop: threading.Event,
        outcome: Outcome,
        watcher: SourceConnection,
        budget: int,
        *,
        begin: Begin | None,
    ) -> None:
        """Copy one group. The watcher stays in autocommit mode: a transaction would show past states."""
        with ExitStack() as stack:
            count = self._count(tables) if begin is None else 1
            sessions = sessions_of(self._session, count, stack)
            workers = [Worker(session, self._timing) for session in sessions]
            for session in sessions:
                session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            stack.enter_context(until_stopped(stop, *sessions))
            locked = self._lock(workers, tables, budget, outcome, watcher)
            if not locked:
                return
            held_by(watcher, workers)
            self._landing.reached("snapshot-locked")
            exporter = ReplicationConnection(self._source, application_name=self._application_name, stop=stop)
            try:
                slot = f"smelt_tmp_{os.getpid()}_{uuid.uuid4().hex[:8]}"
                pids = [worker.pid for worker in workers]
                own_pids = [*pids, exporter.backend_pid]
                self._say_at = time.monotonic() + self._timing.wait_notice
                # The table of a renewal has a valid snapshot, so its copy waits no longer than for a lock.
                deadline = time.monotonic() + (self._timing.group_locks if self._landing.renews else math.inf)

                def given_up() -> bool:
                    self._report_waits(watcher, locked, own_pids)
                    return time.monotonic() > deadline or stop.is_set() or self._let_go(watcher, pids)

                exported = exporter.export_snapshot(slot, given_up)
                if exported is None:
                    if not stop.is_set():
                        self._give_up(locked, outcome, running_transactions(watcher, own_pids))
                    return
                if self._wait.over():
                    self._landing.progress.set(copies_wait="")
                # Materialize's postgres source documents the same off-by-one.
                # A transaction that commits exactly at P is not in the snapshot and has an LSN above P - 1.
                # The stream delivers the transaction, because the stream begins at the main slot's point, at
                # or before P.
                lsn = Lsn(exported.consistent_point - 1)
                self._take_over(sessions, exported.name)
                self._on_export(exported.name, lsn, [table.table for table in locked])
            finally:
                # The workers' transactions hold the snapshot now; the temporary slot need not hold WAL any
                # longer.
                exporter.close()
            outcome.lsn = max(outcome.lsn, lsn)
            # A server whose files are restored to a state before S lacks this message. The reader refuses
            # such a server (`bronze.stream.same_log`), even if no row of a published table reveals the
            # restore.
            outcome.trace = write_heartbeat(watcher, "snapshot")
            copies, leaves = [], []
            for worker in workers:
                own_tables = [table for table in locked if table.relation.relation_id in worker.held]
                with within(self._timing.copy_plan, worker.connection), worker.locks_let_go():
                    # Read the partitions of the snapshot, not of the catalog poll before, which may be
                    # minutes old. The stream fills a partition created later.
                    table_leaves = leaves_of(worker, [table.relation.relation_id for table in own_tables])
                    copies += self._plan(worker, own_tables, table_leaves, lsn, outcome)
                leaves += [leaf for of_table in table_leaves.values() for leaf in of_table]
            taken_at = _clock(watcher)
            self._landing.reached("snapshot-exported")
            copying = SnapshotCopy(self._source, self._landing, lsn, taken_at, stop)
            elsewhere = None if begin is None else begin(workers[0], taken_at)
            try:
                copying.run(copies, leaves, workers, elsewhere)
            finally:
                outcome.copied += [copy.table for copy in copies if copy.done]
                for copy in copies:
                    self._settle(copy, outcome)

    def _give_up(self, tables: Sequence[SourceTable], outcome: Outcome, blockers: str) -> None:
        for table in tables:
            outcome.fail(held_up_by(table.table, blockers))

    def _settle(self, copy: TableCopy, outcome: Outcome) -> None:
        """Record the result of a copy; a second interruption in a row fails the table."""
        failure = copy.interrupted
        if copy.done:
            self._interrupted.discard(copy.table)
        elif copy.error is None and failure is not None:
            # A second failure in a row, also of the connection during reads of the table, becomes an error of
            # the table, retried with growing pauses: otherwise no longer copy would ever complete.
            if copy.table in self._interrupted:
                copy.error = interrupted_again(copy.table, failure)
            self._interrupted.add(copy.table)
            _LOGGER.warning("the copy of %s failed: %s", copy.table, failure)
        if copy.error is not None:
            outcome.fail(copy.error)
        elif failure is not None:
            outcome.interrupted = outcome.interrupted or failure

    def _take_over(self, sessions: Sequence[SourceConnection], name: str) -> None:
        for session in sessions:
            with within(self._timing.copy_plan, session):
                try:
                    session.execute(f"SET TRANSACTION SNAPSHOT {quote_literal(name)}".encode())
                except EXPORTER_ENDED as error:
                    raise snapshot_gone(error.diag.message_primary, self._source) from error
                enlarge_buffer(session)

    def _count(self, tables: Sequence[SourceTable]) -> int:
        """Return the number of workers that have work, by estimates of the tables."""
        rows = self._settings.chunk_rows
        chunks = (len(chunks_of([(table.table, table.pages)], table.rows_estimate, rows)) for table in tables)
        pieces = sum(max(count, len(table.partitions)) for count, table in zip(chunks, tables, strict=True))
        return min(self._settings.workers, pieces)

    def start_empty(self, tables: Sequence[tuple[SourceTable, Lsn]]) -> None:
        """Mark tables as empty, each at an LSN (`snapshot.mode: never`): a snapshot without rows.

        Silver treats this snapshot like any other: the table has no row at the LSN, and the stream's later
        changes follow.
        """
        if not tables:
            return
        with translated(self._source), connect(self._source) as connection:
            now = _clock(connection)
        for table, lsn in tables:
            copying = SnapshotCopy(self._source, self._landing, lsn, now, threading.Event())
            copying.commit_empty(replace(table.relation, from_lsn=lsn), table.storage)

    def _lock(
        self,
        workers: Sequence[Worker],
        tables: Sequence[SourceTable],
        budget: int,
        outcome: Outcome,
        watcher: SourceConnection,
    ) -> list[SourceTable]:
        """Lock tables against a rewrite, each by one worker; a failure becomes an error of the table.

        A table rewritten after the snapshot was taken looks empty to the snapshot. So the tables are locked
        (ACCESS SHARE, as in pg_dump) before the snapshot is taken, until their copies end. The reading
        workers themselves take the locks: a transaction may lock before importing a snapshot. A partition
        locked later is compared (`bronze.snapshot.locks`).
        """
        locked: set[TableName] = set()
        pending = list(zip(tables, cycle(workers), strict=False))
        deadline = time.monotonic() + self._timing.group_locks
        # The first pass waits briefly for each table, so that a locked table delays no other table. The
        # second pass waits for the rest, within a common limit (`Timing.group_locks`).
        for last in (False, True):
            postponed = []
            for table, worker in pending:
                seconds = max(deadline - time.monotonic(), 0.0) if last else self._timing.brief_lock
                try:
                    worker.lock(table, seconds, whole=weight(table) <= budget)
                    locked.add(table.table)
                except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                    postponed.append((table, worker))
                    if last:
                        outcome.fail(
                            locked_by(table.table, describe_holder(watcher, table.table, _REWRITING))
                        )
                except psycopg.Error as error:
                    # The table fails, is reported at once and retried later; the other tables are copied.
                    outcome.fail(table_error(table.table, error, self._source))
            pending = postponed
        return [table for table in tables if table.table in locked]

    def _report_waits(
        self, watcher: SourceConnection, tables: Sequence[SourceTable], pids: Sequence[int]
    ) -> None:
        """Report periodically the transactions that the slot's creation waits for.

        The slot waits for every running transaction, also for the holder of a table's lock. A caller without
        time for this wait may give up (`bronze.postgres.blockers`).
        """
        if time.monotonic() < self._say_at:
            return
        with within(self._timing.copy_lookout, watcher):
            blockers = running_transactions(watcher, pids)
        names = [table.table for table in tables]
        self._landing.progress.set(copies_wait=self._wait.goes_on(names, blockers, address_of(self._source)))
        self._say_at = time.monotonic() + self._timing.wait_notice

    def _let_go(self, watcher: SourceConnection, pids: Sequence[int]) -> bool:
        """Give up if a session waits for the workers' locks: the slot's creation may wait for this session.

        An ALTER TABLE has its transaction number before its lock, and a slot waits for every transaction with
        a number. The server sees no cycle through the reader. So the session goes first: the reader releases
        all locks and retries. After the slot's creation no such cycle is possible, because the workers have
        their locks.

        Raises:
            TransientError: names the waiting backend.
        """
        with within(self._timing.copy_lookout, watcher):
            waiting = waiting_for(watcher, pids)
        if waiting is not None:
            raise TransientError(
                f"backend {waiting[0]} waits for a table that is to be copied ({waiting[1]}); the copy lets "
                "this backend run first",
                code="lock-not-available",
                where=address_of(self._source),
                remedy="nothing to do: the reader retries the copy afterwards",
            )
        return False

    def _plan(
        self,
        worker: Worker,
        tables: Sequence[SourceTable],
        leaves: dict[int, list[Leaf]],
        lsn: Lsn,
        outcome: Outcome,
    ) -> list[TableCopy]:
        """Return shape and chunks of each table, read by the lock's holder and therefore without a wait."""
        copies = []
        for table in tables:
            relation_id = table.relation.relation_id
            shape = describe_relation(
                worker.connection, relation_id, self._source.keys, self._source.publication
            )
            if shape is None or shape.table != table.table:
                outcome.fail(dropped_error(table.table))
                continue
            rules = self._source.rules.table(table.table)
            if rules.lost(table.relation.names, shape.names):
                outcome.fail(lost(table.table, "a column with a rule in source.columns was renamed"))
                continue
            if self._may_hide(worker, table, leaves[relation_id]):
                outcome.fail(lost(table.table, "a partition was attached"))
                continue
            shape = rules.shape(shape)
            parts = [(leaf.table, leaf.pages) for leaf in leaves[relation_id]]
            chunks = chunks_of(parts, table.rows_estimate, self._settings.chunk_rows)
            # The stream's filter is the server's print (`bronze.catalog.row_filters`).
            where = rules.where and ((table.wanted.printed if table.wanted else None) or rules.where)
            condition = " AND ".join(f"({text}\n)" for text in (where, self._condition(shape)) if text)
            copied = {leaf.oid: leaf.part for leaf in leaves[relation_id]}
            storage = None if table.storage is None else table.storage.with_parts(copied)
            copies.append(TableCopy(replace(shape, from_lsn=lsn), chunks, storage, condition))
            self._landing.progress.copying(str(table.table), table.rows_estimate, len(chunks))
        return copies

    def _may_hide(self, worker: Worker, table: SourceTable, leaves: Sequence[Leaf]) -> bool:
        """Check whether a partition, new since the poll, may have had rules elsewhere."""
        rules, storage = self._source.rules, table.storage
        if storage is None or not rules.ruled or table.table in rules.tables:
            return False
        new = [leaf for leaf in leaves if leaf.oid not in storage.parts]
        return any(self._hides(worker.connection, leaf.oid, leaf.table) for leaf in new)

    def _session(self) -> closing[SourceConnection]:
        """Return a connection that is closed without a ROLLBACK, because the network may be down.

        The server ends the open transaction, which holds only locks and reads.
        """
        return closing(connect(self._source, application_name=self._application_name))


def _clock(connection: SourceConnection) -> datetime:
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM has one row
    now: datetime = row[0]
    return now
