"""Compare the server's log up to bronze's position with the log that bronze followed.

**The danger.** A person restores the files of a server: a disk, a volume snapshot, a clone. System identifier
and timeline stay equal, and the log grows past bronze's position with other transactions. A stream that
starts at bronze's position skips the new transactions before that position, and bronze keeps the old ones.
LSNs alone do not show the difference.

**The place of the difference.** The slot belongs to the restored files, and a reader confirms no more than
bronze holds. So a restored log parts from bronze's log after the slot's `confirmed_flush`. A killed reader or
a crashed server leaves the slot behind bronze, too, but then the log after the slot is equal. PostgreSQL
sends that range again on request.

**The comparison.** Bronze records the newest transaction that the server sent (`Position.sent`). A log grows
at its end alone. So a log with this transaction, at an equal LSN and with an equal commit time (to the
microsecond), equals bronze's log up to the transaction. Between the transaction and bronze's frontier the
server sent nothing, so any transaction in between is a difference. Three cases:

* *The newest transaction lies after the slot*: the stream starts at the transaction, which must come first.
* *The newest transaction lies before the slot*: both logs are equal up to the slot, and nothing may follow.
* *The slot is at bronze's position*: nothing is compared. A log that parts at or after bronze's position has
  everything that bronze has.

If both histories have no published transaction in the range, bronze lacks nothing and holds nothing wrong.

**A difference is checked twice.** A server may send one log in two ways if a table joined or left the
publication. So after a difference the log is compared again, by conclusive transactions only
(`bronze.stream.evidence`).

**The evidence lasts.** During the comparison the feedback confirms the slot's own `confirmed_flush` and no
more. A refused start writes neither to the lake nor to the slot. So each later start finds the difference
again, until a person heals the pipeline (`bronze.reader.recovery`).

**The result holds for the next stream.** One SQL connection reads both walsenders from
`pg_replication_slots`. A server that stops between the two streams ends this connection.

**Cost.** None after an orderly end, because the slot is then at bronze's position. Otherwise the server
decodes its log from `restart_lsn` once more and sends one transaction again. Memory holds one batch.

PostgreSQL docs: https://www.postgresql.org/docs/current/protocol-logical-replication.html and
https://www.postgresql.org/docs/current/logicaldecoding-explanation.html (Replication Slots).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.pgoutput.framing import DELETE, HEADER, INSERT, MESSAGE, TRUNCATE, UPDATE, slices
from deltasmelt.bronze.pgoutput.transactions import Transactions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from deltasmelt.bronze.pgoutput.framing import Frames
    from deltasmelt.bronze.pgoutput.transactions import OpenTransaction
    from deltasmelt.bronze.store.position import Position, SentTransaction
    from deltasmelt.bronze.stream.receiver import Batch

_SLICE_BYTES: Final = 4 << 20


class LogComparison:
    """A comparison of resent transactions with bronze's newest transaction. Pure.

    Args:
        sent: bronze's newest transaction among the compared transactions.
        confirmed: the slot's place, at or before the position.
        counts: OIDs of the tables whose transactions are compared, besides the transaction `sent` and
            messages after bronze's newest transaction; None: all transactions are compared.
    """

    def __init__(
        self,
        position: Position,
        sent: SentTransaction,
        confirmed: Lsn,
        *,
        where: str,
        counts: frozenset[int] | None = None,
    ) -> None:
        self._position = position
        self._counts = counts
        self._sent = sent
        self._where = where
        self._missing = sent.lsn >= confirmed
        # A stream that starts inside the record of a message outside transactions skips the message.
        self.start = max(confirmed, sent.lsn) if sent.time else confirmed
        self.end = position.confirm
        # LSN up to which the log was compared
        self.reached = self.start
        # whether the log was compared up to bronze's position
        self.complete = False
        self._open: OpenTransaction | None = None
        self._last = 0

    def take(self, batch: Batch) -> None:
        """Compare the next messages.

        Raises:
            DefiniteError: ``server-history-differs``; ``stream-malformed``.
        """
        for frames in slices(batch.blocks, _SLICE_BYTES):
            transactions = Transactions(frames, self._open, self._last)
            self._open = transactions.still_open
            self._last = max(self._last, int(transactions.commit_lsn[-1]))
            times = transactions.commit_ts * transactions.timed
            counted = self._counted(frames, transactions)
            for lsn, time, counts in zip(
                transactions.commit_lsn.tolist(), times.tolist(), counted.tolist(), strict=True
            ):
                self._compare(Lsn(lsn), time, counts=counts)
                if self.complete:
                    return
        if batch.keepalive is not None and batch.keepalive.wal_end > self._position.frontier:
            self._end()
        elif batch.keepalive is not None:
            self.reached = max(self.reached, batch.keepalive.wal_end)

    def _counted(self, frames: Frames, transactions: Transactions) -> NDArray[np.bool_]:
        """Check, by number, which transactions count in a slice; the first may begin before the slice."""
        if self._counts is None:
            return np.arange(len(transactions.commit_lsn)) > 0
        counted = np.zeros(len(transactions.commit_lsn), np.bool_)
        changes = np.isin(frames.types, (INSERT, UPDATE, DELETE))
        relations = frames.uint32(frames.at[:-1][changes] + (HEADER + 1))
        counted[transactions.number[changes][np.isin(relations, list(self._counts))]] = True
        for message in np.flatnonzero(frames.types == TRUNCATE).tolist():
            first = frames.at[message] + HEADER
            number = int(frames.uint32(np.array([first + 1]))[0])
            truncated = frames.uint32(first + 6 + 4 * np.arange(number))
            counted[transactions.number[message]] |= not self._counts.isdisjoint(truncated.tolist())
        with_message = transactions.number[frames.types == MESSAGE]
        newest = ZERO if self._position.sent is None else self._position.sent.lsn
        # Messages count only after bronze's newest transaction: bronze keeps no row of deltasmelt's own
        # messages, and cannot determine whether an earlier message was received.
        counted[with_message] |= transactions.commit_lsn[with_message] > newest
        # The expected transaction always counts, even a heartbeat.
        counted[1:] |= transactions.commit_lsn[1:] == int(self._sent.lsn)
        return counted

    def _compare(self, lsn: Lsn, time: int, *, counts: bool) -> None:
        if lsn > self._position.frontier:
            self._end()
            return
        self.reached = max(self.reached, lsn)
        if not counts:
            return
        if lsn > self._sent.lsn:
            raise self._differs(f"has a transaction that committed at {lsn}, which bronze never received")
        if lsn == self._sent.lsn:
            if time != self._sent.time:
                raise self._differs(f"has another transaction at {lsn} than bronze")
            self._missing = False

    def _end(self) -> None:
        """Finish the comparison: the server has sent everything up to bronze's frontier."""
        if self._missing:
            raise self._differs(f"lacks the transaction that committed at {self._sent.lsn}, bronze's newest")
        self.reached = self.end
        self.complete = True

    def _differs(self, how: str) -> DefiniteError:
        return DefiniteError(
            f"the server's log is not the log that bronze followed up to {self.end}: it {how}; the server "
            "was restored to an older state, or another copy of the server answers",
            code="server-history-differs",
            where=self._where,
            remedy="if the wrong server answers, correct the source section; otherwise `smelt snapshot FILE "
            "--all` resnapshots every table, deletes included, and continues from there",
        )
