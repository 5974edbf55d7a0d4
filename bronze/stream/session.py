"""Run one replication session from its start to its end: decode messages, write rows, commit, confirm.

**Stages.** Three stages run in parallel. The receiver's thread reads messages off the connection, the calling
thread decodes, and a writer thread writes parquet files and commits. Each hand-over is bounded, so a slow
stage slows the stages before, down to the server.

**Only whole transactions are committed.** Rows of complete transactions collect until `flush_interval` or
`flush_bytes`; then one commit adds the rows with the newest position. Rows of an open transaction are kept
apart. When these grow large, the session writes them to files early. So memory does not depend on the size of
a transaction.

**The slot is confirmed** by `_commit`, after the sink's commit is durable, and at the start of a session with
bronze's durable mark (`bronze.reader.session_start`). Writes and commits are submitted before the outcome of
earlier writes and commits is known. After a failure no later task runs (`InOrder`), and the sink refuses the
rest of the session as well. The next session begins where bronze ends.

Positions without rows: `_keepalive`. Temporarily renamed tables: `_record_shapes`.

PostgreSQL docs: https://www.postgresql.org/docs/current/protocol-replication.html (XLogData, Primary
keepalive message, Standby status update).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.memory import release
from deltasmelt.bronze.pgoutput.relation_versions import breaks_with
from deltasmelt.bronze.store.position import Position, SentTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from deltasmelt.bronze.config.sections import BronzeSettings
    from deltasmelt.bronze.drift.streamed import StreamedPart
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.pgoutput.decoder import StreamDecoder
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.store.landing import Landing
    from deltasmelt.bronze.stream.receiver import Batch, Receiver
    from deltasmelt.bronze.stream.replication import Keepalive


class RefusedError(RuntimeError):
    """A task did not run, because an earlier task failed."""


class InOrder:
    """A thread that runs tasks in order until a task fails.

    Args:
        pending: number of tasks that may wait; `submit` blocks beyond this number.
    """

    def __init__(self, name: str, *, pending: int) -> None:
        self._pending = pending
        self._thread = ThreadPoolExecutor(1, name)
        self._tasks: deque[Future[None]] = deque()
        self._failure: BaseException | None = None

    def submit(self, task: Callable[[], None]) -> None:
        """Submit a task to the thread.

        Raises:
            BaseException: the failure of an earlier task; the new task does not run then.
        """
        while len(self._tasks) >= self._pending:
            self._tasks.popleft().result()
        self._tasks.append(self._thread.submit(self._run, task))

    def raise_failure(self) -> None:
        """Raise the failure of a finished task."""
        while self._tasks and self._tasks[0].done():
            self._tasks.popleft().result()

    def finish(self) -> None:
        """Wait for all tasks; raise as `submit` does."""
        while self._tasks:
            self._tasks.popleft().result()

    def close(self) -> None:
        """End the thread after its current task."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _run(self, task: Callable[[], None]) -> None:
        if self._failure is not None:
            # A commit depends on the writes before: the commit names their files and moves the position past
            # their rows. So no submitted task may run after a failed write. A new session begins with a new
            # thread.
            raise RefusedError("an earlier task failed") from self._failure
        try:
            task()
        except BaseException as error:
            self._failure = error
            raise


FEED_BYTES: Final = 4 * 1024 * 1024
"""Message bytes decoded per step: enough to make work by columns pay, few enough for memory."""
WRITE_BYTES: Final = 4 * 1024 * 1024
"""Arrow bytes written per call; one row group."""
_PENDING_WRITES: Final = 2
_LONGEST_WAIT: Final = 0.5
_LOGGER = logging.getLogger("deltasmelt.reader")


class StreamSession:
    """A session that decodes, writes and commits the messages of a receiver.

    Args:
        receiver: a receiver that was started.
        position: the position that the sink holds.
        request_tables: called with the tables that got a gap; a run that waits for all tables then waits for
            the tables' snapshots.
    """

    def __init__(
        self,
        receiver: Receiver,
        decoder: StreamDecoder,
        position: Position,
        landing: Landing,
        settings: BronzeSettings,
        *,
        request_tables: Callable[[Sequence[TableName]], None] = lambda _: None,
    ) -> None:
        self._receiver = receiver
        self._decoder = decoder
        self._landing = landing
        self._settings = settings
        self._request_tables = request_tables
        self._start = position
        self._durable = position
        self._committing = position
        self._newest = position
        self._complete = _Rows()
        self._open = _Rows()
        self._open_written = False
        self._uncommitted_rows = 0
        self._uncommitted_bytes = 0
        self._open_rows = 0
        self._waiting_since = 0.0
        self._last_commit = time.monotonic()
        self._urgent = False
        self._writer = InOrder("smelt-writer", pending=_PENDING_WRITES)

    @property
    def durable(self) -> Position:
        """The newest committed position."""
        return self._durable

    @property
    def newest(self) -> Position:
        """The newest decoded position."""
        return self._newest

    def step(self, *, target: Lsn | None = None, patience: float = _LONGEST_WAIT) -> bool:
        """Process the received messages, if any, and commit if a commit is due.

        Args:
            target: a frontier that a caller waits for: commit as soon as the frontier can be reached.
            patience: longest wait for messages, in seconds.

        Returns:
            Whether any message arrived.

        Raises:
            SmeltError: the connection ended, the stream is malformed, or the lake cannot be written.
        """
        self._writer.raise_failure()
        try:
            batch = self._receiver.take(most=FEED_BYTES, timeout=min(patience, self._until_due()))
        except DefiniteError:
            # A person may drop the slot because of this error, and the server would not resend these rows.
            self.finish()
            raise
        if batch is not None:
            self._take(batch)
        if self._due(target):
            self.flush()
        return batch is not None

    def flush(self) -> None:
        """Commit everything complete with its position; do nothing without a new position."""
        if self._newest == self._committing:
            return
        self._write(self._complete)
        position, rows, urgent = self._newest, self._uncommitted_rows, self._urgent
        self._writer.submit(lambda: self._commit(position, rows, urgent=urgent))
        self._committing = position
        self._uncommitted_rows = self._uncommitted_bytes = 0
        self._urgent = False
        self._last_commit = time.monotonic()

    def finish(self) -> None:
        """Commit everything complete, and wait until the commit is durable.

        Raises:
            SmeltError: the lake cannot be written.
        """
        if not self._open_written:
            self.flush()
        self._writer.finish()

    def close(self) -> None:
        """End the writer thread after its current task, and discard uncommitted rows."""
        self._writer.close()
        self._landing.sink.discard()

    def _take(self, batch: Batch) -> None:
        decoded = self._decoder.feed_blocks(batch.blocks)
        self._landing.progress.received(self._receiver.received)
        if decoded.relations:
            self._record_shapes(decoded.relations)
            self._landing.reached("relations-committed")
        for table, lsn in decoded.partial:
            self._resnapshot(table, lsn)
        if decoded.partitions:
            self._note_partitions(decoded.partitions)
        for relation_id, lsn in decoded.left_out:
            self._miss(self._landing.shapes.names(relation_id), relation_id, lsn)
        changes, complete = self._only_new(decoded.changes, decoded.complete_rows)
        if decoded.last_commit is not None:
            self._end_transactions(changes.slice(0, complete))
            commit = decoded.last_commit
            sent = SentTransaction.of(commit.commit_lsn, commit.commit_ts)
            self._advance(commit.commit_lsn, commit.end_lsn, commit.commit_ts, sent)
            changes = changes.slice(complete)
        self._uncommitted_bytes += batch.size
        self._open.add(changes)
        self._open_rows += changes.num_rows
        if self._complete.size >= WRITE_BYTES:
            self._write(self._complete)
        if self._open.size >= WRITE_BYTES:
            # Commit everything complete first. The commit at the open transaction's end names the files that
            # are written now.
            if not self._open_written:
                self.flush()
            self._write(self._open)
            self._open_written = True
            self._landing.reached("open-transaction-written")
        if batch.keepalive is not None and not decoded.in_transaction:
            self._keepalive(batch.keepalive, urgent=batch.reply_requested)

    def _keepalive(self, keepalive: Keepalive, *, urgent: bool) -> None:
        """Advance by a keepalive outside transactions: the server has sent everything before W."""
        # The position (W - 1, W) is as good as a commit's position, and the next commit includes it.
        self._advance(Lsn(keepalive.wal_end - 1), keepalive.wal_end, keepalive.clock)
        # If the server requests an answer, as before a shutdown, the session commits the marks at once.
        self._urgent |= urgent

    def _record_shapes(self, relations: Sequence[Relation]) -> None:
        """Record shapes durably, and open gaps where rows cannot follow earlier rows (`bronze.store.gaps`).

        Both happen before any row of a shape is durable, so silver never sees such rows without the pending
        copy.

        **A temporarily renamed table** was renamed, moved to another schema, or lost its name to another
        table. The publication still carries the table by oid. Meanwhile the table's changes are left out, or
        arrive under the other name. If the table returns before the next catalog poll, the catalog shows no
        trace, and only the stream does.

        The gap is durable before the position moves past the change. A later snapshot heals the gap if the
        name is ever carried again; until then no cut contains the table. A permanently renamed table also
        gets such a gap, for the price of one commit.
        """
        shapes = self._landing.shapes
        shapes.record(relations)
        for relation in relations:
            # Also for a known shape: the session that recorded the shape may have ended before the gap.
            versions = shapes.before(relation)
            if _breaks(versions, relation):
                self._resnapshot(relation.table, relation.from_lsn)
            # Each name under which the relation was copied gets a gap at the first change under another name.
            former = {version.table for version in versions} - {relation.table}
            self._miss(former, relation.relation_id, relation.from_lsn)
            copied = self._landing.sink.tables.observed_storage(relation.table)
            # The name belongs to a relation other than the copied relation.
            if copied is not None and copied.storage.relation_id != relation.relation_id:
                self._resnapshot(relation.table, relation.from_lsn)

    def _note_partitions(self, partitions: Sequence[StreamedPart]) -> None:
        """Record durably, before their rows, partitions unseen by catalog polls; request a poll at once."""
        new = self._landing.sink.tables.note_streamed(partitions) if self._landing.resnapshots else []
        if new:
            self._request_tables(new)

    def _resnapshot(self, table: TableName, lsn: Lsn) -> None:
        """Open a gap at this transaction, if snapshots are enabled: only a new snapshot has the table."""
        if self._landing.resnapshots:
            self._open_gap(table, lsn)

    def _miss(self, names: Iterable[TableName], relation_id: int, lsn: Lsn) -> None:
        """Open a gap for each name whose changes of a relation no longer arrive, from this transaction on.

        A name is skipped if another relation was copied under the name: the changes are not missing there.
        """
        for table in names:
            copied = self._landing.sink.tables.observed_storage(table)
            if copied is None or copied.storage.relation_id == relation_id:
                self._open_gap(table, lsn)

    def _open_gap(self, table: TableName, lsn: Lsn) -> None:
        self._landing.sink.tables.open_gaps([table], lsn, beyond=True)
        self._request_tables([table])

    def _only_new(self, changes: pa.Table, complete: int) -> tuple[pa.Table, int]:
        """Drop rows that bronze holds already, although PostgreSQL does not resend such rows."""
        frontier = int(self._start.frontier)
        if changes.num_rows == 0 or changes["commit_lsn"][0].as_py() > frontier:
            return changes, complete
        durable = int(np.searchsorted(changes["commit_lsn"].to_numpy(), frontier, side="right"))
        return changes.slice(durable), max(complete - durable, 0)

    def _end_transactions(self, rows: pa.Table) -> None:
        """Add the rows that end the open transaction, if any, and the whole transactions after them."""
        if not self._uncommitted_rows:
            self._waiting_since = time.monotonic()
        self._uncommitted_rows += self._open_rows + rows.num_rows
        self._complete.take_over(self._open)
        self._complete.add(rows)
        self._open_rows = 0
        self._open_written = False

    def _advance(
        self, frontier: Lsn, confirm: Lsn, commit_ts: datetime | None, sent: SentTransaction | None = None
    ) -> None:
        if frontier > self._newest.frontier:
            self._newest = Position(
                frontier,
                max(confirm, self._newest.confirm),
                self._newest.version,
                commit_ts or self._newest.commit_ts,
                sent or self._newest.sent,
            )

    def _due(self, target: Lsn | None) -> bool:
        if self._newest == self._committing:
            return False
        if self._until_due() <= 0 or self._uncommitted_bytes >= self._settings.flush_bytes:
            return True
        return target is not None and self._committing.frontier < target <= self._newest.frontier

    def _until_due(self) -> float:
        """Return the seconds until the next commit by the clock."""
        if self._newest == self._committing:
            return _LONGEST_WAIT
        if self._urgent:
            return 0.0
        if self._uncommitted_rows:
            due = self._waiting_since + self._settings.flush_interval
        else:
            # Without rows to commit, the session commits marks alone at heartbeat pace. So an idle table next
            # to a busy table does not hold back WAL.
            due = self._last_commit + self._settings.heartbeat
        return max(due - time.monotonic(), 0.0)

    def _write(self, rows: _Rows) -> None:
        table = rows.take_all()
        if table is not None:
            self._writer.submit(lambda: self._write_group(table))

    def _write_group(self, rows: pa.Table) -> None:
        """Write one row group, on the writer thread."""
        self._landing.sink.write(rows)
        release()

    def _commit(self, position: Position, rows: int, *, urgent: bool) -> None:
        """Commit and confirm a position, on the writer thread after all earlier writes."""
        self._landing.reached("parts-written")
        self._durable = self._landing.sink.commit(position)
        self._landing.reached("committed")
        self._receiver.confirm(self._durable.confirm, at_once=urgent)
        self._landing.progress.committed(rows, self._durable.confirm)


class _Rows:
    """Rows that wait to be written."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self.size = 0

    def add(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self._tables.append(rows)
            self.size += rows.nbytes

    def take_over(self, source: _Rows) -> None:
        self._tables += source._tables
        self.size += source.size
        source._tables, source.size = [], 0

    def take_all(self) -> pa.Table | None:
        tables, self._tables, self.size = self._tables, [], 0
        return pa.concat_tables(tables) if tables else None


def _breaks(before: Sequence[Relation], relation: Relation) -> bool:
    """Call `breaks_with`; an unforeseen error counts as True, because a snapshot is always right."""
    try:
        return breaks_with(before, relation)
    except Exception:
        _LOGGER.exception("%s is resnapshotted: its shapes cannot be compared", relation.table)
        return True
