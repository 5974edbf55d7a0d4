"""Tables of which bronze lacks changes: the gap mark, and what was seen of each table when it was set.

A gap mark is an application transaction of `bronze.changes`, `gap_app(table)`, whose version is an LSN G:
changes of this table with a commit LSN up to G may be missing, because they were not published
(`bronze.membership`), because the slot was lost (`bronze.recovery`), or because PostgreSQL made them without
an event (`bronze.storage`). A snapshot behind G heals it, so the mark is never taken away. Each gap mark is
set together with a retake mark (`bronze.retake`), in one commit, so a gap that is known is also a gap that is
being healed. Silver leaves a table out of its cuts from the moment that the mark is there until the snapshot
behind it is: no cut that is written then names a version that lacks changes.

G is where the log ended after the look that found the gap, so the lost change lies at or before it. While the
mark is being written the stream goes on, and silver may already have passed G with a table that lacks the
change. So nothing but a snapshot ends a gap: the first one behind G writes `healed_app(table)` with its LSN,
in its own commit (`healing`). Later snapshots leave that mark alone, for a table whose gap was healed is not
to be left out again while silver is still before the newest of them.

`seen_app(table)` holds a number that stands for how the source carried the table when it was last looked at
(`bronze.membership`). It is written by the same commit as the gap that a difference means. So a crash leaves
either the old number, and the next look finds the difference again, or number, gap and request.

The commit holds marks alone and none of the ids that stream and snapshots write; Delta lets it pass beside
theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalake import Transaction

from bronze import delta
from bronze.lsn import Lsn
from bronze.marks import commit_marks
from bronze.position import snapshot_of
from bronze.tables import retake_app

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from deltalake import DeltaTable

    from bronze.identifiers import TableName


def gap_app(table: TableName) -> str:
    """Application id under which a gap of `table` is marked (version: G)."""
    return f"deltasmelt.gap:{table.quoted}"


def healed_app(table: TableName) -> str:
    """Application id of the first snapshot of `table` behind its gap (version: its LSN)."""
    return f"deltasmelt.healed:{table.quoted}"


def seen_app(table: TableName) -> str:
    """Application id of the number that stands for how the source carried `table`."""
    return f"deltasmelt.seen:{table.quoted}"


def is_open(changes: DeltaTable, table: TableName) -> bool:
    """Whether an open `bronze.changes` has a gap of this table and no snapshot behind it."""
    gap = changes.transaction_version(gap_app(table))
    return gap is not None and _healed(changes, table, gap) is None


def is_whole(changes: DeltaTable, table: TableName, end: Lsn) -> bool:
    """Whether bronze has every change of a table that counts in a window.

    Args:
        changes: an open `bronze.changes`.
        table: which.
        end: the window's end; a snapshot behind it does not count yet.
    """
    gap = changes.transaction_version(gap_app(table))
    healed = None if gap is None else _healed(changes, table, gap)
    return gap is None or (healed is not None and healed <= end)


def healed_at(changes: DeltaTable, table: TableName) -> Lsn | None:
    """LSN of the snapshot that healed the newest gap of a table; None without a gap, or where it is open."""
    gap = changes.transaction_version(gap_app(table))
    healed = None if gap is None else _healed(changes, table, gap)
    return None if healed is None else Lsn(healed)


def _healed(changes: DeltaTable, table: TableName, gap: int) -> int | None:
    """LSN of the first snapshot behind a gap; of the newest one in a lake from before that was kept."""
    marks = (changes.transaction_version(healed_app(table)), snapshot_of(changes, table))
    return next((mark for mark in marks if mark is not None and mark > gap), None)


def healing(changes: DeltaTable, table: TableName, lsn: Lsn) -> list[Transaction]:
    """The mark that a snapshot's own commit sets where it is the first behind a gap.

    Args:
        changes: `bronze.changes` at its newest version.
        table: that was copied.
        lsn: of the snapshot.
    """
    gap = changes.transaction_version(gap_app(table))
    heals = gap is not None and gap < lsn and _healed(changes, table, gap) is None
    return [Transaction(healed_app(table), int(lsn))] if heals else []


def gap_marks(tables: Iterable[TableName], lsn: Lsn) -> list[Transaction]:
    """The marks that say: changes up to `lsn` may be missing, take these tables again."""
    return [Transaction(app(table), int(lsn)) for table in tables for app in (gap_app, retake_app)]


@delta.retry_conflict
def open_gaps(uri: str, tables: Iterable[TableName], lsn: Lsn) -> None:
    """Say that changes of these tables up to an LSN are missing, and ask for them; durable on return.

    Args:
        uri: location of `bronze.changes`.
        tables: one whose gap is open already is left as it is: its copy is still to come.
        lsn: the server's WAL position, read after the gap was seen.

    Raises:
        DeltaError, OSError: the lake cannot be written.
    """
    changes = delta.open_existing(uri)
    new = [table for table in tables if not is_open(changes, table)]
    if new:
        commit_marks(changes, uri, gap_marks(new, lsn))


@delta.retry_conflict
def note(uri: str, seen: Mapping[TableName, int], left_out: Iterable[TableName], lsn: Lsn) -> list[TableName]:
    """Remember what was seen of tables; where it differs from what was remembered, that is a gap.

    A table without any complete snapshot has no gap: its first snapshot is still to come.

    Args:
        uri: location of `bronze.changes`.
        seen: by table, the number of now.
        left_out: tables of this bronze that are not selected now; a gap only if they ever come back.
        lsn: the server's WAL position, read after the numbers were.

    Returns:
        The tables with a gap; durable when this returns.

    Raises:
        DeltaError, OSError: the lake cannot be written.
    """
    changes = delta.open_existing(uri)
    marks, gaps = [], []
    for table, number in seen.items():
        before = changes.transaction_version(seen_app(table))
        if before == number:
            continue
        marks.append(Transaction(seen_app(table), number))
        if before is not None and snapshot_of(changes, table) is not None:
            gaps.append(table)
    known = ((table, changes.transaction_version(seen_app(table))) for table in left_out)
    marks += [Transaction(seen_app(table), 0) for table, before in known if before]
    if marks:
        commit_marks(changes, uri, [*marks, *gap_marks(gaps, lsn)])
    return gaps
