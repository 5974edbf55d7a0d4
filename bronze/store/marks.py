"""Every mark that bronze sets: application ids of Delta transactions, and the meaning of their versions.

A mark is Delta's ``txn`` action: an id and a version, which a commit sets together with rows. A mark is
therefore valid exactly from the commit of its rows. All marks are on `bronze.changes`, except
`COMPACTION_APP`, which any table may have (`bronze.lake.compaction`).

Marks of the stream: `STREAM_APP`, `CONFIRM_APP`, `TIME_APP`, `SENT_APP`, `SENT_TIME_APP`,
`SENT_FRONTIER_APP`, `TIMELINE_APP`, `SERVER_START_APP`, `READER_APP`, `STARTING_OVER_APP`. Mark of the
comments: `COMMENTS_APP`. Mark of removed changes: `KEPT_APP`. Mark of the key of hashes: `HASH_KEY_APP`.
Marks of each table: `snapshot_app`, `resnapshot_app`, `gap_app`, `healed_app`, `resnapshotted_app`,
`fingerprint_app`, `rules_app`, `renew_app`, `renewed_app`. Mark of a relation: `detached_app`.

Delta protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#transaction-identifiers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lake.compaction import COMPACTION_APP
from deltasmelt.bronze.lsn import Lsn

if TYPE_CHECKING:
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.table import Table

__all__ = [
    "COMMENTS_APP",
    "COMPACTION_APP",
    "CONFIRM_APP",
    "HASH_KEY_APP",
    "KEPT_APP",
    "READER_APP",
    "SENT_APP",
    "SENT_FRONTIER_APP",
    "SENT_TIME_APP",
    "SERVER_START_APP",
    "STARTING_OVER_APP",
    "STREAM_APP",
    "TIMELINE_APP",
    "TIME_APP",
    "base_of",
    "detached_app",
    "fingerprint_app",
    "gap_app",
    "healed_app",
    "kept_from",
    "renew_app",
    "renewed_app",
    "resnapshot_app",
    "resnapshotted_app",
    "rules_app",
    "snapshot_app",
    "snapshot_of",
]

STREAM_APP: Final = "deltasmelt.stream"
"""The frontier, inclusive: the table has every transaction with a commit LSN at or before the frontier."""

CONFIRM_APP: Final = "deltasmelt.confirm"
"""The WAL position up to which the slot may be confirmed: exclusive, never before the frontier."""

TIME_APP: Final = "deltasmelt.time"
"""The frontier's time in microseconds since 1970: the newest commit's, or the server's clock when idle."""

SENT_APP: Final = "deltasmelt.sent"
"""Commit LSN of the newest transaction that the server sent, even without a row (`SentTransaction`)."""

SENT_TIME_APP: Final = "deltasmelt.sent-time"
"""Commit time of the transaction in `SENT_APP`, in microseconds since 1970; 0 without a time."""

SENT_FRONTIER_APP: Final = "deltasmelt.sent-frontier"
"""The frontier at which `SENT_APP` and `SENT_TIME_APP` were set; at another frontier both are invalid."""

TIMELINE_APP: Final = "deltasmelt.timeline"
"""The server's timeline that bronze has followed (`bronze.stream.timeline`)."""

SERVER_START_APP: Final = "deltasmelt.server-start"
"""Start of the server that bronze has followed, in microseconds since 1970."""

READER_APP: Final = "deltasmelt.reader"
"""The number of the reader that owns the lake (`bronze.store.sink`)."""

STARTING_OVER_APP: Final = "deltasmelt.starting-over"
"""The frontier after which the log is given up (`bronze.reader.recovery`); meaningless past the frontier."""

HASH_KEY_APP: Final = "deltasmelt.hash-key"
"""A number that identifies the key of hashes, and does not reveal the key (`bronze.rules.key_number`)."""

COMMENTS_APP: Final = "deltasmelt.comments"
"""Time of the newest record of comments, in microseconds since 1970 (`bronze.store.comments`)."""


KEPT_APP: Final = "deltasmelt.kept-from"
"""Bronze has all changes from this LSN on, and may lack earlier changes (`bronze.store.retention`)."""


def snapshot_app(table: TableName) -> str:
    """Return the id of the mark: LSN of the newest complete snapshot of a table."""
    return f"deltasmelt.snapshot:{table.quoted}"


def resnapshot_app(table: TableName) -> str:
    """Return the id of the mark: a snapshot at or before this LSN is too old (`bronze.store.gaps`)."""
    return f"deltasmelt.resnapshot:{table.quoted}"


def gap_app(table: TableName) -> str:
    """Return the id of the mark: changes of the table up to this LSN may be missing (`bronze.store.gaps`)."""
    return f"deltasmelt.gap:{table.quoted}"


def healed_app(table: TableName) -> str:
    """Return the id of the mark: LSN of the first snapshot of the table after its gap."""
    return f"deltasmelt.healed:{table.quoted}"


def resnapshotted_app(table: TableName) -> str:
    """Return the id of the mark: LSN of the first snapshot of the table after its resnapshot mark."""
    return f"deltasmelt.resnapshotted:{table.quoted}"


def renew_app(table: TableName) -> str:
    """Return the id of the mark: LSN of an old base that a newer snapshot may replace."""
    return f"deltasmelt.renew:{table.quoted}"


def renewed_app(table: TableName) -> str:
    """Return the id of the mark: LSN of the newest snapshot of a table that only renewed the base."""
    return f"deltasmelt.renewed:{table.quoted}"


def fingerprint_app(table: TableName) -> str:
    """Return the id of the mark: fingerprint of the table's membership (`bronze.drift.membership`)."""
    return f"deltasmelt.fingerprint:{table.quoted}"


def rules_app(table: TableName) -> str:
    """Return the id of the mark: number of the rules by which the table is carried (`bronze.rules`)."""
    return f"deltasmelt.rules:{table.quoted}"


def detached_app(relation_id: int) -> str:
    """Return the id of the mark of a partition: oid of the table with rules, which is or was its root.

    A lake of an earlier release has the mark 1.
    """
    return f"deltasmelt.detached:{relation_id}"


def snapshot_of(changes: Table, table: TableName) -> Lsn | None:
    """Return the LSN of a table's newest complete snapshot in an open `bronze.changes`, or None."""
    version = changes.transaction_version(snapshot_app(table))
    return None if version is None else Lsn(version)


def base_of(changes: Table, table: TableName, end: Lsn | None = None) -> Lsn | None:
    """Return the LSN of the newest complete snapshot by `end` with which a table can begin, or None.

    A renewed snapshot counts here alone: it ends no gap and settles no request (`bronze.store.retention`).
    """
    lsns = [changes.transaction_version(app(table)) for app in (snapshot_app, renewed_app)]
    counting = [Lsn(lsn) for lsn in lsns if lsn is not None and (end is None or lsn <= end)]
    return max(counting, default=None)


def kept_from(changes: Table) -> Lsn:
    """Return the LSN from which on an open `bronze.changes` has all changes; 0 before any removal."""
    return Lsn(changes.transaction_version(KEPT_APP) or 0)
