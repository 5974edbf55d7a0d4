"""Run the workers of a snapshot: chunks in, files out, one commit per table after its last chunk.

The snapshot's end row is in the file of the chunk that finishes last. A chunk counts as finished only when
its file is on disk. So a failed write leaves a table without its end row and without a commit.

With executors, the executors copy the tables of several ranges (`bronze.snapshot.remote_copy`), and a single
worker remains in this process. The worker holds the locks and the snapshot, copies the small tables, and
finally copies the ranges that no other session could lock.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg

from deltasmelt.bronze.drift.observed_storage import ObservedStorage
from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.postgres.connection import within
from deltasmelt.bronze.postgres.error_rules import LOST
from deltasmelt.bronze.snapshot.copy_out import CopyCancelledError
from deltasmelt.bronze.snapshot.locks import ChunkQueue, LeafLostError
from deltasmelt.bronze.snapshot.ranges import (
    UnreadableRowsError,
    error_of_table,
    let_go,
    lost,
    rows_of_range,
    unreadable,
)
from deltasmelt.bronze.snapshot.remote_copy import Hooks
from deltasmelt.bronze.snapshot.rows import SEQ_OF_CHUNK, SnapshotRows
from deltasmelt.bronze.snapshot.table_copy import TableCopy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.drift.storage import Storage
    from deltasmelt.bronze.lake.client import AddAction
    from deltasmelt.bronze.lake.parquet import PartWriter
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.bronze.postgres.connection import SourceConnection
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.snapshot.chunks import Chunk
    from deltasmelt.bronze.snapshot.locks import Leaf, Worker
    from deltasmelt.bronze.snapshot.range_task import RangeResult
    from deltasmelt.bronze.snapshot.remote_copy import RemoteCopy
    from deltasmelt.bronze.store.landing import Landing


class SnapshotCopy:
    """The copy of the tables of one snapshot. `stop` ends the copy between blocks."""

    def __init__(
        self, source: SourceSettings, landing: Landing, lsn: Lsn, taken_at: datetime, stop: threading.Event
    ) -> None:
        self._source = source
        self._timing = source.timing
        self._landing = landing
        self._lsn = lsn
        self._taken_at = taken_at
        self._stop = stop
        self._lock = threading.Lock()
        self._failure: BaseException | None = None

    def run(
        self,
        copies: Sequence[TableCopy],
        leaves: Sequence[Leaf],
        workers: Sequence[Worker],
        remote_copy: RemoteCopy | None = None,
    ) -> None:
        """Copy all tables; return when all are done or failed, or when `stop` is set.

        Args:
            leaves: tables and partitions that the chunks read.
            remote_copy: copies ranges of large tables on executors; then one worker has locked all tables.

        Raises:
            SmeltError: an error of more than one table.
        """
        self._hold_changes(copies)
        for copy in copies:
            if not copy.chunks:  # a root without partitions
                self.commit_empty(copy.relation, copy.storage)
                copy.done = True
        remote = [copy for copy in copies if remote_copy is not None and len(copy.chunks) > 1]
        local = [copy for copy in copies if remote_copy is None or len(copy.chunks) <= 1]
        chunks = ChunkQueue(((copy, chunk) for copy in local for chunk in copy.chunks), leaves, workers)
        threads = [
            threading.Thread(
                target=self._work, args=(worker, chunks), name=f"smelt-snapshot-{number}", daemon=True
            )
            for number, worker in enumerate(workers)
        ]
        for thread in threads:
            thread.start()
        unread = (
            [] if remote_copy is None else self._run_remote(remote_copy, remote, leaves, workers[0], threads)
        )
        for thread in threads:
            thread.join()
        if unread:
            self._work(workers[0], ChunkQueue(unread, leaves, workers))
        # Each writer removes its own files, and the sink removes the files of a tried commit, which may have
        # succeeded. The files left here belong to uncommitted tables.
        for copy in copies:
            self._landing.sink.remove(copy.take_parts())
        if self._failure is not None:
            raise self._failure

    def _hold_changes(self, copies: Sequence[TableCopy]) -> None:
        """Record the shapes of tables without a shape before the first row is read.

        A table without a snapshot holds bronze's changes from its first shape on (`bronze.store.retention`).
        The table is locked, so its shape stays the same until the commit of the rows.
        """
        shapes = self._landing.shapes
        new = [copy.relation for copy in copies if not shapes.knows(copy.relation.relation_id, self._lsn)]
        if new:
            shapes.record(new, ahead=True)

    def _run_remote(
        self,
        remote_copy: RemoteCopy,
        remote: Sequence[TableCopy],
        leaves: Sequence[Leaf],
        holder: Worker,
        threads: Sequence[threading.Thread],
    ) -> list[tuple[TableCopy, Chunk]]:
        """Copy large tables on executors; query the holder periodically; return the ranges left over."""

        def copied(copy: TableCopy, result: RangeResult) -> None:
            self._landing.progress.copied(str(copy.table), result.rows, result.size)
            self._landing.reached("snapshot-range-copied")
            self._chunk_done(copy, result.actions())

        def failed(error: BaseException) -> None:
            self._failure = self._failure or error

        def tick() -> None:
            if not any(thread.is_alive() for thread in threads):
                with within(self._timing.copy_command, holder.connection):
                    holder.connection.execute("SELECT")

        return remote_copy.run(
            remote, leaves, Hooks(copied=copied, failed=failed, cancelled=self._cancelled, tick=tick)
        )

    def commit_empty(self, relation: Relation, storage: Storage | None) -> None:
        """Commit a snapshot without rows."""
        copy = TableCopy(relation, [], storage)
        writer = self._landing.sink.parts(f"snapshot-{relation.relation_id}")
        writer.write(SnapshotRows(relation, self._lsn, self._taken_at).end(0))
        copy.parts += writer.finish()
        try:
            self._commit(copy)
        finally:
            self._landing.sink.remove(copy.take_parts())

    def _cancelled(self) -> bool:
        return self._stop.is_set() or self._failure is not None

    def _go_on(self) -> None:
        """Check for cancellation between two blocks; `copy_blocks` checks only while no input arrives.

        Raises:
            CopyCancelledError: the copy was cancelled.
        """
        if self._cancelled():
            raise CopyCancelledError

    def _work(self, worker: Worker, chunks: ChunkQueue) -> None:
        try:
            while not self._cancelled() and (next_leaf := chunks.first(worker)) is not None:
                leaf, copy = next_leaf
                if not copy.is_over and not self._opened(worker, copy, leaf):
                    worker.order.popleft()  # the holding worker reads the leaf
                    continue
                piece = chunks.take(leaf)
                if piece is not None and not copy.is_over:
                    self._copy(worker.connection, *piece)
            if not self._cancelled():
                worker.close()
        except CopyCancelledError:
            return
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self._failure = error

    def _opened(self, worker: Worker, copy: TableCopy, leaf: Leaf) -> bool:
        """Lock the leaf to read; return False if another worker reads the leaf. An error is the table's."""
        try:
            return worker.open(leaf)
        except LeafLostError as error:
            copy.error = lost(copy.table, error)
        except psycopg.Error as error:
            self._fail(copy, error, worker.connection)
        return True

    def _fail(self, copy: TableCopy, error: psycopg.Error, connection: SourceConnection) -> None:
        """Assign a statement's error to the copy of its table, also a transient error.

        Raises:
            psycopg.Error: a table or schema was renamed; `Snapshot.take` handles the error.
            SmeltError: the error concerns more than the table, such as a lost connection; the table counts
                the interruption too.
        """
        try:
            copy.error = error_of_table(copy.table, error, self._source)
        except TransientError as failure:
            copy.interrupted = failure
            if connection.closed:
                raise

    def _copy(self, connection: SourceConnection, copy: TableCopy, chunk: Chunk) -> None:
        writer = self._landing.sink.parts(f"snapshot-{copy.relation.relation_id}")
        rows = SnapshotRows(copy.relation, self._lsn, self._taken_at)
        try:
            for table, size in rows_of_range(
                connection,
                self._source,
                copy.relation,
                chunk,
                rows,
                condition=copy.condition,
                cancelled=self._cancelled,
            ):
                writer.write(table)
                self._landing.progress.copied(str(copy.table), table.num_rows, size)
                self._landing.reached("snapshot-block-written")
                self._landing.pace(size)
                self._go_on()
        except psycopg.Error as error:
            writer.discard()
            self._fail(copy, error, connection)
            let_go(connection, self._timing.copy_command)
            return
        except UnreadableRowsError as error:
            writer.discard()
            raise self._unreadable(copy, error) from error.__cause__
        except TransientError as error:
            writer.discard()
            if error.code == LOST.code:  # the connection failed, not the lake
                copy.interrupted = error
            raise
        except BaseException:
            writer.discard()
            raise
        self._chunk_done(copy, writer=writer)

    def _unreadable(self, copy: TableCopy, error: UnreadableRowsError) -> TransientError:
        """Assign an unforeseen parse error to the table: the error depends only on the table's text."""
        copy.error = unreadable(copy.table, error)
        # The connection cannot continue after the unfinished COPY, so the round ends. The next round leaves
        # the table out for a while.
        return TransientError(
            f"the copy of {copy.table} failed ({error}); tables of the same copy round are resnapshotted",
            code="copy-interrupted",
            where=str(copy.table),
            remedy="nothing to do for the other tables; this table has its own error",
        )

    def _chunk_done(
        self, copy: TableCopy, parts: Sequence[AddAction] = (), writer: PartWriter | None = None
    ) -> None:
        """Count a written chunk; commit the table after its last chunk.

        Args:
            parts: files that are already closed.
            writer: writer of an open file, which also gets the snapshot's end row.
        """
        with self._lock:
            copy.parts += parts
            last = copy.finished + 1 == len(copy.chunks)
            if last:
                writer = writer or self._landing.sink.parts(f"snapshot-{copy.relation.relation_id}")
                rows = SnapshotRows(copy.relation, self._lsn, self._taken_at)
                writer.write(rows.end(len(copy.chunks) * SEQ_OF_CHUNK))
            if writer is not None:
                copy.parts += writer.finish()
            copy.finished += 1
            self._landing.progress.chunk_copied(str(copy.table))
        if last and copy.error is None:
            self._commit(copy)

    def _commit(self, copy: TableCopy) -> None:
        self._landing.reached("snapshot-parts-written")
        # Record an empty snapshot's shape (`commit_empty`) only if no shape is known: the stream announces
        # the shapes of its own rows.
        shapes, relation = self._landing.shapes, copy.relation
        if copy.chunks or not shapes.knows(relation.relation_id, relation.from_lsn):
            shapes.record([relation], ahead=True)
        tables = self._landing.sink.tables
        # A renewal proves nothing about the storage, because silver may never load the renewed rows. The next
        # poll must still find a change without an event.
        if copy.storage is not None and not self._landing.renews:
            tables.record_storages({copy.table: ObservedStorage(copy.storage)})
        self._landing.reached("snapshot-relation-committed")
        commit = tables.commit_renewal if self._landing.renews else tables.commit_snapshot
        commit(copy.table, self._lsn, copy.take_parts())
        copy.done = True
        self._landing.progress.copy_done(str(copy.table))
        self._landing.reached("snapshot-committed")
