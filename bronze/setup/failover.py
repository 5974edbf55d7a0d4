"""Failover slots: standbys keep a copy of the slot, so that the stream goes on where one is promoted.

PostgreSQL 17 and later, where `source.failover` asks for it. Three things must come together, and only two of
them can be seen at the primary: the slot is marked, and ``synchronized_standby_slots`` names the standbys'
physical slots. That setting keeps a walsender from sending what no named standby has yet; without it bronze
may be ahead of the server that takes over, which is then refused (`bronze.stream.timeline`). The third,
``sync_replication_slots`` and ``hot_standby_feedback``, is set at each standby.

A slot that exists is marked by a command of the replication protocol; no SQL function does it.

PostgreSQL docs: https://www.postgresql.org/docs/current/logical-replication-failover.html.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.identifiers import quote_identifier, quote_literal
from deltasmelt.bronze.postgres.conninfo import address_of, user_and_database
from deltasmelt.bronze.postgres.replication import ReplicationConnection

if TYPE_CHECKING:
    from deltasmelt.bronze.config.sections import SourceSettings

SINCE: Final = 170000


def slot_statement(source: SourceSettings) -> str:
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
        where=address_of(source),
        remedy="remove source.failover, or upgrade the server; before 17 a promoted standby has no slot, and "
        "`smelt snapshot FILE --all` resnapshots every table there",
    )


def enable_failover(source: SourceSettings) -> None:
    """Mark the slot, which nobody reads now, as one that standbys keep.

    Raises:
        DefiniteError: ``slot-failover-missing``: `source.manage` is false; it names the command.
        SmeltError: the server refused, or cannot be asked.
    """
    if not source.manage:
        raise without_failover(source)
    connection = ReplicationConnection(source, application_name="deltasmelt failover")
    try:
        connection.query(failover_command(quote_identifier(source.slot)))
    finally:
        connection.close()


def failover_command(slot: str) -> str:
    """The command of the replication protocol that marks a slot."""
    return f"ALTER_REPLICATION_SLOT {slot} (FAILOVER true)"


def without_failover(source: SourceSettings) -> DefiniteError:
    """A slot that is to be kept by standbys and is not, and that we may not mark."""
    user, database = user_and_database(source)
    return DefiniteError(
        f"replication slot {source.slot} is not kept by standbys, and source.failover asks for it",
        code="slot-failover-missing",
        where=address_of(source),
        remedy=f'run, while nobody reads the slot: psql "dbname={database} user={user} replication=database" '
        f'-c "{failover_command(source.slot)}" (or set source.manage: true)',
    )
