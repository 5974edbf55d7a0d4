"""The position of the stream, stored as transaction marks of `bronze.changes` itself.

The commit with the rows also has the marks, so rows and position cannot disagree, whichever process is killed
at whichever moment. A caller that polls the position uses a `PositionWatch`; a single read loads the table's
log since the newest checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lake.cached_table import CachedTable
from deltasmelt.bronze.lake.client import Transaction
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
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lake.table import Table


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class SentTransaction:
    """A sent transaction, identified by values that no transaction of another history shares."""

    # commit LSN; for a message outside of transactions, the last byte of its record
    lsn: Lsn
    # commit time in microseconds since 1970; 0 for such a message, or before the first transaction
    time: int

    @classmethod
    def of(cls, lsn: Lsn, commit_ts: datetime | None) -> SentTransaction:
        """Return the transaction with this commit LSN and time."""
        return cls(lsn, 0 if commit_ts is None else (commit_ts - _EPOCH) // _MICROSECOND)


@dataclass(frozen=True, slots=True)
class Position:
    """The position of the stream in bronze."""

    # every transaction with a commit LSN up to and including this LSN is in `bronze.changes`
    frontier: Lsn
    # the WAL position up to which the slot may be confirmed, and at which the stream restarts (exclusive end)
    confirm: Lsn
    # version of `bronze.changes` that was read
    version: int
    # commit time at the frontier; None before the first change
    commit_ts: datetime | None
    # the newest transaction at or before the frontier that the server sent, even without a row in bronze;
    # None if the frontier was moved by a release that does not record the transaction
    sent: SentTransaction | None = None

    @classmethod
    def first(cls, point: Lsn, version: int = 0, commit_ts: datetime | None = None) -> Position:
        """Return the position of a new slot at `point`, before the slot has sent anything."""
        before = Lsn(point - 1)
        return cls(before, point, version, commit_ts, SentTransaction(before, 0))

    def marks(self) -> list[Transaction]:
        """Return the transaction marks of this position."""
        marks = [Transaction(STREAM_APP, int(self.frontier)), Transaction(CONFIRM_APP, int(self.confirm))]
        if self.commit_ts is not None:
            marks.append(Transaction(TIME_APP, (self.commit_ts - _EPOCH) // _MICROSECOND))
        if self.sent is not None:
            marks.append(Transaction(SENT_APP, int(self.sent.lsn)))
            marks.append(Transaction(SENT_TIME_APP, self.sent.time))
            marks.append(Transaction(SENT_FRONTIER_APP, int(self.frontier)))
        return marks


def position_of(table: Table) -> Position | None:
    """Return the position in an open `bronze.changes`; None before the reader's first commit."""
    frontier, confirm = table.transaction_version(STREAM_APP), table.transaction_version(CONFIRM_APP)
    if frontier is None or confirm is None:
        return None
    time = table.transaction_version(TIME_APP)
    commit_ts = None if time is None else _EPOCH + time * _MICROSECOND
    return Position(Lsn(frontier), Lsn(confirm), table.version(), commit_ts, _sent(table, frontier))


def _sent(table: Table, frontier: int) -> SentTransaction | None:
    """Return the newest transaction as recorded with a frontier."""
    lsn, time = table.transaction_version(SENT_APP), table.transaction_version(SENT_TIME_APP)
    # A release that does not record the transaction moves the frontier and leaves the marks of an earlier
    # frontier.
    if lsn is None or time is None or table.transaction_version(SENT_FRONTIER_APP) != frontier:
        return None
    return SentTransaction(Lsn(lsn), time)


def same_position(left: Position | None, right: Position | None) -> bool:
    """Check whether two positions are the same place in the stream, whatever their versions."""
    return (left and (left.frontier, left.confirm)) == (right and (right.frontier, right.confirm))


class PositionWatch:
    """Reader of one lake's position, which reads only new entries of the log on each call.

    Used by one thread at a time.
    """

    def __init__(self, lake: Lake) -> None:
        self.changes = CachedTable(lake.uri("bronze", CHANGES))

    def read(self) -> Position | None:
        """Return the position of the stream in this lake; None before the first commit of a reader.

        Raises:
            DeltaError, OSError: the lake cannot be read.
        """
        table = self.changes.newest()
        return None if table is None else position_of(table)


def read_position(lake: Lake) -> Position | None:
    """Return the position of the stream in this lake, read once; None before the first commit of a reader."""
    return PositionWatch(lake).read()
