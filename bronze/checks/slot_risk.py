"""How near a slot is to being lost to ``max_slot_wal_keep_size``, or to filling the server's disk. Pure.

Without that limit (PostgreSQL's default) a slot is never lost, and holds WAL back until the disk is full,
which stops the server itself. PostgreSQL tells no free room, so there an absolute amount counts.

PostgreSQL docs: https://www.postgresql.org/docs/current/view-pg-replication-slots.html (wal_status).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.checks.wal_budget import NOTABLE_BYTES, duration, megabytes

if TYPE_CHECKING:
    from deltasmelt.bronze.checks.wal_budget import WalBudget
    from deltasmelt.bronze.setup.slot import SlotState

SHORT_SECONDS: Final = 600.0
"""Time left below which it is said, longer where copies take longer."""

_HALF: Final = 0.5
_CALM: Final = 0.4
"""Share of the budget below which its half counts as left behind; it goes in steps of 16 MB, a segment."""
MUCH_BYTES: Final = 10 << 30
"""Held WAL that counts as much where there is no limit."""
_MOST_BYTES: Final = 50 << 30
"""Held WAL without a limit that many a disk does not hold."""


class RiskLevel(IntEnum):
    """How near it is.

    MUCH: half of the WAL that the server keeps for slots is used up, and more than every slot holds at times;
    without a limit, `MUCH_BYTES`. SHORT: little time is left; without a limit, five times as much is held.
    NEXT_CHECKPOINT: it is past the limit, the next checkpoint ends it.
    """

    NONE = 0
    MUCH = 1
    SHORT = 2
    NEXT_CHECKPOINT = 3


@dataclass(frozen=True, slots=True)
class SlotRisk:
    """What threatens a slot.

    Attributes:
        level: how near it is.
        said: in words, with the remedy; empty where nothing threatens.
    """

    level: RiskLevel
    said: str = ""


def slot_risk(
    slot: SlotState,
    seconds_left: float | None,
    copies_left: float | None,
    budget: WalBudget | None = None,
) -> SlotRisk:
    """What threatens a slot now.

    Args:
        slot: as read.
        seconds_left: until the log that may still be written is used up, at the present rate; None where that
            is not known or there is no limit.
        copies_left: seconds that copies of tables will still take; None where none are under way. They hold
            no WAL back, but they take from the stream's share of machine and lake.
        budget: what the slot holds back, and why; None where it was not asked.
    """
    raise_limit = "raise max_slot_wal_keep_size (ALTER SYSTEM …; SELECT pg_reload_conf())"
    if budget is not None and budget.cause:
        raise_limit = f"{budget.cause}; {raise_limit}"
    if slot.wal_status == "unreserved":
        said = f"the slot is lost at the server's next checkpoint unless the reader catches up: {raise_limit}"
        return SlotRisk(RiskLevel.NEXT_CHECKPOINT, said)
    needed = max(SHORT_SECONDS, copies_left or 0.0)
    if slot.wal_status == "lost":
        return SlotRisk(RiskLevel.NONE)
    if seconds_left is None or seconds_left >= needed:
        return SlotRisk(RiskLevel.NONE) if budget is None else _by_amount(budget, seconds_left, raise_limit)
    left = duration(seconds_left)
    while_copying = (
        "" if copies_left is None else f", while the snapshots of tables take {copies_left:.0f} s more"
    )
    return SlotRisk(
        RiskLevel.SHORT, f"at the present rate the slot is lost in {left}{while_copying}: {raise_limit}"
    )


def stays_high(budget: WalBudget | None) -> bool:
    """Check whether so much is held that `RiskLevel.MUCH`, once reported, is not over."""
    if budget is None:
        return False
    return budget.used > _CALM if budget.limit is not None else budget.held > MUCH_BYTES * _CALM / _HALF


def _by_amount(budget: WalBudget, seconds_left: float | None, raise_limit: str) -> SlotRisk:
    """Judge what is held, whatever its pace."""
    if budget.limit is None and budget.held >= MUCH_BYTES:
        said = (
            f"{megabytes(budget.held)} of WAL is held back, and only the server's disk limits it: "
            f"{budget.cause}; end that, then set max_slot_wal_keep_size to what the disk can spare, well "
            "above what is held"
        )
        return SlotRisk(RiskLevel.MUCH if budget.held < _MOST_BYTES else RiskLevel.SHORT, said)
    if budget.limit is None or budget.left is None or budget.used < _HALF or budget.held < NOTABLE_BYTES:
        return SlotRisk(RiskLevel.NONE)  # half of a small limit comes and goes with each segment
    rest = "" if seconds_left is None else f" ({duration(seconds_left)} at the present rate)"
    said = (
        f"{budget.used:.0%} of the {megabytes(budget.limit)} of WAL that the server keeps for it is used "
        f"up, {megabytes(budget.left)} is left{rest}: {raise_limit}"
    )
    return SlotRisk(RiskLevel.MUCH, said)
