"""The replication slot: PostgreSQL's record of the position up to which the pipeline has read.

The reader finds or creates the slot (`bronze.setup.create_slot`). A slot of another plugin, database or kind,
a slot with another reader, or a slot without its log is refused with a remedy. No function here moves or
drops a slot.

PostgreSQL docs: https://www.postgresql.org/docs/current/logicaldecoding-explanation.html and
https://www.postgresql.org/docs/current/view-pg-replication-slots.html.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.identifiers import quote_literal
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.postgres.conninfo import address_of
from deltasmelt.bronze.setup.failover import SINCE

if TYPE_CHECKING:
    import psycopg

    from deltasmelt.bronze.config.sections import SourceSettings

PLUGIN: Final = "pgoutput"


@dataclass(frozen=True, slots=True)
class SlotState:
    """A replication slot as pg_replication_slots shows the slot."""

    name: str
    # name of the output plugin; empty for a physical slot
    plugin: str
    # every change before this LSN is confirmed; ZERO if none is
    confirmed_flush: Lsn
    # process id of the backend that reads the slot
    active_pid: int | None
    # `reserved`, `extended`, `unreserved` (about to be lost) or `lost`
    wal_status: str
    # bytes that may still be written before the slot is in danger; None without a limit
    safe_wal_size: int | None
    # name of the slot's database; empty for a physical slot
    database: str = ""
    temporary: bool = False
    # Reason why the slot can no longer be read; None for a readable slot. Versions 14 to 16 give a less exact
    # reason.
    invalidation: str | None = None
    # whether standbys keep a copy of the slot (PostgreSQL 17 and later)
    failover: bool = False
    # start of the log that the server keeps for the slot; ZERO if it keeps none
    restart: Lsn = ZERO


def read_slot(connection: psycopg.Connection[Any], name: str) -> SlotState | None:
    """Return the slot with this name on the whole server, or None."""
    version = connection.info.server_version
    if version >= 170000:
        invalidation = "invalidation_reason"
    elif version >= 160000:
        # 16 calls every invalidated slot conflicting; a slot without its log has no restart_lsn.
        invalidation = """CASE WHEN conflicting AND restart_lsn IS NOT NULL THEN 'conflict with recovery'
                               WHEN wal_status = 'lost' THEN 'wal_removed' END"""
    else:
        invalidation = "CASE WHEN wal_status = 'lost' THEN 'wal_removed' END"
    failover = "failover" if version >= SINCE else "false"
    row = connection.execute(
        f"""
        SELECT coalesce(plugin, ''), coalesce(database, ''), temporary, active_pid,
               confirmed_flush_lsn::text, wal_status, safe_wal_size, {invalidation},
               {failover}, restart_lsn::text
        FROM pg_replication_slots
        WHERE slot_name = %s
        """,
        [name],
    ).fetchone()
    if row is None:
        return None
    plugin, database, temporary, active_pid, confirmed, wal_status, safe, reason, failover, restart = row
    return SlotState(
        name=name,
        plugin=plugin,
        confirmed_flush=Lsn.parse(confirmed) if confirmed else ZERO,
        active_pid=active_pid,
        wal_status=wal_status or "reserved",
        safe_wal_size=safe,
        database=database,
        temporary=temporary,
        invalidation=reason,
        failover=failover,
        restart=Lsn.parse(restart) if restart else ZERO,
    )


def slot_problem(slot: SlotState, source: SourceSettings, database: str) -> DefiniteError | None:
    """Return why a slot in its present state can never serve the pipeline; None for a usable slot. Pure.

    `database` is the name of the connected database.
    """
    drop = f"SELECT pg_drop_replication_slot({quote_literal(slot.name)});"
    rename = "choose another name for source.slot"
    if not slot.plugin:
        code, problem, cure = "slot-physical", "is a physical slot, of a standby or a backup", rename
    elif slot.plugin != PLUGIN:
        code = "slot-wrong-plugin"
        problem, cure = (
            f"uses plugin {slot.plugin}, not {PLUGIN}",
            f"{rename}, or drop the slot if it is unused: {drop}",
        )
    elif slot.database != database:
        code = "slot-other-database"
        problem, cure = f"belongs to database {slot.database}, not {database}", rename
    elif slot.temporary:
        code, problem, cure = "slot-temporary", "is a temporary slot of another session", rename
    elif slot.invalidation is not None or slot.wal_status == "lost":
        code = "slot-lost"
        reason = slot.invalidation or "wal_removed"
        problem = f"is invalidated ({reason}): the slot has lost the changes after {slot.confirmed_flush}"
        cure = (
            f"{_invalidation_cure(slot.invalidation)}; then `smelt snapshot FILE --all` creates a new slot "
            "and resnapshots every table, deletes included (for a pipeline that has read nothing yet: "
            f"{drop})"
        )
    else:
        return None
    return DefiniteError(
        f"replication slot {slot.name} {problem}", code=code, where=address_of(source), remedy=cure
    )


def _invalidation_cure(reason: str | None) -> str:
    match reason:
        case "wal_level_insufficient":
            return "ALTER SYSTEM SET wal_level = logical; and restart PostgreSQL"
        case "idle_timeout":
            return "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf();"
        case "rows_removed" | "conflict with recovery":
            return "read from the primary, or set hot_standby_feedback = on at the standby"
    return "ALTER SYSTEM SET max_slot_wal_keep_size = '<more>'; SELECT pg_reload_conf();"
