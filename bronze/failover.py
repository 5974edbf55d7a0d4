"""Failover slots: standbys keep a copy of the slot, so that the stream goes on where one is promoted.

PostgreSQL 17 and later, where `source.failover` asks for it. Three things must come together, and only two of
them can be seen at the primary: the slot is marked, and ``synchronized_standby_slots`` names the standbys'
physical slots. That setting keeps a walsender from sending what no named standby has yet; without it bronze
may be ahead of the server that takes over, which is then refused (`bronze.timeline`). The third,
``sync_replication_slots`` and ``hot_standby_feedback``, is set at each standby.

A slot that exists is marked by a command of the replication protocol; no SQL function does it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bronze.conninfo import describe, user_and_database
from bronze.errors import DefiniteError
from bronze.findings import Finding
from bronze.identifiers import quote_identifier, quote_literal
from bronze.replication import ReplicationConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from bronze.managed import Service
    from bronze.settings import SourceSettings
    from bronze.slots import SlotState

SINCE: Final = 170000
_AT_STANDBY: Final = (
    "at each standby: sync_replication_slots = on, hot_standby_feedback = on, primary_slot_name, "
    "and a dbname in primary_conninfo"
)


def making(source: SourceSettings) -> str:
    """The SQL that makes the slot, without a semicolon."""
    failover = ", failover => true" if source.failover else ""
    return f"SELECT pg_create_logical_replication_slot({quote_literal(source.slot)}, 'pgoutput'{failover})"


def require_support(version: int, source: SourceSettings) -> None:
    """Refuse `source.failover` where the server has no such thing. Pure.

    Raises:
        DefiniteError: ``failover-unsupported``.
    """
    if not source.failover or version >= SINCE:
        return
    raise DefiniteError(
        f"source.failover needs PostgreSQL {SINCE // 10000}, the server is {version // 10000}",
        code="failover-unsupported",
        where=describe(source),
        remedy="remove source.failover, or upgrade the server; before 17 a promoted standby has no slot, and "
        "`smelt snapshot FILE --all` takes every table again there",
    )


def mark(source: SourceSettings) -> None:
    """Mark the slot, which nobody reads now, as one that standbys keep.

    Raises:
        DefiniteError: ``slot-failover-missing``: `source.manage` is false; it names the command.
        SmeltError: the server refused, or cannot be asked.
    """
    if not source.manage:
        raise _unmarked(source)
    connection = ReplicationConnection(source, application_name="deltasmelt failover")
    try:
        connection.query(_command(quote_identifier(source.slot)))
    finally:
        connection.close()


def failover_findings(
    connection: psycopg.Connection[Any], source: SourceSettings, slot: SlotState | None, service: Service
) -> Iterator[Finding]:
    """Findings about failover, as far as the primary shows it.

    Args:
        connection: idle or in a transaction.
        source: names the slot, and says whether it is to be kept.
        slot: the pipeline's, where there is one.
        service: how settings are changed there.
    """
    subject = f"slot {source.slot}"
    try:
        require_support(connection.info.server_version, source)
    except DefiniteError as error:
        yield Finding.of(error, "source.failover")
    if connection.info.server_version < SINCE:
        return
    named, slots = _standbys(connection)
    if not source.failover:
        if named:
            yield Finding(
                "info", "failover-not-asked", subject,
                "the server holds changes back for its standbys (synchronized_standby_slots), but they are "
                "not asked to keep this slot: after a failover every table would be taken again",
                "source.failover: true",
            )  # fmt: skip
        return
    if slot is not None and slot.plugin and not slot.failover:
        if source.manage:
            yield Finding(
                "info", "failover-to-do", subject,
                f"is not kept by standbys; the next start runs: {_command(source.slot)};",
            )  # fmt: skip
        else:
            yield Finding.of(_unmarked(source), subject)
    if not named:
        known = f"; physical slots: {', '.join(sorted(slots))}" if slots else ""
        yield Finding(
            "warning", "failover-standbys-unnamed", "synchronized_standby_slots",
            "it names no standby, so the server may send us changes that no standby has; after a failover "
            "bronze would be ahead of the new primary" + known,
            f"{service.setting('synchronized_standby_slots', '<slot of the standby>')} {_AT_STANDBY}",
        )  # fmt: skip
    for name in named:
        if slots.get(name):
            continue
        state = "exists, but no standby uses it" if name in slots else "does not exist"
        yield Finding(
            "warning", "failover-standby-away", "synchronized_standby_slots",
            f"the physical slot {name} that it names {state}; the stream waits until that standby has all",
            f"start that standby, or take its slot out of synchronized_standby_slots; {_AT_STANDBY}",
        )  # fmt: skip


def _command(slot: str) -> str:
    return f"ALTER_REPLICATION_SLOT {slot} (FAILOVER true)"


def _unmarked(source: SourceSettings) -> DefiniteError:
    user, database = user_and_database(source)
    return DefiniteError(
        f"replication slot {source.slot} is not kept by standbys, and source.failover asks for it",
        code="slot-failover-missing",
        where=describe(source),
        remedy=f'run, while nobody reads the slot: psql "dbname={database} user={user} replication=database" '
        f'-c "{_command(source.slot)}" (or set source.manage: true)',
    )


def _standbys(connection: psycopg.Connection[Any]) -> tuple[list[str], dict[str, bool]]:
    """The slots that the setting names, and the physical slots there are: name, whether one is in use."""
    row = connection.execute("SELECT current_setting('synchronized_standby_slots')").fetchone()
    named = [] if row is None else [name.strip().strip('"') for name in row[0].split(",") if name.strip()]
    slots = connection.execute(
        "SELECT slot_name, active FROM pg_replication_slots WHERE slot_type = 'physical' AND NOT temporary"
    ).fetchall()
    return named, dict(slots)
