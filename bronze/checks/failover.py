"""Findings about failover slots, from the primary alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.checks.finding import Finding
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.setup.failover import SINCE, failover_command, require_support, without_failover

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.postgres.services import Service
    from deltasmelt.bronze.setup.slot import SlotState

_AT_STANDBY: Final = (
    "at each standby: sync_replication_slots = on, hot_standby_feedback = on, primary_slot_name, "
    "and a dbname in primary_conninfo"
)


def failover_findings(
    connection: psycopg.Connection[Any], source: SourceSettings, slot: SlotState | None, service: Service
) -> Iterator[Finding]:
    """Yield findings about failover, from the primary alone; `slot` is None before the slot exists."""
    subject = f"slot {source.slot}"
    try:
        require_support(connection.info.server_version, source)
    except DefiniteError as error:
        yield Finding.of(error, "source.failover")
    if connection.info.server_version < SINCE:
        return
    slot_names, slots = _standbys(connection)
    if not source.failover:
        if slot_names:
            yield Finding(
                level="info",
                code="failover-not-asked",
                subject=subject,
                message="the server delays changes for its standbys (synchronized_standby_slots), but the "
                "standbys do not synchronize this slot: a failover would resnapshot every table",
                remedy="source.failover: true",
            )
        return
    if slot is not None and slot.plugin and not slot.failover:
        if source.manage:
            yield Finding(
                level="info",
                code="failover-to-do",
                subject=subject,
                message="is not synchronized to standbys; the next start runs: "
                f"{failover_command(source.slot)};",
            )
        else:
            yield Finding.of(without_failover(source), subject)
    if not slot_names:
        physical = f"; physical slots: {', '.join(sorted(slots))}" if slots else ""
        yield Finding(
            level="warning",
            code="failover-standbys-unnamed",
            subject="synchronized_standby_slots",
            message="synchronized_standby_slots names no standby, so the server may send changes that no "
            "standby has; after a failover bronze would be ahead of the new primary" + physical,
            remedy=f"{service.setting('synchronized_standby_slots', '<slot of the standby>')} {_AT_STANDBY}",
        )
    for name in slot_names:
        if slots.get(name):
            continue
        state = "exists, but no standby uses it" if name in slots else "does not exist"
        yield Finding(
            level="warning",
            code="failover-standby-away",
            subject="synchronized_standby_slots",
            message=f"the physical slot {name} in synchronized_standby_slots {state}; the stream waits until "
            "this standby has received all changes",
            remedy=f"start this standby, or remove its slot from synchronized_standby_slots; {_AT_STANDBY}",
        )


def _standbys(connection: psycopg.Connection[Any]) -> tuple[list[str], dict[str, bool]]:
    """Return the slots that the setting names, and all physical slots, each with whether in use."""
    row = connection.execute("SELECT current_setting('synchronized_standby_slots')").fetchone()
    slot_names = (
        [] if row is None else [name.strip().strip('"') for name in row[0].split(",") if name.strip()]
    )
    slots = connection.execute(
        "SELECT slot_name, active FROM pg_replication_slots WHERE slot_type = 'physical' AND NOT temporary"
    ).fetchall()
    return slot_names, dict(slots)
