"""Assign each message of a slice to its transaction, for all messages at once.

pgoutput of protocol 1 sends each transaction whole: Begin, messages, Commit. No message in between belongs to
another transaction. So the number of Begins so far numbers the transactions, and any message that breaks this
order is refused.

``pg_logical_emit_message(false, …)`` writes a message outside transactions. The server decodes the message on
reading its WAL record, between the commits before and after. The decoder counts the message as a separate
transaction at the last byte of the record. So commit LSNs stay unique and ascend in stream order, and a
frontier at such an LSN is exact.

PostgreSQL docs: https://www.postgresql.org/docs/current/protocol-logical-replication.html.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import numpy as np

from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.pgoutput.framing import BEGIN, COMMIT, HEADER, MESSAGE, ORIGIN, TYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from deltasmelt.bronze.pgoutput.framing import Frames, Positions

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_POSTGRES_EPOCH: Final = 946_684_800_000_000
"""2000-01-01, PostgreSQL's zero of time, in microseconds since 1970."""
_EARLIEST: Final = -60_000_000_000_000_000
_LATEST: Final = 240_000_000_000_000_000
"""With `_EARLIEST` about the years 100 to 9600, in microseconds from 2000: datetime holds all of them."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a transaction in the stream."""

    # LSN of the commit record: orders everything
    commit_lsn: Lsn
    # end of the commit record: the position to resume the stream
    end_lsn: Lsn
    # None for a message outside transactions, which has no time
    commit_ts: datetime | None


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The fields of Begin of a transaction without a Commit so far; time in microseconds since 1970."""

    commit_lsn: int
    commit_ts: int
    xid: int


class Transactions:
    """The transactions of a slice. Number 0 is the transaction open before the slice, if any.

    Attributes:
        number: transaction number of each message.
        commit_lsn: commit LSN of each transaction.
        commit_ts: commit time of each transaction, microseconds since 1970; see `timed`.
        xid: xid of each transaction; see `timed`.
        timed: whether each transaction is a real transaction, with time and xid.
        closed: whether the Commit of each transaction lies in the slice.
        last_commit: the newest Commit of the slice.
        still_open: the transaction without a Commit at the end of the slice.
    """

    def __init__(self, frames: Frames, before: OpenTransaction | None, last_lsn: int) -> None:
        """Assign numbers to a slice's transactions; `last_lsn` is the last commit LSN before the slice."""
        self._frames = frames
        start, types = frames.at[:-1], frames.types
        alone = types == MESSAGE
        if alone.any():
            alone &= (frames.data[start + (HEADER + 1)] & 1) == 0
        begins, commits = (types == BEGIN) | alone, (types == COMMIT) | alone
        self.number = np.cumsum(begins, dtype=np.int64)
        ended = np.cumsum(commits, dtype=np.int64)
        self._check_order(begins, ended - commits, before)

        first = before or OpenTransaction(0, 0, 0)
        at, single = start[begins], alone[begins]
        lsn, ts = frames.int64(at + (HEADER + 1)), frames.int64(at + (HEADER + 9))
        xid = frames.uint32(at + np.where(single, 0, HEADER + 17))
        # A message's LSN is its record's end, and the next commit record may begin at this LSN. No other
        # record begins inside the record, so the last byte of the record is unique.
        if single.any():
            lsn[single], ts[single] = frames.int64(at[single] + (HEADER + 2)) - 1, 0
        self._check_begins(np.flatnonzero(begins), lsn, ts, last_lsn)
        self.commit_lsn = np.concatenate(([first.commit_lsn], lsn))
        self.commit_ts = np.concatenate(([first.commit_ts], ts + _POSTGRES_EPOCH))
        self.xid = np.concatenate(([first.xid], xid))
        self.timed = np.concatenate(([True], ~single))

        committed = np.flatnonzero(commits)
        self.closed = np.zeros(len(self.commit_lsn), np.bool_)
        self.closed[self.number[committed]] = True
        self.last_commit = self._commits(committed, alone)
        open_now = (before is not None) + int(begins.sum()) - len(committed)
        self.still_open = self._open_transaction() if open_now else None

    def _check_order(
        self, begins: NDArray[np.bool_], ended_before: Positions, before: OpenTransaction | None
    ) -> None:
        inside = self.number - begins - ended_before + (before is not None)
        anywhere = (self._frames.types == TYPE) | (self._frames.types == ORIGIN)
        misplaced = (inside != np.where(begins, 0, 1)) & ~anywhere
        for message in np.flatnonzero(misplaced)[:1].tolist():
            place = "inside another transaction" if inside[message] else "outside a transaction"
            self._frames.malformed(message, f"a {chr(self._frames.types[message])!r} message {place}")

    def _check_begins(self, begin_messages: Positions, lsn: Positions, ts: Positions, last_lsn: int) -> None:
        """Check that commit LSNs ascend between transactions: everything downstream orders by commit LSN."""
        former = np.concatenate(([last_lsn], lsn))[:-1]
        for index in np.flatnonzero((lsn <= former) | (ts < _EARLIEST) | (ts > _LATEST))[:1].tolist():
            if lsn[index] <= former[index]:
                problem = (
                    f"a transaction that commits at {Lsn(lsn[index])} comes after a transaction that "
                    f"committed at the same or a later LSN, {Lsn(former[index])}"
                )
            else:
                problem = "a commit time outside the calendar"
            self._frames.malformed(int(begin_messages[index]), problem)

    def _commits(self, committed: Positions, alone: NDArray[np.bool_]) -> Commit | None:
        """Compare every Commit with its Begin; return the newest Commit."""
        if len(committed) == 0:
            return None
        frames, real = self._frames, committed[~alone[committed]]
        repeated = frames.int64(frames.at[real] + (HEADER + 2))
        for index in np.flatnonzero(repeated != self.commit_lsn[self.number[real]])[:1].tolist():
            frames.malformed(int(real[index]), f"a Commit at {Lsn(repeated[index])} without a matching Begin")
        last = int(committed[-1])
        lsn = Lsn(self.commit_lsn[self.number[last]])
        if alone[last]:
            return Commit(lsn, Lsn(lsn + 1), None)
        fields = np.array([HEADER + 10, HEADER + 18]) + frames.at[last]
        end, ts = frames.int64(fields).tolist()
        if end <= lsn or not _EARLIEST <= ts <= _LATEST:
            frames.malformed(last, "a Commit with an impossible end or time")
        return Commit(lsn, Lsn(end), _EPOCH + timedelta(microseconds=ts + _POSTGRES_EPOCH))

    def _open_transaction(self) -> OpenTransaction:
        return OpenTransaction(int(self.commit_lsn[-1]), int(self.commit_ts[-1]), int(self.xid[-1]))
