"""How near a slot is to being lost to ``max_slot_wal_keep_size``. Pure.

PostgreSQL docs: https://www.postgresql.org/docs/current/view-pg-replication-slots.html (wal_status).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from bronze.checks.wal_budget import NOTABLE_BYTES, duration, megabytes

if TYPE_CHECKING:
    from bronze.checks.wal_budget import WalBudget
    from bronze.setup.slot import SlotState

SHORT_SECONDS: Final = 600.0
"""Time left below which it is said, longer where copies take longer."""

_HALF: Final = 0.5
CALM: Final = 0.4
"""Share of the budget below which its half counts as left behind; it goes in steps of 16 MB, a segment."""


class RiskLevel(IntEnum):
    """How near it is.

    HALF: half of the WAL that the server keeps for slots is used up, and more than every slot holds at times.
    SHORT: little time is left. NEXT_CHECKPOINT: it is past the limit, the next checkpoint ends it.
    """

    NONE = 0
    HALF = 1
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
        if budget is None or budget.used < _HALF or budget.left is None or budget.limit is None:
            return SlotRisk(RiskLevel.NONE)
        if budget.held < NOTABLE_BYTES:  # half of a small limit comes and goes with each segment
            return SlotRisk(RiskLevel.NONE)
        rest = "" if seconds_left is None else f" ({duration(seconds_left)} at the present rate)"
        said = (
            f"{budget.used:.0%} of the {megabytes(budget.limit)} of WAL that the server keeps for it is used "
            f"up, {megabytes(budget.left)} is left{rest}: {raise_limit}"
        )
        return SlotRisk(RiskLevel.HALF, said)
    left = duration(seconds_left)
    while_copying = (
        "" if copies_left is None else f", while the snapshots of tables take {copies_left:.0f} s more"
    )
    return SlotRisk(
        RiskLevel.SHORT, f"at the present rate the slot is lost in {left}{while_copying}: {raise_limit}"
    )
