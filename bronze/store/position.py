"""Where the stream stands: the reader's position, kept as transaction marks of `bronze.changes` itself.

The marks are part of the very commit that holds the rows, so rows and position cannot disagree, whatever is
killed when. Whoever polls it keeps a `PositionWatch`; to read it once costs one load of the table's log since
its newest checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lake.client import Transaction
from deltasmelt.bronze.lake.kept import KeptTable
from deltasmelt.bronze.lake.transactions import transaction_version
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.marks import (
    CONFIRM_APP,
    SENT_APP,
    SENT_FRONTIER_APP,
    SENT_TIME_APP,
    STREAM_APP,
    TIME_APP,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from deltasmelt.bronze.lake.location import Lake


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class SentTransaction:
    """A transaction that the server sent, by what no other transaction of any history has as well.

    Attributes:
        lsn: commit LSN; for a message outside of transactions, the last byte of its record.
        time: commit time in microseconds since 1970; 0 for such a message, or where nothing was sent yet.
    """

    lsn: Lsn
    time: int

    @classmethod
    def of(cls, lsn: Lsn, commit_ts: datetime | None) -> SentTransaction:
        """Return the transaction with this commit LSN and time."""
        return cls(lsn, 0 if commit_ts is None else (commit_ts - _EPOCH) // _MICROSECOND)


@dataclass(frozen=True, slots=True)
class Position:
    """The position of the stream in bronze.

    Attributes:
        frontier: every transaction with a commit LSN up to and including this one is in `bronze.changes`.
        confirm: the WAL position up to which the slot may be confirmed, and at which the stream starts again
            (exclusive end).
        version: version of `bronze.changes` that was read.
        commit_ts: commit time at the frontier; None before the first change.
        sent: the newest transaction at or before the frontier that the server sent, also one of which bronze
            keeps no row; None where a release moved the frontier that records no such transaction.
    """

    frontier: Lsn
    confirm: Lsn
    version: int
    commit_ts: datetime | None
    sent: SentTransaction | None = None

    @classmethod
    def first(cls, point: Lsn, version: int = 0, commit_ts: datetime | None = None) -> Position:
        """Return the position of a slot that was just made at a point, before it has sent anything."""
        before = Lsn(point - 1)
        return cls(before, point, version, commit_ts, SentTransaction(before, 0))

    def marks(self) -> list[Transaction]:
        """The transaction marks that say this position."""
        marks = [Transaction(STREAM_APP, int(self.frontier)), Transaction(CONFIRM_APP, int(self.confirm))]
        if self.commit_ts is not None:
            marks.append(Transaction(TIME_APP, (self.commit_ts - _EPOCH) // _MICROSECOND))
        if self.sent is not None:
            marks.append(Transaction(SENT_APP, int(self.sent.lsn)))
            marks.append(Transaction(SENT_TIME_APP, self.sent.time))
            marks.append(Transaction(SENT_FRONTIER_APP, int(self.frontier)))
        return marks


def position_of(table: DeltaTable) -> Position | None:
    """The position that an open `bronze.changes` says; None before the reader's first commit."""
    frontier, confirm = transaction_version(table, STREAM_APP), transaction_version(table, CONFIRM_APP)
    if frontier is None or confirm is None:
        return None
    time = transaction_version(table, TIME_APP)
    commit_ts = None if time is None else _EPOCH + time * _MICROSECOND
    return Position(Lsn(frontier), Lsn(confirm), table.version(), commit_ts, _sent(table, frontier))


def _sent(table: DeltaTable, frontier: int) -> SentTransaction | None:
    """Return the newest transaction as recorded with a frontier.

    A release that records no such transaction moves the frontier and leaves the marks of an earlier one.
    """
    lsn, time = transaction_version(table, SENT_APP), transaction_version(table, SENT_TIME_APP)
    if lsn is None or time is None or transaction_version(table, SENT_FRONTIER_APP) != frontier:
        return None
    return SentTransaction(Lsn(lsn), time)


def same_position(one: Position | None, other: Position | None) -> bool:
    """Whether two positions are one place of the stream, whatever version says it."""
    return (one and (one.frontier, one.confirm)) == (other and (other.frontier, other.confirm))


class PositionWatch:
    """Reads the position of one lake again and again, from the log's new entries alone.

    Used by one thread at a time.

    Attributes:
        changes: the table that says it.
    """

    def __init__(self, lake: Lake) -> None:
        self.changes = KeptTable(lake, "bronze", CHANGES)

    def read(self) -> Position | None:
        """The position of the stream in this lake; None where no reader has committed yet.

        Raises:
            DeltaError, OSError: the lake cannot be read.
        """
        table = self.changes.newest()
        return None if table is None else position_of(table)


def read_position(lake: Lake) -> Position | None:
    """The position of the stream in this lake, read once; None where no reader has committed yet."""
    return PositionWatch(lake).read()
