"""Tables of which bronze lacks changes: the gap mark, and what was seen of each table when it was set.

**The mark.** A gap mark is an application transaction of `bronze.changes`, `gap_app(table)`, whose version is
an LSN G: changes of this table with a commit LSN up to G may be missing. A snapshot after G (S > G) heals it,
so the mark is never removed. Each gap mark is set together with a resnapshot mark
(`bronze.store.gaps`), in one commit, so a gap that is known is also a gap that is being healed.

**Why changes may be missing**:

* they were not published (`bronze.drift.membership`);
* the table went by another name then (`bronze.stream.session`);
* the slot was lost (`bronze.reader.recovery`);
* PostgreSQL made them without an event (`bronze.drift.storage`);
* it cannot be told which columns they mean (`bronze.pgoutput.relation_versions`);
* their texts could not be converted (`bronze.stream.encodings`), or their shape not be read
  (`bronze.reader.table_errors`), as that of a partition whose replica identity sends less than a key; of many
  such changes the first opens the gap (`bronze.store.table_marks`);
* the table was left out for an error, until a session read it again (`bronze.reader.carried_tables`).

**What silver does.** It leaves a table out of its cuts from the moment that the mark is there until the
snapshot after it is (`is_whole`). No cut that is written then names a version that lacks changes. `healing`
says why nothing but a snapshot ends a gap.

**When a process dies.** The commit holds marks alone and none of the ids that stream and snapshots write;
Delta lets it pass beside theirs. `note` sets the fingerprint with the gap that it means.

Tables that need a new snapshot: the resnapshot mark, which any process may set.

A resnapshot mark is an application transaction of `bronze.changes`, `resnapshot_app(table)`, whose version is
an LSN R. A table needs a snapshot when it has no complete one, or when R is at or past its newest one. R is
the server's WAL position when the snapshot was asked for, so any snapshot that began afterwards (S > R)
settles the mark, and nothing has to remove it: marks only grow.

**A mark beyond the server's own log** was set by the LSN of another server. No snapshot settles such a mark
before the log has come that far. The reader moves it back to the end of the log (`move_back`), which is a
request as of now, since the mark may have covered an earlier request that is still open.

Why another process may set it beside a running reader: the commit holds marks alone, no rows and none of the
application ids that the stream or a snapshot writes. So Delta lets it pass beside their commits, and the
sink, which compares the stream's position whenever it looks, finds that unmoved. Two requests for one table
at the same moment are a conflict of the same id; the later one looks again and writes only what is still
greater.

A crash before the commit leaves nothing, after it a mark that the reader finds at its next look, also after a
restart. A commit that fails leaves either; the caller gets the error and may ask again: the same request
twice is one.

From the mark on silver leaves the table out of its cuts, until the first snapshot after it
(`bronze.store.gaps`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltasmelt.bronze.drift.membership import NOT_CARRIED
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import Transaction
from deltasmelt.bronze.lake.transactions import transaction_version
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.changes_table import commit_marks
from deltasmelt.bronze.store.marks import (
    fingerprint_app,
    gap_app,
    healed_app,
    resnapshot_app,
    resnapshotted_app,
    snapshot_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from deltalake import DeltaTable

    from deltasmelt.bronze.identifiers import TableName


def resnapshot_of(changes: DeltaTable, table: TableName) -> Lsn | None:
    """R of a table, as an open `bronze.changes` says; None where it was never asked for."""
    version = transaction_version(changes, resnapshot_app(table))
    return None if version is None else Lsn(version)


def needs_snapshot(changes: DeltaTable, table: TableName) -> bool:
    """Whether an open `bronze.changes` lacks a snapshot of this table that is new enough."""
    taken, wanted = snapshot_of(changes, table), resnapshot_of(changes, table)
    return taken is None or (wanted is not None and wanted >= taken)


@delta.retry_conflict
def request_snapshots(uri: str, tables: Sequence[TableName], lsn: Lsn) -> None:
    """Ask for snapshots of tables at a point after `lsn`; durable when this returns.

    Args:
        uri: location of `bronze.changes`.
        tables: a table whose mark is at or past `lsn` already is left as it is.
        lsn: the server's WAL position now.

    Raises:
        TableNotFoundError: there is no `bronze.changes`.
        DeltaError, OSError: the lake cannot be written.
    """
    changes = delta.open_existing(uri)
    marks = []
    for table in tables:
        known = resnapshot_of(changes, table)
        if known is None or known < lsn:
            marks.append(Transaction(resnapshot_app(table), int(lsn)))
    if marks:
        commit_marks(changes, uri, marks)


@delta.retry_conflict
def move_back(uri: str, seen: Mapping[TableName, Lsn], end: Lsn) -> list[TableName]:
    """Move marks that lie beyond the server's log back to its end; durable when this returns.

    A gap mark that lies beyond the log is moved with the request. A mark that another process set since it
    was read is left to the next look.

    Args:
        uri: location of `bronze.changes`.
        seen: resnapshot marks as they were read.
        end: the server's WAL position, read after the marks.

    Returns:
        Tables whose marks were moved.

    Raises:
        DeltaError, OSError: the lake cannot be written.
    """
    changes = delta.open_existing(uri)
    moved = [table for table, lsn in seen.items() if lsn > end and resnapshot_of(changes, table) == lsn]
    apps = [app(table) for table in moved for app in (resnapshot_app, gap_app)]
    marks = [Transaction(app, int(end)) for app in apps if (transaction_version(changes, app) or 0) > end]
    if marks:
        commit_marks(changes, uri, marks)
    return moved


def is_open(changes: DeltaTable, table: TableName) -> bool:
    """Whether an open `bronze.changes` has a gap of this table and no snapshot after it."""
    gap = transaction_version(changes, gap_app(table))
    return gap is not None and _first_after(changes, table, gap, healed_app) is None


def is_left_out(changes: DeltaTable, table: TableName) -> bool:
    """Whether the source's changes of a table are no longer read.

    It was dropped, renamed, taken out of the patterns, or has a problem. Its rows are those of an earlier
    time; should it come back, `note` finds a gap.
    """
    return bool(transaction_version(changes, fingerprint_app(table)) == NOT_CARRIED)


def is_whole(changes: DeltaTable, table: TableName, end: Lsn) -> bool:
    """Whether silver may carry a table to the end of a window.

    Bronze has every change of it that counts there, and every snapshot that was asked for.

    **Why a snapshot counts that was asked for without a gap** (`smelt snapshot`). Its table is left out in
    the same way, from the resnapshot mark R on until the first snapshot after R. That one writes
    `resnapshotted_app(table)`. Otherwise silver would fold on while the table is copied, be past that
    snapshot when that arrives, and never load it. What lies between is in bronze, so it is no gap: a history
    keeps it.

    **Why silver is never past the snapshot that it waits for.** A cycle that did not see the mark read a
    frontier that bronze had before the mark was durable. The snapshot begins after the reader has seen the
    mark, so its LSN is greater.

    Args:
        changes: an open `bronze.changes`.
        table: which.
        end: the window's end; a snapshot after it does not count yet.
    """
    for app, healer in ((gap_app, healed_app), (resnapshot_app, resnapshotted_app)):
        mark = transaction_version(changes, app(table))
        snapshot = None if mark is None else _first_after(changes, table, mark, healer)
        if mark is not None and (snapshot is None or snapshot > end):
            return False
    return True


def healed_at(changes: DeltaTable, table: TableName) -> Lsn | None:
    """LSN of the snapshot that healed the newest gap of a table; None without a gap, or where it is open."""
    gap = transaction_version(changes, gap_app(table))
    healed = None if gap is None else _first_after(changes, table, gap, healed_app)
    return None if healed is None else Lsn(healed)


def _first_after(
    changes: DeltaTable, table: TableName, mark: int, healer: Callable[[TableName], str]
) -> int | None:
    """LSN of the first snapshot after a mark; of the newest one in a lake from before that was kept."""
    found = (transaction_version(changes, healer(table)), snapshot_of(changes, table))
    return next((lsn for lsn in found if lsn is not None and lsn > mark), None)


def healing(changes: DeltaTable, table: TableName, lsn: Lsn) -> list[Transaction]:
    """The marks that a snapshot's own commit sets where it is the first after a gap or a request.

    While a gap mark is being written the stream goes on, and silver may already have passed G with a table
    that lacks the change. So nothing but a snapshot ends a gap: the first one after G writes
    `healed_app(table)` with its LSN. Later snapshots leave that mark alone, for a table whose gap was healed
    is not to be left out again while silver is still before the newest of them.

    A gap may be set, through another handle, while a snapshot after it is committed, which then lacks the
    mark. That one heals it all the same (`_first_after`); the next writes the mark with the LSN of that one,
    before it is the newest itself.

    Args:
        changes: `bronze.changes` at its newest version.
        table: that was copied.
        lsn: of the snapshot.
    """
    marks = []
    for app, healer in ((gap_app, healed_app), (resnapshot_app, resnapshotted_app)):
        mark = transaction_version(changes, app(table))
        if mark is None or (transaction_version(changes, healer(table)) or 0) > mark:
            continue
        first = _first_after(changes, table, mark, healer) or int(lsn)
        if first > mark:
            marks.append(Transaction(healer(table), int(first)))
    return marks


def gap_marks(tables: Iterable[TableName], lsn: Lsn) -> list[Transaction]:
    """The marks that say: changes up to `lsn` may be missing, these tables need a new snapshot."""
    return [Transaction(app(table), int(lsn)) for table in tables for app in (gap_app, resnapshot_app)]


@delta.retry_conflict
def open_gaps(uri: str, tables: Collection[TableName], lsn: Lsn, *, beyond: bool = False) -> list[TableName]:
    """Say that changes of these tables up to an LSN are missing, and ask for them; durable on return.

    G is where the log ended after the look that found the gap, so the lost change lies at or before it. Of
    columns that cannot be told it is the change's own LSN.

    Args:
        uri: location of `bronze.changes`.
        tables: one whose gap is open already is left as it is: its snapshot is still to come.
        lsn: the server's WAL position, read after the gap was seen.
        beyond: a gap that is open but ends before `lsn` is moved on to it. For `lsn` is a change's own, and
            the snapshot that is to come may be from before it. One that a snapshot after `lsn` healed is
            left.

    Returns:
        Those of the tables that have an open gap now. A snapshot after `lsn` leaves its table without.

    Raises:
        DeltaError, OSError: the lake cannot be written.
    """
    changes = delta.open_existing(uri)
    new = [table for table in tables if _opens(changes, table, lsn, beyond=beyond)]
    if new:
        commit_marks(changes, uri, _growing(changes, gap_marks(new, lsn)))
    return [table for table in tables if table in new or is_open(changes, table)]


def _opens(changes: DeltaTable, table: TableName, lsn: Lsn, *, beyond: bool) -> bool:
    if not beyond:
        return not is_open(changes, table)
    taken, gap = snapshot_of(changes, table), transaction_version(changes, gap_app(table))
    return (taken is None or taken <= lsn) and (gap is None or gap < lsn)


@delta.retry_conflict
def note(uri: str, seen: Mapping[TableName, int], left_out: Iterable[TableName], lsn: Lsn) -> list[TableName]:
    """Remember what was seen of tables; where it differs from what was remembered, that is a gap.

    So also before a table's first complete snapshot: the one that is under way may be from before the
    difference. A first sight is none.

    `fingerprint_app(table)` holds how the source carried the table when it was last looked at
    (`bronze.drift.membership`). It is written by the same commit as the gap that a difference means. So a
    crash leaves either the old one, and the next look finds the difference again, or fingerprint, gap and
    request. So does a commit that fails, for a fingerprint that is not in the lake was not seen.

    Args:
        uri: location of `bronze.changes`.
        seen: by table, the fingerprint of now.
        left_out: tables of this bronze that are not selected now; a gap only if they ever come back.
        lsn: the server's WAL position, read after the fingerprints were.

    Returns:
        The tables with a gap; durable when this returns.

    Raises:
        DeltaError, OSError: the lake cannot be written.
    """
    changes = delta.open_existing(uri)
    marks, gaps = [], []
    for table, fingerprint in seen.items():
        before = transaction_version(changes, fingerprint_app(table))
        if before == fingerprint:
            continue
        marks.append(Transaction(fingerprint_app(table), fingerprint))
        if before is not None:
            gaps.append(table)
    known = ((table, transaction_version(changes, fingerprint_app(table))) for table in left_out)
    marks += [Transaction(fingerprint_app(table), NOT_CARRIED) for table, before in known if before]
    if marks:
        commit_marks(changes, uri, [*marks, *_growing(changes, gap_marks(gaps, lsn))])
    return gaps


def _growing(changes: DeltaTable, marks: Iterable[Transaction]) -> list[Transaction]:
    """Those marks that say more than the table has: a snapshot between the two would heal too much."""
    return [mark for mark in marks if (transaction_version(changes, mark.app_id) or 0) < mark.version]
