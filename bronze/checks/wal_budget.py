"""How much WAL a slot holds back, why, and how long the server bears that.

Copying tables holds no WAL back, however long it takes: the stream goes on beside it and is confirmed, and
the temporary slot of a copy is gone before its first row is read (`bronze.snapshot.snapshot`). So no snapshot
is refused or paced for it. What does hold WAL back is one of three things, and it is named with its figure:

* nobody reads the slot;
* the reader is behind: a slow lake, a busy machine, a large transaction;
* a transaction is open that has written something: the server keeps all WAL from its beginning, so that it
  can be decoded when it commits.

The limit is ``max_slot_wal_keep_size``. Without one it is the server's disk, whose free room no function of
PostgreSQL tells. Then only what is held and how fast it grows can be said.

PostgreSQL docs: https://www.postgresql.org/docs/current/view-pg-replication-slots.html (safe_wal_size).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.lsn import ZERO
from deltasmelt.bronze.postgres.blockers import running_transactions
from deltasmelt.bronze.postgres.connection import primary_log_end

if TYPE_CHECKING:
    import psycopg

    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.bronze.setup.slot import SlotState

NOTABLE_BYTES: Final = 64 << 20
"""Held WAL below which nothing is looked for: four segments, as every slot holds now and then."""

_LIMIT_QUERY: Final = """
    SELECT max(setting::bigint) FILTER (WHERE name = 'max_slot_wal_keep_size'),
           max(setting::bigint) FILTER (WHERE name = 'wal_keep_size')
    FROM pg_settings
    WHERE name IN ('max_slot_wal_keep_size', 'wal_keep_size')
"""


@dataclass(frozen=True, slots=True)
class WalBudget:
    """WAL in bytes, at one moment.

    Attributes:
        limit: that a slot may hold back; None: as much as the disk takes.
        held: by this slot.
        unread: the part of it that no reader has confirmed.
        left: that may be written until the limit is reached; None where there is none.
        rate: written in a second; None where it was not measured.
        reads: somebody reads the slot.
        transactions: the oldest that are open, where they hold back most of it; else empty.
    """

    limit: int | None
    held: int
    unread: int
    left: int | None
    rate: float | None
    reads: bool
    transactions: str = ""

    @property
    def used(self) -> float:
        """The share of the limit that is used up; 0 where there is none."""
        if self.limit is None or self.left is None:
            return 0.0
        if self.limit <= 0:  # max_slot_wal_keep_size = 0 is allowed: nothing may be held back
            return 1.0 if self.left <= 0 else 0.0
        return min(max(1 - self.left / self.limit, 0.0), 1.0)

    @property
    def tiny(self) -> bool:
        """Whether the limit is so small that a slot passes it in ordinary running, at each segment or two."""
        return self.limit is not None and self.limit < NOTABLE_BYTES

    @property
    def seconds_left(self) -> float | None:
        """Until the limit is reached at this rate; None where nothing says so."""
        return self.left / self.rate if self.left is not None and self.rate else None

    @property
    def cause(self) -> str:
        """What holds it back, in words; empty where too little is held to tell."""
        if self.held < NOTABLE_BYTES:
            return ""
        if not self.reads:
            return "nobody reads the slot"
        if self.transactions:
            kept = megabytes(self.held - self.unread)
            return f"{kept} of it since the oldest open transaction: {self.transactions}"
        return f"the reader is {megabytes(self.unread)} behind (a slow lake, or a large transaction)"

    @property
    def said(self) -> str:
        """All of it in one line."""
        parts = [f"{megabytes(self.held)} of WAL held back"]
        if self.limit is None:
            parts.append("no limit but the server's disk, whose room PostgreSQL does not tell")
        else:
            parts.append(
                f"{megabytes(self.left or 0)} may be written until max_slot_wal_keep_size "
                f"({megabytes(self.limit)}) is reached"
            )
        if self.rate is not None:
            left = "" if self.seconds_left is None else f": {duration(self.seconds_left)} left"
            parts.append(f"{self.rate / 1e6:,.1f} MB/s is written now{left}")
        return "; ".join([*parts, *filter(None, [self.cause])])


def read_budget(
    connection: psycopg.Connection[Any], slot: SlotState, *, rate: float | None = None
) -> WalBudget | None:
    """Ask the server how much this slot holds back; None of a standby, whose slots are its primary's.

    Args:
        connection: in autocommit mode.
        slot: as read a moment ago.
        rate: bytes of WAL a second, where it was measured.
    """
    head = primary_log_end(connection)
    if head is None:
        return None
    row = connection.execute(_LIMIT_QUERY).fetchone()
    slots, always = (-1, 0) if row is None else row
    # The server keeps that much anyway, so a smaller limit of slots means this one.
    limit = None if slots == -1 else max(slots, always) << 20
    held = max(head - slot.restart, 0) if slot.restart > ZERO else 0
    unread = min(max(head - slot.confirmed_flush, 0), held)
    reads = slot.active_pid is not None
    old = reads and held >= NOTABLE_BYTES and held - unread > unread
    return WalBudget(
        limit=limit,
        held=held,
        unread=unread,
        left=None if limit is None or slot.safe_wal_size is None else max(slot.safe_wal_size, 0),
        rate=rate,
        reads=reads,
        transactions=running_transactions(connection) if old else "",
    )


def rate_of(before: Lsn, after: Lsn, seconds: float) -> float:
    """Bytes of WAL written in a second between two looks at its end."""
    return max(after - before, 0) / max(seconds, 0.001)


def megabytes(size: float) -> str:
    """Bytes in MB, as PostgreSQL counts them in its settings."""
    return f"{size / (1 << 20):,.0f} MB"


def duration(seconds: float) -> str:
    """A time that is left, as exactly as it is known."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.0f} h"
