"""The workers of a snapshot: chunks in, files out, one commit per table when its last chunk is done."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg

from bronze.copy_out import CopyCancelledError, copy_blocks
from bronze.copy_text import cells_of
from bronze.errors import DefiniteError, TableError
from bronze.liveness import CopyLine
from bronze.server import translate, within
from bronze.snapshot_rows import SEQ_OF_CHUNK, SnapshotRows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from deltalake.transaction import AddAction

    from bronze.chunks import Chunk
    from bronze.identifiers import TableName
    from bronze.landing import Landing
    from bronze.lsn import Lsn
    from bronze.settings import SourceSettings
    from bronze.shapes import Relation
    from bronze.storage import Storage

_ANSWER_SECONDS: Final = 60.0


@dataclass(slots=True)
class TableCopy:
    """One table while it is copied.

    Attributes:
        relation: its shape; `from_lsn` is the snapshot's LSN.
        chunks: all of them.
        storage: what the catalog said of the table before it was locked.
        finished: how many are written.
        parts: files written so far.
        error: why it cannot be taken.
        done: it is committed.
    """

    relation: Relation
    chunks: list[Chunk]
    storage: Storage | None = None
    finished: int = 0
    parts: list[AddAction] = field(default_factory=list)
    error: TableError | None = None
    done: bool = False

    @property
    def table(self) -> TableName:
        """Its name."""
        return self.relation.table


class SnapshotCopy:
    """Copies the tables of one snapshot. `stop` ends it between blocks."""

    def __init__(
        self, source: SourceSettings, landing: Landing, lsn: Lsn, taken_at: datetime, stop: threading.Event
    ) -> None:
        self._source = source
        self._landing = landing
        self._lsn = lsn
        self._taken_at = taken_at
        self._stop = stop
        self._queue: queue.SimpleQueue[tuple[TableCopy, Chunk]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._failure: BaseException | None = None

    def run(self, copies: Sequence[TableCopy], workers: Sequence[psycopg.Connection[Any]]) -> None:
        """Copy all tables; returns when all are done, failed, or `stop` is set.

        Raises:
            SmeltError: what failed more than one table.
        """
        for copy in copies:
            for chunk in copy.chunks:
                self._queue.put((copy, chunk))
        threads = [
            threading.Thread(
                target=self._work, args=(connection,), name=f"smelt-snapshot-{number}", daemon=True
            )
            for number, connection in enumerate(workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def commit_empty(self, relation: Relation, storage: Storage | None) -> None:
        """Commit a snapshot without rows."""
        copy = TableCopy(relation, [], storage)
        writer = self._landing.sink.parts(f"snapshot-{relation.relation_id}")
        writer.write(SnapshotRows(relation, self._lsn, self._taken_at).end(0))
        copy.parts += writer.finish()
        self._commit(copy)

    def _cancelled(self) -> bool:
        return self._stop.is_set() or self._failure is not None

    def _work(self, connection: psycopg.Connection[Any]) -> None:
        try:
            while not self._cancelled():
                try:
                    copy, chunk = self._queue.get_nowait()
                except queue.Empty:
                    return
                if copy.error is None:
                    self._copy(connection, copy, chunk)
        except CopyCancelledError:
            return
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self._failure = error

    def _copy(self, connection: psycopg.Connection[Any], copy: TableCopy, chunk: Chunk) -> None:
        writer = self._landing.sink.parts(f"snapshot-{copy.relation.relation_id}")
        rows = SnapshotRows(copy.relation, self._lsn, self._taken_at)
        seq = chunk.number * SEQ_OF_CHUNK
        try:
            with within(_ANSWER_SECONDS, connection):
                connection.execute("SAVEPOINT chunk")
            line = CopyLine(self._source, connection)

            def cancelled() -> bool:
                line.nothing_came()
                return self._cancelled()

            for block in copy_blocks(connection.pgconn, chunk.query(copy.relation), cancelled):
                table = rows.rows(cells_of(block), seq)
                writer.write(table)
                seq += table.num_rows
                self._landing.progress.copied(str(copy.table), table.num_rows, len(block))
                self._landing.reached("snapshot-block-written")
                line.something_came()
            with within(_ANSWER_SECONDS, connection):
                connection.execute("RELEASE SAVEPOINT chunk")
        except psycopg.Error as error:
            writer.discard()
            failure = translate(error, self._source)
            if not isinstance(failure, DefiniteError):
                raise failure from error
            copy.error = TableError(copy.table, failure.message, code=failure.code, remedy=failure.remedy)
            with within(_ANSWER_SECONDS, connection):
                connection.execute("ROLLBACK TO SAVEPOINT chunk")
            return
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
        self._landing.shapes.record([copy.relation])
        if copy.storage is not None:
            self._landing.sink.record_storage({copy.table: copy.storage})
        self._landing.reached("snapshot-relation-committed")
        self._landing.sink.commit_snapshot(copy.table, self._lsn, copy.parts)
        copy.done = True
        self._landing.progress.copy_done(str(copy.table))
        self._landing.reached("snapshot-committed")
