"""The danger that ``max_slot_wal_keep_size`` invalidates a slot, or that a slot fills the disk. Pure.

Without this limit (PostgreSQL's default) a slot is never lost, but holds back WAL until the disk is full. A
full disk stops the server itself. PostgreSQL does not report free disk space, so without a limit an absolute
amount counts.

PostgreSQL docs: https://www.postgresql.org/docs/current/view-pg-replication-slots.html (wal_status).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.checks.wal_budget import NOTABLE_BYTES
from deltasmelt.bronze.figures import estimate_text, setting_text

if TYPE_CHECKING:
    from deltasmelt.bronze.checks.wal_budget import WalBudget
    from deltasmelt.bronze.setup.slot import SlotState

SHORT_SECONDS: Final = 600.0
"""Remaining time below which the danger is reported; longer while copies take longer."""

_HALF: Final = 0.5
_CALM: Final = 0.4
"""Used share of the budget below which `RiskLevel.MUCH` is over; held WAL changes by segments of 16 MB."""
MUCH_BYTES: Final = 10 << 30
"""Held WAL that counts as much without a limit."""
_MOST_BYTES: Final = 50 << 30
"""Held WAL without a limit that exceeds many a disk."""


class RiskLevel(IntEnum):
    """The degree of the danger."""

    NONE = 0
    # half of the WAL that the server keeps for slots is used up, and more than every slot holds at times;
    # without a limit, `MUCH_BYTES`
    MUCH = 1
    # little time is left; without a limit, five times as much is held
    SHORT = 2
    # the slot is past the limit, and the next checkpoint ends the slot
    NEXT_CHECKPOINT = 3


@dataclass(frozen=True, slots=True)
class SlotRisk:
    """The danger for a slot."""

    level: RiskLevel
    # the text for people, with the remedy; empty without danger
    message: str = ""


def slot_risk(
    slot: SlotState,
    seconds_left: float | None,
    copies_left: float | None,
    budget: WalBudget | None = None,
) -> SlotRisk:
    """Return the present danger for a slot.

    Args:
        seconds_left: seconds until the remaining WAL is used up, at the present rate; None if unknown or
            without a limit.
        copies_left: seconds that copies of tables still take; None without running copies.
        budget: the WAL that the slot holds back, with the cause; None if unread.
    """
    raise_limit = "raise max_slot_wal_keep_size (ALTER SYSTEM …; SELECT pg_reload_conf())"
    if budget is not None and budget.cause:
        raise_limit = f"{budget.cause}; {raise_limit}"
    if slot.wal_status == "unreserved":
        text = f"the slot is lost at the server's next checkpoint unless the reader catches up: {raise_limit}"
        return SlotRisk(RiskLevel.NEXT_CHECKPOINT, text)
    # Copies hold back no WAL, but slow down the stream: both share machine and lake.
    short = max(SHORT_SECONDS, copies_left or 0.0)
    if slot.wal_status == "lost":
        return SlotRisk(RiskLevel.NONE)
    if seconds_left is None or seconds_left >= short:
        return SlotRisk(RiskLevel.NONE) if budget is None else _by_amount(budget, seconds_left, raise_limit)
    remaining = estimate_text(seconds_left)
    while_copying = "" if copies_left is None else f", while snapshots need {estimate_text(copies_left)} more"
    return SlotRisk(
        RiskLevel.SHORT, f"at the present rate the slot is lost in {remaining}{while_copying}: {raise_limit}"
    )


def stays_high(budget: WalBudget | None) -> bool:
    """Check whether the slot holds so much WAL that a reported `RiskLevel.MUCH` is not over."""
    if budget is None:
        return False
    return budget.used > _CALM if budget.limit is not None else budget.held > MUCH_BYTES * _CALM / _HALF


def _by_amount(budget: WalBudget, seconds_left: float | None, raise_limit: str) -> SlotRisk:
    """Judge the amount of held WAL, independent of the rate."""
    if budget.limit is None and budget.held >= MUCH_BYTES:
        text = (
            f"{setting_text(budget.held)} of WAL is held back, and only the server's disk limits the amount: "
            f"{budget.cause}; remove this cause, then set max_slot_wal_keep_size to an amount that the disk "
            "can spare, well above the WAL held back now"
        )
        return SlotRisk(RiskLevel.MUCH if budget.held < _MOST_BYTES else RiskLevel.SHORT, text)
    if budget.limit is None or budget.left is None or budget.used < _HALF or budget.held < NOTABLE_BYTES:
        return SlotRisk(RiskLevel.NONE)  # half of a small limit comes and goes with each segment
    estimate = "" if seconds_left is None else f" ({estimate_text(seconds_left)} at the present rate)"
    text = (
        f"the slot has used {budget.used:.0%} of the {setting_text(budget.limit)} of WAL that the server "
        f"keeps for the slot, {setting_text(budget.left)} is left{estimate}: {raise_limit}"
    )
    return SlotRisk(RiskLevel.MUCH, text)
