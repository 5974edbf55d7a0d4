"""The WAL that a slot holds back: how much, the cause, and the time until the server's limit.

Copies of tables hold back no WAL, however long they take. The stream continues in parallel with the copy and
is confirmed. The temporary slot of a copy is dropped before the copy reads its first row
(`bronze.snapshot.snapshot`). So no snapshot is refused or slowed down because of WAL. Held WAL has one of
three causes, and the message names the cause with its figure:

* No process reads the slot.
* The reader is behind: a slow lake, a busy machine, a large transaction.
* An open transaction has written something. The server keeps all WAL from the transaction's start, to decode
  the transaction at its commit.

The limit is ``max_slot_wal_keep_size``. Without a setting the limit is the server's disk, whose free space no
function of PostgreSQL returns. Then the message contains only the held amount and the rate of growth.

PostgreSQL docs: https://www.postgresql.org/docs/current/view-pg-replication-slots.html (safe_wal_size).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.figures import estimate_text, setting_text
from deltasmelt.bronze.lsn import ZERO
from deltasmelt.bronze.postgres.blockers import running_transactions
from deltasmelt.bronze.postgres.connection import primary_log_end

if TYPE_CHECKING:
    import psycopg

    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.bronze.setup.slot import SlotState

NOTABLE_BYTES: Final = 64 << 20
"""Held WAL below which no cause is searched: four segments, as every slot holds at times."""

_LIMIT_QUERY: Final = """
    SELECT max(setting::bigint) FILTER (WHERE name = 'max_slot_wal_keep_size'),
           max(setting::bigint) FILTER (WHERE name = 'wal_keep_size')
    FROM pg_settings
    WHERE name IN ('max_slot_wal_keep_size', 'wal_keep_size')
"""


@dataclass(frozen=True, slots=True)
class WalBudget:
    """WAL in bytes, at one moment."""

    # greatest amount that a slot may hold back; None: as much as the disk holds
    limit: int | None
    # amount that this slot holds back
    held: int
    # part of `held` that no reader has confirmed
    unread: int
    # amount until the limit is reached; None without a limit
    left: int | None
    # bytes written in a second; None if not measured
    rate: float | None
    # whether a process reads the slot
    reads: bool
    # the oldest open transactions, if they hold back most of the WAL; otherwise empty
    transactions: str = ""

    @property
    def used(self) -> float:
        """Used share of the limit; 0 without a limit."""
        if self.limit is None or self.left is None:
            return 0.0
        if self.limit <= 0:  # max_slot_wal_keep_size = 0 is allowed: nothing may be held back
            return 1.0 if self.left <= 0 else 0.0
        return min(max(1 - self.left / self.limit, 0.0), 1.0)

    @property
    def tiny(self) -> bool:
        """Whether a slot exceeds the limit in ordinary operation, at every segment or two."""
        return self.limit is not None and self.limit < NOTABLE_BYTES

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the limit is reached at this rate; None if unknown."""
        return self.left / self.rate if self.left is not None and self.rate else None

    @property
    def cause(self) -> str:
        """The cause of held WAL, as text; empty while the slot holds too little WAL."""
        if self.held < NOTABLE_BYTES:
            return ""
        if not self.reads:
            return "no reader uses the slot"
        if self.transactions:
            size = setting_text(self.held - self.unread)
            return f"{size} of WAL since the oldest open transaction: {self.transactions}"
        return f"the reader is {setting_text(self.unread)} behind (a slow lake, or a large transaction)"

    @property
    def message(self) -> str:
        """All facts of the budget as one line of text."""
        parts = [f"{setting_text(self.held)} of WAL held back"]
        if self.limit is None:
            parts.append("no limit except the server's disk, whose free space PostgreSQL does not report")
        else:
            parts.append(
                f"{setting_text(self.left or 0)} of WAL left until max_slot_wal_keep_size "
                f"({setting_text(self.limit)}) is reached"
            )
        if self.rate is not None:
            duration_left = "" if self.seconds_left is None else f": {estimate_text(self.seconds_left)} left"
            parts.append(f"the server writes {setting_text(self.rate)}/s now{duration_left}")
        return "; ".join([*parts, *filter(None, [self.cause])])


def read_budget(
    connection: psycopg.Connection[Any], slot: SlotState, *, rate: float | None = None
) -> WalBudget | None:
    """Read how much WAL this slot holds back; None from a standby, whose slots belong to its primary.

    `rate` is in bytes per second, None if not measured. `connection` is in autocommit mode.
    """
    head = primary_log_end(connection)
    if head is None:
        return None
    row = connection.execute(_LIMIT_QUERY).fetchone()
    slots, always = (-1, 0) if row is None else row
    # The server keeps wal_keep_size anyway, so a smaller limit for slots has no effect.
    limit = None if slots == -1 else max(slots, always) << 20
    retained = max(head - slot.restart, 0) if slot.restart > ZERO else 0
    unread = min(max(head - slot.confirmed_flush, 0), retained)
    reads = slot.active_pid is not None
    old = reads and retained >= NOTABLE_BYTES and retained - unread > unread
    return WalBudget(
        limit=limit,
        held=retained,
        unread=unread,
        left=None if limit is None or slot.safe_wal_size is None else max(slot.safe_wal_size, 0),
        rate=rate,
        reads=reads,
        transactions=running_transactions(connection) if old else "",
    )


def rate_of(before: Lsn, after: Lsn, seconds: float) -> float:
    """Return the bytes of WAL per second between two reads of the log's end."""
    return max(after - before, 0) / max(seconds, 0.001)
