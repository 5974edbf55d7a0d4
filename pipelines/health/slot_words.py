"""The slot in words: how it is, and what threatens it. The same for `smelt status`, the page and alerts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bronze.checks.slot_risk import RiskLevel, SlotRisk, slot_risk

if TYPE_CHECKING:
    from pipelines.health.status import Status


def slot_text(status: Status) -> str:
    """The slot in one line."""
    slot = status.slot
    if slot is None:
        return "unknown" if status.source_error else "not created yet"
    read = f"read by backend {slot.active_pid}" if slot.active_pid is not None else "no reader"
    text = f"{slot.name}: wal_status {slot.wal_status}, {read}"
    if slot.invalidation:
        text += f", invalidated ({slot.invalidation})"
    return text


def slot_warnings(status: Status) -> list[str]:
    """What threatens the slot, before it is lost."""
    danger = slot_danger(status)
    return [danger.said] if danger.said else []


def slot_danger(status: Status) -> SlotRisk:
    """What threatens the slot; nothing where it is not known, or lost already."""
    if status.slot is None or status.slot.wal_status == "lost":
        return SlotRisk(RiskLevel.NONE)
    copies_left = None if status.snapshot is None else status.snapshot.seconds_left
    return slot_risk(status.slot, status.slot_seconds_left, copies_left, status.wal)
