"""The marks of each table in bronze: snapshot, request, gap, and membership in the publication.

Every mark is read and set on `bronze.changes` (`bronze.store.marks` lists them). Marks that any process may
set (`bronze.store.gaps`) are committed through a separate handle, so they wait for no commit of the stream. A
snapshot's mark is committed through the shared handle, together with the rows.

**Changes that the stream skips**, batch after batch, need no commit each (`TableMarks.leave_out`). The first
skipped change opens the table's gap. From then on the newest skipped change is in memory: only a snapshot of
this process could heal too much, and the snapshot's commit first moves the gap. A change before the table's
newest snapshot opens no gap, and the next change is checked again. After a crash the gap is still at its
opening, before the newest skipped change. This suffices: the next snapshot is taken later, after all of them.
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
from deltasmelt.bronze.store.marks import (
    base_of,
    kept_from,
    renewed_app,
    snapshot_app,
    snapshot_of,
)
from deltasmelt.bronze.store.retention import wants_renewal
from deltasmelt.bronze.store.rule_marks import (
    UNCHANGED,
    changed_rules,
    detached_of,
    recorded_rules,
    ruled_gaps,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from deltasmelt.bronze.comments import Comments
    from deltasmelt.bronze.drift.observed_storage import ObservedStorage
    from deltasmelt.bronze.drift.streamed import StreamedPart, StreamedParts
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.client import AddAction
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.rules import Rules
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.store.catalog_log import StorageLog
    from deltasmelt.bronze.store.changes_table import ChangesTable
    from deltasmelt.bronze.store.comments import RecordedComments
    from deltasmelt.bronze.store.rule_marks import ChangedRules
    from deltasmelt.bronze.store.streamed_log import StreamedLog

_LOGGER = logging.getLogger("deltasmelt.reader")


class TableMarks:
    """The marks of each table. Any thread may call any method.

    `ChangesTable`, `StorageLog`, `StreamedLog` and `RecordedComments` have their own locks. Only polls, one
    at a time, change the state of comments, the last mark of comments, and `_left_at`. `_leaving` guards
    `_left_out` (the changes that the stream skips), also during the commit of a snapshot.
    """

    def __init__(
        self, changes: ChangesTable, storages: StorageLog, comments: RecordedComments, streamed: StreamedLog
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
        """Return the tables without a complete snapshot, or with a request for a newer snapshot.

        Any process may have made the request.

        Raises:
            DefiniteError: ``lake-in-use``.
            TransientError: ``lake-unwritable``.
        """
        return self._changes.read_newest(
            lambda changes: {table for table in tables if gaps.needs_snapshot(changes, table)}
        )

    def requests(self, tables: Sequence[TableName]) -> dict[TableName, Lsn]:
        """Return the resnapshot marks of tables that have a mark; raises like `needing_copy`."""
        return self._marks_of(tables, gaps.resnapshot_of)

    def snapshots(self, tables: Sequence[TableName]) -> dict[TableName, Lsn]:
        """Return the LSN of each copied table's newest complete snapshot; raises like `needing_copy`."""
        return self._marks_of(tables, snapshot_of)

    def gaps(self, tables: Sequence[TableName]) -> dict[TableName, Lsn]:
        """Return the gap marks of tables that have a mark, healed or not; raises like `needing_copy`."""
        return self._marks_of(tables, gaps.gap_of)

    def bases(self, tables: Sequence[TableName]) -> dict[TableName, Lsn]:
        """Return the LSN of each table's newest snapshot, renewed or not; raises like `needing_copy`."""
        return self._marks_of(tables, base_of)

    def to_copy(self, tables: Sequence[TableName]) -> tuple[set[TableName], set[TableName]]:
        """Return the tables that need a copy, and others whose old base a newer snapshot may replace.

        Raises like `needing_copy`.
        """

        def read(changes: Table) -> tuple[set[TableName], set[TableName]]:
            needing = {table for table in tables if gaps.needs_snapshot(changes, table)}
            return needing, {table for table in set(tables) - needing if wants_renewal(changes, table)}

        return self._changes.read_newest(read)

    def newest(self, relations: Iterable[Relation]) -> dict[TableName, Lsn]:
        """Return the greatest LSN in bronze of each table apart from the stream; raises like `needing_copy`.

        A snapshot, a shape and a poll may each be ahead of the stream. `relations` are all versions of
        shapes.
        """
        lsns: dict[TableName, Lsn] = {}
        for relation in relations:
            lsns[relation.table] = max(lsns.get(relation.table, ZERO), relation.from_lsn)
        snapshots = self.bases(list(lsns))
        for table, shape in lsns.items():
            storage = self.observed_storage(table)
            before_end = ZERO if storage is None else Lsn(max(storage.lsn - 1, 0))
            lsns[table] = max(shape, before_end, snapshots.get(table, ZERO))
        return lsns

    def commit_snapshot(self, table: TableName, lsn: Lsn, parts: Sequence[AddAction]) -> None:
        """Make a complete snapshot of one table visible and durable, with its mark.

        Raises:
            DefiniteError: ``lake-in-use``: another process took the same snapshot.
            TransientError: ``lake-unwritable``; ``copy-interrupted``: bronze has removed changes after
                `lsn` meanwhile (`bronze.store.retention`), so the table must be copied again.
        """

        def marks(changes: Table) -> list[Transaction]:
            _require_kept(changes, table, lsn)
            return gaps.healing(changes, table, lsn)

        with self._leaving:
            # Before a possible failure: the commit may succeed, and the next skipped change must open a gap.
            newest = self._left_out.pop(table, ZERO)
            # The stream has skipped a change after the snapshot, so the gap first moves to the change.
            if newest >= lsn:
                self.open_gaps([table], newest, beyond=True)
            self._changes.commit(
                parts,
                [Transaction(snapshot_app(table), int(lsn))],
                more=marks,
            )

    def commit_renewal(self, table: TableName, lsn: Lsn, parts: Sequence[AddAction]) -> None:
        """Make a renewed base of one table visible and durable, with its mark; raises like `commit_snapshot`.

        A renewal changes no gap and no request, because silver may already be past its LSN.
        """

        def marks(changes: Table) -> list[Transaction]:
            _require_kept(changes, table, lsn)
            return []

        self._changes.commit(parts, [Transaction(renewed_app(table), int(lsn))], more=marks)

    def leave_out(self, changes: Mapping[TableName, Lsn]) -> list[TableName]:
        """Record skipped changes of the stream; call before the stream's position passes them.

        `changes` has by table the commit LSN of the newest skipped change.

        Returns:
            The tables whose gap this call opened. The rest have a gap since an earlier call, or a snapshot
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
        """Mark tables as incomplete up to `lsn` and request a new snapshot of each; durable on return.

        Returns:
            The tables that have an open gap now (`gaps.open_gaps`).

        Raises:
            TransientError: ``lake-unwritable``.
        """
        with lake_failures(self._changes.uri, "bronze"):
            return gaps.open_gaps(self._changes.uri, tables, lsn, beyond=beyond)

    def newest_marks(self, tables: Sequence[TableName]) -> dict[TableName, Lsn]:
        """Return the greater of each table's gap mark and resnapshot mark; raises like `needing_copy`."""
        return self._marks_of(tables, gaps.newest_mark)

    def move_back(self, newest: Mapping[TableName, Lsn], end: Lsn) -> list[TableName]:
        """Move marks beyond the server's log to the log's end; return the moved tables, durable on return.

        Raises:
            TransientError: ``lake-unwritable``.
        """
        with lake_failures(self._changes.uri, "bronze"):
            return gaps.move_back(self._changes.uri, newest, end)

    def recorded_rules(self, tables: Collection[TableName]) -> dict[TableName, int]:
        """Return the numbers of the recorded rules of tables; raises like `needing_copy`."""
        if not tables:
            return {}
        return self._changes.read_newest(lambda changes: recorded_rules(changes, tables))

    def changed_rules(self, rules: Rules, tables: Sequence[TableName]) -> ChangedRules:
        """Compare the rules of carried tables with the recorded rules; raises like `needing_copy`."""
        # Without tables no read of the lake is needed; so below.
        if not tables:
            return UNCHANGED
        return self._changes.read_newest(lambda changes: changed_rules(changes, rules, tables))

    def ruled_gaps(self, rules: Rules, tables: Collection[TableName]) -> dict[TableName, Lsn]:
        """Return the gap marks of tables that have or had rules; raises like `needing_copy`."""
        if not tables:
            return {}
        return self._changes.read_newest(lambda changes: ruled_gaps(changes, rules, tables))

    def detached(self, relations: Collection[int]) -> dict[int, int]:
        """Return the recorded roots of partitions of tables with rules; raises like `needing_copy`."""
        if not relations:
            return {}
        return self._changes.read_newest(lambda changes: detached_of(changes, relations))

    def note_detached(self, roots: Mapping[int, int]) -> None:
        """Record durably the roots of partitions of tables with rules, by oid; the first record counts.

        Raises:
            TransientError: ``lake-unwritable``.
        """
        if new := sorted(roots.keys() - self.detached(roots.keys())):
            with lake_failures(self._changes.uri, "bronze"):
                gaps.note_detached(self._changes.uri, {oid: roots[oid] for oid in new})

    def note_membership(
        self,
        memberships: Mapping[TableName, int],
        left_out: Sequence[TableName],
        lsn: Lsn,
        rules: ChangedRules = UNCHANGED,
    ) -> list[TableName]:
        """Record the tables' memberships; request snapshots of tables with a gap since (`bronze.store.gaps`).

        Raises:
            TransientError: ``lake-unwritable``.
        """
        with lake_failures(self._changes.uri, "bronze"):
            return gaps.note(self._changes.uri, memberships, left_out, lsn, rules)

    def observed_storage(self, table: TableName) -> ObservedStorage | None:
        """Return the results of catalog polls of a table's storage; None before the first poll."""
        return self._storages.known(table)

    def settles(self, before: Lsn, frontier: Lsn) -> bool:
        """Check whether a poll is useful, now that the stream went from `before` to `frontier`."""
        return self._storages.settles(before, frontier)

    def record_storages(self, storages: dict[TableName, ObservedStorage]) -> None:
        """Make the results of catalog polls of tables' storage durable.

        Raises:
            TransientError: ``lake-unwritable``.
        """
        with lake_failures(self._changes.uri, "bronze"):
            self._storages.record(storages)

    def forget(self, left_out: Collection[TableName], end: Lsn, frontier: Lsn) -> None:
        """Forget poll results of removed tables, once the stream has read all changes before the removal.

        **Why nothing is lost.** A forgotten table has the mark that its changes are not read
        (`gaps.is_left_out`). If the table, or another table with this name, returns, the poll that sees the
        table opens a gap. The copy that heals the gap records the storage again. So no later poll compares
        with forgotten results.

        Args:
            left_out: tables of this bronze that a poll did not find, once their marks are durable.
            end: end of the log after the poll.
            frontier: bronze's frontier before the poll.
        """
        logs = (self._storages, self._streamed, self._comments)
        recorded = [table for table in left_out if any(log.known(table) is not None for log in logs)]
        self._left_at = {table: self._left_at.get(table, end) for table in recorded}
        with self._leaving:
            # If such a table returns, its poll opens a gap after all skipped changes.
            self._left_out = {table: lsn for table, lsn in self._left_out.items() if table not in left_out}
        # Now bronze has each change up to the end of the log, as of a poll that found the table gone.
        # Positions decide, and no clock does: a lake that was idle for months forgets nothing before its
        # stream has reached this position.
        past = [table for table, lsn in self._left_at.items() if frontier + 1 >= lsn]
        if past:
            dropped = self._changes.read_newest(
                lambda changes: [table for table in past if gaps.is_left_out(changes, table)]
            )
            # Shapes and marks stay. Bronze keeps the rows of every table, and only the shapes allow a process
            # to read the rows. Marks prevent silver's table from continuing as if nothing were missing. Delta
            # expires marks by age alone; in a lake that was idle for months, an expiry would look like the
            # end of all tables.
            self._storages.forget(dropped)
            self._streamed.forget(dropped)
            self._comments.forget(dropped)

    def note_streamed(self, parts: Iterable[StreamedPart]) -> list[TableName]:
        """Record the partitions that the stream named before a poll, durably; return the roots of new ones.

        Raises:
            TransientError: ``lake-unwritable``.
        """
        with lake_failures(self._changes.uri, "bronze"):
            return self._streamed.note(parts, self.snapshots)

    def streamed(self) -> dict[TableName, StreamedParts]:
        """Return the recorded partitions that a poll must decide, by root."""
        return self._streamed.unsettled()

    def record_comments(self, comments: Mapping[TableName, Comments]) -> None:
        """Make the comments of a poll durable, and then the mark by which silver detects the change.

        Raises:
            TransientError: ``lake-unwritable``: `bronze.changes` cannot be read or written.
        """
        try:
            mark = self._comments.record(comments)
        # Comments stop no rows: if `control.comments` cannot be read or written, one warning is logged, and
        # the next poll retries.
        except (*DAMAGED, TransientError):
            level = logging.DEBUG if self._comments_refused else logging.WARNING
            _LOGGER.log(level, "the comments of the source's tables cannot be stored", exc_info=True)
            self._comments_refused = True
            return
        self._comments_refused = False
        with lake_failures(self._changes.uri, "bronze"):
            if mark is not None and mark != self._comments_marked:
                if self._changes.read_newest(comments_mark) != mark:
                    set_mark(self._changes.uri, mark)
                self._comments_marked = mark

    def _marks_of(
        self, tables: Sequence[TableName], mark_of: Callable[[Table, TableName], Lsn | None]
    ) -> dict[TableName, Lsn]:
        if not tables:
            return {}
        marks = self._changes.read_newest(
            lambda changes: {table: mark_of(changes, table) for table in tables}
        )
        return {table: mark for table, mark in marks.items() if mark is not None}


def _require_kept(changes: Table, table: TableName, lsn: Lsn) -> None:
    """Check that an open `bronze.changes` has all changes after a snapshot.

    Raises:
        TransientError: ``copy-interrupted``.
    """
    kept = kept_from(changes)
    if lsn < kept:
        raise TransientError(
            f"the copy of {table} is of {lsn}, and bronze has removed the changes before {kept} meanwhile "
            "(bronze.retention)",
            code="copy-interrupted",
            where=str(table),
            remedy="nothing to do: the reader copies the table again",
        )
