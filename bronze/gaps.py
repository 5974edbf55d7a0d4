"""Tables of which bronze lacks changes: the gap mark, and what was seen of each table when it was set.

A gap mark is an application transaction of `bronze.changes`, `gap_app(table)`, whose version is an LSN G:
changes of this table with a commit LSN up to G may be missing. A snapshot behind G heals it, so the mark is
never taken away. Each gap mark is set together with a retake mark (`bronze.retake`), in one commit, so a gap
that is known is also a gap that is being healed. Silver leaves a table out of its cuts from the moment that
the mark is there until the snapshot behind it is: no cut names a version that lacks changes.

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
from bronze.marks import commit_marks
from bronze.position import snapshot_of
from bronze.tables import retake_app

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from deltalake import DeltaTable

    from bronze.identifiers import TableName
    from bronze.lsn import Lsn


def gap_app(table: TableName) -> str:
    """Application id under which a gap of `table` is marked (version: G)."""
    return f"deltasmelt.gap:{table.quoted}"


def seen_app(table: TableName) -> str:
    """Application id of the number that stands for how the source carried `table`."""
    return f"deltasmelt.seen:{table.quoted}"


def is_whole(changes: DeltaTable, table: TableName, start: Lsn, end: Lsn) -> bool:
    """Whether bronze has every change of a table that counts in a window.

    Args:
        changes: an open `bronze.changes`.
        table: which.
        start: the table's rows are known as of this LSN.
        end: the window's end; a snapshot behind it does not count yet.
    """
    gap = changes.transaction_version(gap_app(table))
    taken = snapshot_of(changes, table)
    return gap is None or start > gap or (taken is not None and gap < taken <= end)


def gap_marks(tables: Iterable[TableName], lsn: Lsn) -> list[Transaction]:
    """The marks that say: changes up to `lsn` may be missing, take these tables again."""
    return [Transaction(app(table), int(lsn)) for table in tables for app in (gap_app, retake_app)]


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
