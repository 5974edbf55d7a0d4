"""How near a slot is to being lost to ``max_slot_wal_keep_size``. Pure.

PostgreSQL docs: https://www.postgresql.org/docs/current/view-pg-replication-slots.html (wal_status).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bronze.setup.slot import SlotState

SHORT_SECONDS: Final = 600.0
"""Time left below which it is said, longer where copies take longer."""


class RiskLevel(IntEnum):
    """SHORT: little time is left; NEXT_CHECKPOINT: it is past the limit, the next checkpoint ends it."""

    NONE = 0
    SHORT = 1
    NEXT_CHECKPOINT = 2


@dataclass(frozen=True, slots=True)
class SlotRisk:
    """What threatens a slot.

    Attributes:
        level: how near it is.
        said: in words, with the remedy; empty where nothing threatens.
    """

    level: RiskLevel
    said: str = ""


def slot_risk(slot: SlotState, seconds_left: float | None, copies_left: float | None) -> SlotRisk:
    """What threatens a slot now.

    Args:
        slot: as read.
        seconds_left: until the log that may still be written is used up, at the present rate; None where that
            is not known or there is no limit.
        copies_left: seconds that copies of tables will still take; None where none are under way.
    """
    raise_limit = "raise max_slot_wal_keep_size (ALTER SYSTEM …; SELECT pg_reload_conf())"
    if slot.wal_status == "unreserved":
        said = f"the slot is lost at the server's next checkpoint unless the reader catches up: {raise_limit}"
        return SlotRisk(RiskLevel.NEXT_CHECKPOINT, said)
    needed = max(SHORT_SECONDS, copies_left or 0.0)
    if slot.wal_status == "lost" or seconds_left is None or seconds_left >= needed:
        return SlotRisk(RiskLevel.NONE)
    left = f"{seconds_left:.0f} s" if seconds_left < 120 else f"{seconds_left / 60:.0f} min"
    while_copying = (
        "" if copies_left is None else f", while the snapshots of tables take {copies_left:.0f} s more"
    )
    return SlotRisk(
        RiskLevel.SHORT, f"at the present rate the slot is lost in {left}{while_copying}: {raise_limit}"
    )
