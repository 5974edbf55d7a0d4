"""Tables that need a new snapshot: the resnapshot mark, which any process may set.

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

from bronze.lake import delta
from bronze.lake.client import Transaction
from bronze.lake.transactions import transaction_version
from bronze.lsn import Lsn
from bronze.store.commits import commit_marks
from bronze.store.marks import gap_app, resnapshot_app, snapshot_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalake import DeltaTable

    from bronze.identifiers import TableName


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
