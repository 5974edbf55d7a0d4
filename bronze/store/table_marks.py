"""What bronze says of each table: its snapshot, what was asked for, its gap, how the source carries it.

Every mark is read and set on `bronze.changes` (`bronze.store.marks` lists them). Marks that any process may
set (`bronze.store.gaps`, `bronze.store.gaps`) are committed through a handle of their own, so they wait
for no commit of the stream. A snapshot's mark goes through the shared handle, together with its rows.

**Changes that the stream leaves out**, batch after batch, need no commit each (`TableMarks.leave_out`). The
first opens the table's gap. The newest change is in memory from then on: only a snapshot of this process
could heal too much, and its commit moves the gap on first. A change before the table's newest snapshot opens
no gap, and the next change is looked at again. After a crash the gap stands where it was opened,
before the newest of these changes. That is enough: the next snapshot is taken later, after all of them.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.lake.client import Transaction
from deltasmelt.bronze.lake.failures import lake_failures
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.store import gaps
from deltasmelt.bronze.store.comments import DAMAGED, comments_mark, set_mark
from deltasmelt.bronze.store.marks import snapshot_app, snapshot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

    from deltasmelt.bronze.comments import Comments
    from deltasmelt.bronze.drift.observed_storage import ObservedStorage
    from deltasmelt.bronze.drift.streamed import StreamedPart, StreamedParts
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.store.catalog_log import StorageLog
    from deltasmelt.bronze.store.changes_table import ChangesTable
    from deltasmelt.bronze.store.comments import KeptComments
    from deltasmelt.bronze.store.streamed_log import StreamedLog

_LOGGER = logging.getLogger("deltasmelt.reader")


class TableMarks:
    """The marks of each table. Any thread may call any method.

    `ChangesTable`, `StorageLog`, `StreamedLog` and `KeptComments` each hold their lock. Its own state is what
    it knows of comments, the mark that it saw or set last, and `_left_at`: looks alone change these, one at a
    time. And what the stream leaves out: `_leaving` holds `_left_out`, over the commit of a snapshot too.

    Args:
        changes: the shared handle of `bronze.changes`.
        storages: what the catalog said of tables' storage.
        comments: what it said of their comments.
        streamed: partitions that the stream named.
    """

    def __init__(
        self, changes: ChangesTable, storages: StorageLog, comments: KeptComments, streamed: StreamedLog
    ) -> None:
        self._changes = changes
        self._storages = storages
        self._streamed = streamed
        self._comments = comments
        self._comments_marked: int | None = None
        self._comments_refused = False
        self._leaving = threading.Lock()
        self._left_out: dict[TableName, Lsn] = {}
        self._left_at: dict[TableName, Lsn] = {}

    def needing_copy(self, tables: Sequence[TableName]) -> set[TableName]:
        """Those of these tables without a complete snapshot, or of which a newer one was asked for.

        Any process may have asked.

        Raises:
            DefiniteError: ``lake-in-use``.
            TransientError: ``lake-unwritable``.
        """
        return self._changes.look(
            lambda changes: {table for table in tables if gaps.needs_snapshot(changes, table)}
        )

    def requests(self, tables: Sequence[TableName]) -> dict[TableName, Lsn]:
        """Resnapshot marks of these tables, those that have one; raises as `needing_copy`."""
        return self._each(tables, gaps.resnapshot_of)

    def snapshots(self, tables: Sequence[TableName]) -> dict[TableName, Lsn]:
        """LSN of the newest complete snapshot of these tables, those that have one; raises likewise."""
        return self._each(tables, snapshot_of)

    def newest(self, relations: Iterable[Relation]) -> dict[TableName, Lsn]:
        """Return the greatest LSN that bronze has of each table beside the stream; raises likewise.

        A snapshot, a shape and a look may each be ahead of the stream.

        Args:
            relations: all versions of shapes.
        """
        found: dict[TableName, Lsn] = {}
        for relation in relations:
            found[relation.table] = max(found.get(relation.table, ZERO), relation.from_lsn)
        taken = self.snapshots(list(found))
        for table, shape in found.items():
            looked = self.looked(table)
            before_end = ZERO if looked is None else Lsn(max(looked.lsn - 1, 0))
            found[table] = max(shape, before_end, taken.get(table, ZERO))
        return found

    def commit_snapshot(self, table: TableName, lsn: Lsn, parts: Sequence[AddAction]) -> None:
        """Make a complete snapshot of one table visible and durable, with its mark.

        Where the stream has left out a change after the snapshot, the gap is moved on to that change first.

        Raises:
            DefiniteError: ``lake-in-use``: another process took the same snapshot.
            TransientError: ``lake-unwritable``.
        """
        with self._leaving:
            # Also where this fails: the commit may come about, and the next change has to open a gap again.
            newest = self._left_out.pop(table, ZERO)
            if newest >= lsn:
                self.open_gaps([table], newest, beyond=True)
            self._changes.commit(
                parts,
                [Transaction(snapshot_app(table), int(lsn))],
                more=lambda changes: gaps.healing(changes, table, lsn),
            )

    def leave_out(self, changes: Mapping[TableName, Lsn]) -> list[TableName]:
        """Note that the stream leaves out changes; to be called before its position passes them.

        Args:
            changes: by table, the commit LSN of the newest.

        Returns:
            The tables whose gap was opened for that. Others have a gap since an earlier call, or a snapshot
            after the change.

        Raises:
            TransientError: ``lake-unwritable``.
        """
        with self._leaving:
            new = [table for table in changes if table not in self._left_out]
            opened = self.open_gaps(new, max(changes[table] for table in new), beyond=True) if new else []
            for table, lsn in changes.items():
                if table in self._left_out or table in opened:
                    self._left_out[table] = max(lsn, self._left_out.get(table, ZERO))
            return opened

    def open_gaps(self, tables: Sequence[TableName], lsn: Lsn, *, beyond: bool = False) -> list[TableName]:
        """Say that tables lack changes up to an LSN, and ask for them; durable when this returns.

        Returns:
            Those of the tables that have an open gap now (`gaps.open_gaps`).

        Raises:
            TransientError: ``lake-unwritable``.
        """
        with lake_failures(self._changes.uri, "bronze"):
            return gaps.open_gaps(self._changes.uri, tables, lsn, beyond=beyond)

    def move_back(self, seen: Mapping[TableName, Lsn], end: Lsn) -> list[TableName]:
        """Move resnapshot and gap marks beyond the server's log back to its end; durable on return.

        Returns:
            Tables whose marks were moved.

        Raises:
            TransientError: ``lake-unwritable``.
        """
        with lake_failures(self._changes.uri, "bronze"):
            return gaps.move_back(self._changes.uri, seen, end)

    def note_membership(
        self, seen: Mapping[TableName, int], left_out: Sequence[TableName], lsn: Lsn
    ) -> list[TableName]:
        """Remember how tables are carried; those with a gap since then are asked for (`bronze.store.gaps`).

        Raises:
            TransientError: ``lake-unwritable``.
        """
        with lake_failures(self._changes.uri, "bronze"):
            return gaps.note(self._changes.uri, seen, left_out, lsn)

    def looked(self, table: TableName) -> ObservedStorage | None:
        """What looks at the catalog saw of a table's storage; None before the first."""
        return self._storages.known(table)

    def settles(self, before: Lsn, frontier: Lsn) -> bool:
        """Whether a look is worth while since the stream came from one place to another."""
        return self._storages.settles(before, frontier)

    def record_looks(self, seen: dict[TableName, ObservedStorage]) -> None:
        """Make durable what looks at the catalog saw of tables' storage.

        Raises:
            TransientError: ``lake-unwritable``.
        """
        with lake_failures(self._changes.uri, "bronze"):
            self._storages.record(seen)

    def forget(self, left_out: Collection[TableName], end: Lsn, frontier: Lsn) -> None:
        """Forget what looks saw of tables that are gone, once the stream has read all changes from before.

        **Why nothing is lost.** A forgotten table has the mark that its changes are not read
        (`gaps.is_left_out`). Should the table, or another one of its name, come back, the look that sees it
        opens a gap, and the copy that heals the gap records the storage anew. So no look compares with what
        was forgotten. Nor does the stream: bronze has each change up to the end of the log, as of a look that
        found the table gone. Positions decide that, and no clock does: a lake that stood still for months
        forgets nothing before its stream has come that far.

        **Why shapes and marks stay.** Bronze keeps the rows of every table, and only its shapes tell how to
        read them. Marks keep silver's table from going on as if nothing were missing. Delta lets marks expire
        by age alone, which a lake that stood still for months would take for the end of all its tables.

        Args:
            left_out: tables of this bronze that a look did not find, once their marks are durable.
            end: of the log after that look.
            frontier: bronze's before that look.
        """
        known = [table for table in left_out if self._storages.known(table) or self._streamed.known(table)]
        self._left_at = {table: self._left_at.get(table, end) for table in known}
        past = [table for table, lsn in self._left_at.items() if frontier + 1 >= lsn]
        if past:
            gone = self._changes.look(lambda changes: [one for one in past if gaps.is_left_out(changes, one)])
            self._storages.forget(gone)
            self._streamed.forget(gone)

    def note_streamed(self, parts: Iterable[StreamedPart]) -> list[TableName]:
        """Make durable which partitions the stream named before a look saw them (`bronze.drift.streamed`).

        Returns:
            The roots of those that were not on record yet.

        Raises:
            TransientError: ``lake-unwritable``.
        """
        with lake_failures(self._changes.uri, "bronze"):
            return self._streamed.note(parts, self.snapshots)

    def streamed(self) -> dict[TableName, StreamedParts]:
        """Return the partitions on record now that a look has to decide on, by root."""
        return self._streamed.unsettled()

    def record_comments(self, seen: Mapping[TableName, Comments]) -> None:
        """Make durable what a look saw of comments, and then the mark that tells silver of it.

        Comments stop no rows: where `control.comments` cannot be read or written, that is said once, and
        tried again at the next look.

        Raises:
            TransientError: ``lake-unwritable``: `bronze.changes` cannot be read or written.
        """
        try:
            mark = self._comments.noted(seen)
        except (*DAMAGED, TransientError):
            level = logging.DEBUG if self._comments_refused else logging.WARNING
            _LOGGER.log(level, "the comments of the source's tables cannot be kept", exc_info=True)
            self._comments_refused = True
            return
        self._comments_refused = False
        with lake_failures(self._changes.uri, "bronze"):
            if mark is not None and mark != self._comments_marked:
                if self._changes.look(comments_mark) != mark:
                    set_mark(self._changes.uri, mark)
                self._comments_marked = mark

    def _each(
        self, tables: Sequence[TableName], mark_of: Callable[[DeltaTable, TableName], Lsn | None]
    ) -> dict[TableName, Lsn]:
        marks = self._changes.look(lambda changes: {table: mark_of(changes, table) for table in tables})
        return {table: mark for table, mark in marks.items() if mark is not None}
