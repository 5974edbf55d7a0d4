"""The workers of a snapshot: chunks in, files out, one commit per table when its last chunk is done.

The row that ends a snapshot is in the file of the chunk that is finished last, and a chunk counts as finished
only when its file is on disk. So a write that fails leaves a table without its end, and no commit. The files
of a table that is not committed are removed: each by its writer, or when all workers have ended. Those of a
commit that was tried are the sink's to remove, for it may have come about.

What a worker reads it has locked (`bronze.snapshot.locks`).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import psycopg

from bronze.drift.looks import Looked
from bronze.errors import DefiniteError, TableError, TransientError
from bronze.postgres.connection import within
from bronze.postgres.error_translation import translate
from bronze.postgres.liveness import CopyLine
from bronze.snapshot.copy_out import CopyCancelledError, copy_blocks
from bronze.snapshot.copy_text import cells_of
from bronze.snapshot.locks import ChunkQueue, LeafLostError
from bronze.snapshot.rows import SEQ_OF_CHUNK, SnapshotRows
from bronze.snapshot.table_copy import TableCopy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import pyarrow as pa

    from bronze.config.sections import SourceSettings
    from bronze.drift.storage import Storage
    from bronze.lsn import Lsn
    from bronze.shapes import Relation
    from bronze.snapshot.chunks import Chunk
    from bronze.snapshot.locks import Leaf, Worker
    from bronze.store.landing import Landing


def _rows_of(copy: TableCopy, rows: SnapshotRows, block: bytearray, seq: int) -> pa.Table:
    """The rows of a block.

    What no rule knows is the table's error: nothing but its text has a part in this. The COPY that is under
    way cannot be read on, so the round ends; the next one leaves this table out for a while.

    Raises:
        TransientError: the table has its error, the others of the round are copied again.
    """
    try:
        return rows.rows(cells_of(block), seq)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        copy.error = TableError(
            copy.table,
            f"a row of the copy cannot be read: {said}",
            code="copy-failed",
            remedy="the log of the reader has the whole error, which is a defect of deltasmelt; the table is "
            "resnapshotted automatically, or left out with source.exclude",
        )
        raise TransientError(
            f"the copy of {copy.table} failed ({said}); tables copied beside it are resnapshotted",
            code="copy-interrupted",
            where=str(copy.table),
            remedy="nothing to do for the others; the table has an error of its own",
        ) from error


class SnapshotCopy:
    """Copies the tables of one snapshot. `stop` ends it between blocks."""

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

    def run(self, copies: Sequence[TableCopy], leaves: Sequence[Leaf], workers: Sequence[Worker]) -> None:
        """Copy all tables; returns when all are done, failed, or `stop` is set.

        Args:
            copies: the tables.
            leaves: what their chunks read.
            workers: with what they have locked.

        Raises:
            SmeltError: what failed more than one table.
        """
        for copy in copies:
            if not copy.chunks:  # a root without partitions
                self.commit_empty(copy.relation, copy.storage)
                copy.done = True
        chunks = ChunkQueue(((copy, chunk) for copy in copies for chunk in copy.chunks), leaves, workers)
        threads = [
            threading.Thread(
                target=self._work, args=(worker, chunks), name=f"smelt-snapshot-{number}", daemon=True
            )
            for number, worker in enumerate(workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for copy in copies:
            self._landing.sink.remove(copy.take_parts())
        if self._failure is not None:
            raise self._failure

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
        """Between two blocks; `copy_blocks` asks only while nothing comes.

        Raises:
            CopyCancelledError: the copy is no longer wanted.
        """
        if self._cancelled():
            raise CopyCancelledError

    def _work(self, worker: Worker, chunks: ChunkQueue) -> None:
        try:
            while not self._cancelled() and (found := chunks.first(worker)) is not None:
                leaf, copy = found
                if copy.error is None and not self._opened(worker, copy, leaf):
                    worker.order.popleft()  # the worker that has it reads it
                    continue
                taken = chunks.take(leaf)
                if taken is not None and copy.error is None:
                    self._copy(worker.connection, *taken)
            if not self._cancelled():
                worker.close()
        except CopyCancelledError:
            return
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self._failure = error

    def _opened(self, worker: Worker, copy: TableCopy, leaf: Leaf) -> bool:
        """Whether a worker has locked what it is to read; a definite failure becomes the table's."""
        try:
            return worker.open(leaf)
        except LeafLostError as error:
            copy.error = TableError(
                copy.table,
                f"{error} while the table was copied",
                code="table-changed",
                remedy="nothing to do: it is resnapshotted automatically",
            )
        except psycopg.Error as error:
            self._fail(copy, error)
        return True

    def _fail(self, copy: TableCopy, error: psycopg.Error) -> None:
        """Make a definite error one of the table.

        Raises:
            psycopg.Error: a table or schema got another name; `Snapshot.take` knows it.
            SmeltError: it concerns more than the table.
        """
        if isinstance(error, (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)):
            raise error
        if isinstance(error, (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)):
            copy.error = TableError(
                copy.table,
                "the table, a partition or an index of it was locked by another session when it was copied",
                code="table-locked",
                remedy="nothing to do: it is resnapshotted automatically when the lock is gone",
            )
            return
        failure = translate(error, self._source)
        if not isinstance(failure, DefiniteError):
            raise failure from error
        copy.error = TableError.of(copy.table, failure)

    def _copy(self, connection: psycopg.Connection[Any], copy: TableCopy, chunk: Chunk) -> None:
        writer = self._landing.sink.parts(f"snapshot-{copy.relation.relation_id}")
        rows = SnapshotRows(copy.relation, self._lsn, self._taken_at)
        seq = chunk.number * SEQ_OF_CHUNK
        try:
            with within(self._timing.copy_command, connection):
                connection.execute("SAVEPOINT chunk")
            line = CopyLine(self._source, connection)

            def cancelled() -> bool:
                line.nothing_came()
                return self._cancelled()

            query = chunk.query(copy.relation, copy.condition)
            for block in copy_blocks(
                connection.pgconn, query, cancelled, poll_seconds=self._timing.copy_poll
            ):
                table = _rows_of(copy, rows, block, seq)
                writer.write(table)
                seq += table.num_rows
                self._landing.progress.copied(str(copy.table), table.num_rows, len(block))
                self._landing.reached("snapshot-block-written")
                self._landing.pace(len(block))
                self._go_on()
                line.something_came()
            with within(self._timing.copy_command, connection):
                # Back, not on: so the locks of the indexes are let go.
                connection.execute("ROLLBACK TO SAVEPOINT chunk; RELEASE SAVEPOINT chunk")
        except psycopg.Error as error:
            writer.discard()
            self._fail(copy, error)
            with within(self._timing.copy_command, connection):
                connection.execute("ROLLBACK TO SAVEPOINT chunk; RELEASE SAVEPOINT chunk")
            return
        except BaseException:
            writer.discard()
            raise
        with self._lock:
            last = copy.finished + 1 == len(copy.chunks)
            if last:
                writer.write(rows.end(len(copy.chunks) * SEQ_OF_CHUNK))
            copy.parts += writer.finish()
            copy.finished += 1
            self._landing.progress.chunk_copied(str(copy.table))
        if last and copy.error is None:
            self._commit(copy)

    def _commit(self, copy: TableCopy) -> None:
        self._landing.reached("snapshot-parts-written")
        # An empty one (`commit_empty`) has no rows; what the stream's have is known from the stream alone.
        shapes, relation = self._landing.shapes, copy.relation
        if copy.chunks or not shapes.knows(relation.relation_id, relation.from_lsn):
            shapes.record([relation], ahead=True)
        if copy.storage is not None:
            self._landing.sink.tables.record_looks({copy.table: Looked(copy.storage)})
        self._landing.reached("snapshot-relation-committed")
        self._landing.sink.tables.commit_snapshot(copy.table, self._lsn, copy.take_parts())
        copy.done = True
        self._landing.progress.copy_done(str(copy.table))
        self._landing.reached("snapshot-committed")
