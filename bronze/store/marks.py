"""Every mark that bronze sets: application ids of Delta transactions, and what their versions say.

A mark is Delta's ``txn`` action: an id and a version, which a commit sets together with its rows. So what a
mark says became true with the rows that it speaks of. All stand on `bronze.changes` but `COMPACTION_APP`,
which any table may have (`bronze.lake.compaction`).

Of the stream: `STREAM_APP`, `CONFIRM_APP`, `TIME_APP`, `SENT_APP`, `SENT_TIME_APP`,
`SENT_FRONTIER_APP`, `TIMELINE_APP`, `SERVER_START_APP`, `READER_APP`, `STARTING_OVER_APP`.
Of what lies beside it: `COMMENTS_APP`.
Of one table each: `snapshot_app`, `resnapshot_app`, `gap_app`, `healed_app`, `resnapshotted_app`,
`fingerprint_app`.

Delta protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#transaction-identifiers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lake.compaction import COMPACTION_APP
from deltasmelt.bronze.lake.transactions import transaction_version
from deltasmelt.bronze.lsn import Lsn

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from deltasmelt.bronze.identifiers import TableName

__all__ = [
    "COMMENTS_APP",
    "COMPACTION_APP",
    "CONFIRM_APP",
    "READER_APP",
    "SENT_APP",
    "SENT_FRONTIER_APP",
    "SENT_TIME_APP",
    "SERVER_START_APP",
    "STARTING_OVER_APP",
    "STREAM_APP",
    "TIMELINE_APP",
    "TIME_APP",
    "fingerprint_app",
    "gap_app",
    "healed_app",
    "resnapshot_app",
    "resnapshotted_app",
    "snapshot_app",
    "snapshot_of",
]

STREAM_APP: Final = "deltasmelt.stream"
"""The frontier, inclusive: every transaction whose commit LSN is at or before it is in the table."""

CONFIRM_APP: Final = "deltasmelt.confirm"
"""The WAL position up to which the slot may be confirmed: exclusive, never before the frontier."""

TIME_APP: Final = "deltasmelt.time"
"""The frontier's time in microseconds since 1970: its newest commit's, or the server's clock when idle."""

SENT_APP: Final = "deltasmelt.sent"
"""Commit LSN of the newest transaction that the server sent, whatever is kept of it (`SentTransaction`)."""

SENT_TIME_APP: Final = "deltasmelt.sent-time"
"""Commit time of that transaction in microseconds since 1970; 0 where it has none."""

SENT_FRONTIER_APP: Final = "deltasmelt.sent-frontier"
"""The frontier that the marks of that transaction were set with; beside another frontier they say nothing."""

TIMELINE_APP: Final = "deltasmelt.timeline"
"""The server's timeline that bronze has followed (`bronze.stream.timeline`)."""

SERVER_START_APP: Final = "deltasmelt.server-start"
"""When the server that bronze has followed was started, in microseconds since 1970."""

READER_APP: Final = "deltasmelt.reader"
"""A number of the reader that has the lake (`bronze.store.sink`)."""

STARTING_OVER_APP: Final = "deltasmelt.starting-over"
"""The frontier after which the log is given up (`bronze.reader.recovery`); past it the mark says nothing."""

COMMENTS_APP: Final = "deltasmelt.comments"
"""When the source's comments were recorded last, in microseconds since 1970 (`bronze.store.comments`)."""


def snapshot_app(table: TableName) -> str:
    """LSN of the newest complete snapshot of a table."""
    return f"deltasmelt.snapshot:{table.quoted}"


def resnapshot_app(table: TableName) -> str:
    """A snapshot of the table at or before this LSN is not enough (`bronze.store.gaps`)."""
    return f"deltasmelt.resnapshot:{table.quoted}"


def gap_app(table: TableName) -> str:
    """Changes of the table up to this LSN may be missing (`bronze.store.gaps`)."""
    return f"deltasmelt.gap:{table.quoted}"


def healed_app(table: TableName) -> str:
    """LSN of the first snapshot of the table after its gap."""
    return f"deltasmelt.healed:{table.quoted}"


def resnapshotted_app(table: TableName) -> str:
    """LSN of the first snapshot of the table after its resnapshot mark."""
    return f"deltasmelt.resnapshotted:{table.quoted}"


def fingerprint_app(table: TableName) -> str:
    """A fingerprint of how the source last carried the table (`bronze.drift.membership`)."""
    return f"deltasmelt.fingerprint:{table.quoted}"


def snapshot_of(changes: DeltaTable, table: TableName) -> Lsn | None:
    """LSN of the newest complete snapshot of a table, as an open `bronze.changes` says; None without one."""
    version = transaction_version(changes, snapshot_app(table))
    return None if version is None else Lsn(version)
