"""Tables whose changes are missing in bronze, and requests for new snapshots: gap marks and resnapshot marks.

**The gap mark** is an application transaction of `bronze.changes`, `gap_app(table)`, whose version is an LSN
G: changes of the table with a commit LSN up to G may be missing. A snapshot after G (S > G) heals the gap, so
no process ever removes the mark. One commit sets a gap mark together with a resnapshot mark, so a known gap
is also a gap that is being healed; before a table's first snapshot the gap mark alone suffices.

**Why changes may be missing**:

* the publication did not carry them (`bronze.drift.membership`);
* the table had another name then (`bronze.stream.session`);
* the slot was lost (`bronze.reader.recovery`);
* PostgreSQL made them without an event (`bronze.drift.storage`);
* the reader cannot assign their columns (`bronze.pgoutput.relation_versions`);
* their texts cannot be converted (`bronze.stream.encodings`), or their shape cannot be read
  (`bronze.reader.table_errors`): a partition's replica identity may send less than a key. The first of many
  such changes opens the gap (`bronze.store.table_marks`);
* a rule for its columns or rows changed (`bronze.store.rule_marks`);
* the reader skipped the table after an error, until a session read the table again
  (`bronze.reader.carried_tables`).

**The resnapshot mark** is an application transaction of `bronze.changes`, `resnapshot_app(table)`, whose
version is an LSN R. A table needs a snapshot if the table has no complete snapshot, or if R or G is at or
past the newest snapshot. R is the server's WAL position at the request. Any snapshot that began afterwards
(S > R) therefore settles the mark, and no process needs to remove the mark: marks only grow, except a mark
beyond the server's own log (`move_back`).

**Silver's part.** Silver leaves a table out of its cuts from a mark until the first snapshot after the mark
(`is_whole`). So no new cut names a version that lacks changes. `healing` explains why only a snapshot ends a
gap.

**In parallel with a running reader.** Any process may set both marks. The commit has marks alone: no rows,
and no application id that the stream or a snapshot writes. So Delta allows the commit in parallel with
theirs, and the sink, which compares the stream's position at each refresh, finds no move.

**If the process is killed.** A crash before the commit leaves nothing; a crash after the commit leaves a mark
that the reader finds at its next poll, also after a restart. A failed commit leaves either; the caller gets
the error and may repeat the request, because a repeated request counts once. `note` sets the fingerprint
together with its gap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltasmelt.bronze.drift.membership import NOT_CARRIED
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import Transaction
from deltasmelt.bronze.lake.table import retry_conflict
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.changes_table import commit_marks
from deltasmelt.bronze.store.marks import (
    detached_app,
    fingerprint_app,
    gap_app,
    healed_app,
    resnapshot_app,
    resnapshotted_app,
    snapshot_of,
)
from deltasmelt.bronze.store.rule_marks import UNCHANGED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.store.rule_marks import ChangedRules


def resnapshot_of(changes: Table, table: TableName) -> Lsn | None:
    """Return R of a table in an open `bronze.changes`; None without a request."""
    version = changes.transaction_version(resnapshot_app(table))
    return None if version is None else Lsn(version)


def gap_of(changes: Table, table: TableName) -> Lsn | None:
    """Return G of a table in an open `bronze.changes`; None without a gap."""
    version = changes.transaction_version(gap_app(table))
    return None if version is None else Lsn(version)


def newest_mark(changes: Table, table: TableName) -> Lsn | None:
    """Return the greater of R and G of a table in an open `bronze.changes`; None without both."""
    marks = (resnapshot_of(changes, table), gap_of(changes, table))
    return max((mark for mark in marks if mark is not None), default=None)


def needs_snapshot(changes: Table, table: TableName) -> bool:
    """Check whether an open `bronze.changes` lacks a snapshot of this table that is new enough."""
    snapshot, mark = snapshot_of(changes, table), newest_mark(changes, table)
    return snapshot is None or (mark is not None and mark >= snapshot)


@retry_conflict
def request_snapshots(uri: str, tables: Sequence[TableName], lsn: Lsn) -> None:
    """Request snapshots of tables at a position after `lsn`; durable on return.

    `lsn` is the server's present WAL position. A mark at or past `lsn` stays unchanged.

    Raises:
        TableNotFoundError: `bronze.changes` does not exist.
        DeltaError, OSError: the lake cannot be written.
    """
    changes = delta.open_existing(uri)
    marks = []
    for table in tables:
        requested = resnapshot_of(changes, table)
        # Two concurrent requests for one table conflict in their id. The later request runs again and writes
        # only marks that are still greater.
        if requested is None or requested < lsn:
            marks.append(Transaction(resnapshot_app(table), int(lsn)))
    if marks:
        commit_marks(changes, marks)


@retry_conflict
def move_back(uri: str, newest: Mapping[TableName, Lsn], end: Lsn) -> list[TableName]:
    """Move marks beyond `end` back to `end`, the end of the server's log; return the moved tables, durable.

    A mark beyond the log has the LSN of another server. No snapshot settles such a mark before the log has
    reached the LSN. `newest` has the greater of each table's two marks, read before `end`. The first rules of
    a table open a gap without a request.

    Raises:
        DeltaError, OSError: the lake cannot be written.
    """
    changes = delta.open_existing(uri)
    # A mark that another process set in the meantime waits for the next poll.
    moved = [table for table, lsn in newest.items() if lsn > end and newest_mark(changes, table) == lsn]
    apps = [app(table) for table in moved for app in (resnapshot_app, gap_app)]
    # The moved mark is a request as of now, because the mark may have covered an earlier request that is
    # still open.
    marks = [Transaction(app, int(end)) for app in apps if (changes.transaction_version(app) or 0) > end]
    if marks:
        commit_marks(changes, marks)
    return moved


def is_open(changes: Table, table: TableName) -> bool:
    """Check whether an open `bronze.changes` has a gap of this table and no snapshot after the gap."""
    gap = changes.transaction_version(gap_app(table))
    return gap is not None and _first_after(changes, table, gap, healed_app) is None


def is_left_out(changes: Table, table: TableName) -> bool:
    """Check whether the reader no longer reads the source's changes of a table.

    The table was dropped, renamed, removed from the patterns, or has a problem. Its rows are from an earlier
    time; if the table returns, `note` finds a gap.
    """
    return bool(changes.transaction_version(fingerprint_app(table)) == NOT_CARRIED)


def is_whole(changes: Table, table: TableName, end: Lsn) -> bool:
    """Check whether silver may carry a table to the end of a window.

    Bronze must have every change of the table up to the end, and every requested snapshot.

    `changes` is an open `bronze.changes`. A snapshot after `end`, the window's end, does not count yet.
    """
    # A snapshot that was requested without a gap (`smelt snapshot`) counts, too: otherwise silver would
    # continue to fold during the copy, be past the snapshot on its arrival, and never load the snapshot.
    # Silver leaves the table out from the resnapshot mark R until the first snapshot after R, whose commit
    # writes `resnapshotted_app(table)`. Bronze has all changes in between, so there is no gap: a history
    # keeps these changes.
    for app, healer in ((gap_app, healed_app), (resnapshot_app, resnapshotted_app)):
        mark = changes.transaction_version(app(table))
        snapshot = None if mark is None else _first_after(changes, table, mark, healer)
        # Silver is never past the snapshot that silver waits for. A cycle without the mark read a frontier
        # from before the mark was durable. The snapshot begins after the reader has seen the mark, so the
        # snapshot's LSN is greater.
        if mark is not None and (snapshot is None or snapshot > end):
            return False
    return True


def healed_at(changes: Table, table: TableName) -> Lsn | None:
    """Return the LSN of the snapshot that healed the newest gap of a table; None without a healed gap."""
    gap = changes.transaction_version(gap_app(table))
    healed = None if gap is None else _first_after(changes, table, gap, healed_app)
    return None if healed is None else Lsn(healed)


def _first_after(
    changes: Table, table: TableName, mark: int, healer: Callable[[TableName], str]
) -> int | None:
    """Return the LSN of the first snapshot after a mark; in a lake of an earlier release, of the newest."""
    snapshots = (changes.transaction_version(healer(table)), snapshot_of(changes, table))
    return next((lsn for lsn in snapshots if lsn is not None and lsn > mark), None)


def healing(changes: Table, table: TableName, lsn: Lsn) -> list[Transaction]:
    """Return the marks that a snapshot's own commit sets as the first snapshot after a gap or a request.

    While a gap mark is being written, the stream continues, and silver may already have passed G with a table
    that lacks the change. So only a snapshot ends a gap: the first snapshot after G writes
    `healed_app(table)` with its LSN. Later snapshots leave this mark unchanged, because silver must not leave
    out a healed table again while silver is still before the newest snapshot.

    A process may set a gap, through another handle, during the commit of a snapshot after the gap. The
    snapshot then lacks the mark, but still heals the gap (`_first_after`). The next snapshot writes the mark
    with the LSN of the first, before itself becoming the newest.

    `changes` is `bronze.changes` at its newest version.
    """
    marks = []
    for app, healer in ((gap_app, healed_app), (resnapshot_app, resnapshotted_app)):
        mark = changes.transaction_version(app(table))
        if mark is None or (changes.transaction_version(healer(table)) or 0) > mark:
            continue
        first = _first_after(changes, table, mark, healer) or int(lsn)
        if first > mark:
            marks.append(Transaction(healer(table), int(first)))
    return marks


def gap_marks(tables: Iterable[TableName], lsn: Lsn) -> list[Transaction]:
    """Return marks: changes up to `lsn` may be missing, and these tables need a new snapshot."""
    return [Transaction(app(table), int(lsn)) for table in tables for app in (gap_app, resnapshot_app)]


@retry_conflict
def open_gaps(uri: str, tables: Collection[TableName], lsn: Lsn, *, beyond: bool = False) -> list[TableName]:
    """Mark tables as incomplete up to `lsn` and request a new snapshot of each; durable on return.

    G is the end of the log after the poll that found the gap, so the lost change lies at or before G. For
    columns that the reader cannot assign, G is the change's own LSN.

    Args:
        tables: the tables that lack changes; an open gap stays unchanged.
        lsn: WAL position of the server, read after the gap was seen.
        beyond: also move an open gap that ends before `lsn` to `lsn`. `lsn` is then a change's own, and the
            next snapshot may be from before the change.

    Returns:
        The tables that have an open gap now. A snapshot after `lsn` leaves its table without a gap.

    Raises:
        DeltaError, OSError: the lake cannot be written.
    """
    changes = delta.open_existing(uri)
    new = [table for table in tables if _opens(changes, table, lsn, beyond=beyond)]
    if new:
        commit_marks(changes, _growing(changes, gap_marks(new, lsn)))
    return [table for table in tables if table in new or is_open(changes, table)]


def _opens(changes: Table, table: TableName, lsn: Lsn, *, beyond: bool) -> bool:
    if not beyond:
        # The snapshot of an open gap is still to come.
        return not is_open(changes, table)
    # A gap that a snapshot after `lsn` healed stays unchanged.
    snapshot, gap = snapshot_of(changes, table), changes.transaction_version(gap_app(table))
    return (snapshot is None or snapshot <= lsn) and (gap is None or gap < lsn)


@retry_conflict
def note(
    uri: str,
    memberships: Mapping[TableName, int],
    left_out: Iterable[TableName],
    lsn: Lsn,
    rules: ChangedRules = UNCHANGED,
) -> list[TableName]:
    """Record the fingerprints of tables; open a gap for each table whose fingerprint differs from the record.

    `fingerprint_app(table)` has the fingerprint of the last poll (`bronze.drift.membership`).

    Args:
        memberships: the present fingerprint of each table.
        lsn: WAL position of the server, read after the fingerprints.
        rules: rules that differ from the recorded rules; such a table gets a gap as well.

    Returns:
        The tables with a gap; durable on return.

    Raises:
        DeltaError, OSError: the lake cannot be written.
    """
    changes = delta.open_existing(uri)
    marks, gaps = [], []
    for table, fingerprint in memberships.items():
        recorded = changes.transaction_version(fingerprint_app(table))
        if recorded == fingerprint and table not in rules.reasons:
            continue
        if recorded != fingerprint:
            marks.append(Transaction(fingerprint_app(table), fingerprint))
        # A difference opens a gap even before a table's first complete snapshot, because the running snapshot
        # may be from before the difference. A first fingerprint opens no gap, except for a table with rules:
        # the publication may have carried the table before, and then the log has rows from before the rules.
        if recorded is not None or table in rules.reasons:
            gaps.append(table)
    # A table of this bronze that is not selected now gets a gap only after its return.
    marks_before = ((table, changes.transaction_version(fingerprint_app(table))) for table in left_out)
    marks += [Transaction(fingerprint_app(table), NOT_CARRIED) for table, before in marks_before if before]
    marks += rules.marks
    if marks:
        # One commit writes fingerprint, gap and request. So a crash or a failed commit leaves either the old
        # fingerprint, and the next poll finds the difference again, or all three.
        # Before the first complete snapshot nothing is to be repeated, so the gap is no request: a table that
        # starts empty (`snapshot.mode: never`) starts after the gap.
        first = {resnapshot_app(table) for table in gaps if snapshot_of(changes, table) is None}
        opened = [mark for mark in gap_marks(gaps, lsn) if mark.app_id not in first]
        commit_marks(changes, [*marks, *_growing(changes, opened)])
    return gaps


@retry_conflict
def note_detached(uri: str, roots: Mapping[int, int]) -> None:
    """Record the roots with rules of partitions, by oid (`bronze.catalog.ruled_parts`)."""
    marks = [Transaction(detached_app(oid), root) for oid, root in roots.items()]
    commit_marks(delta.open_existing(uri), marks)


def _growing(changes: Table, marks: Iterable[Transaction]) -> list[Transaction]:
    """Return the marks greater than the table's present marks: a snapshot in between would heal too much."""
    return [mark for mark in marks if (changes.transaction_version(mark.app_id) or 0) < mark.version]
