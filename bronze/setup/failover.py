"""Failover slots: standbys keep a copy of the slot, so that the stream continues after a promotion.

Available in PostgreSQL 17 and later, if `source.failover` is true. Three conditions must hold, and the
primary shows only two: the slot is marked, and ``synchronized_standby_slots`` names the standbys' physical
slots. The setting makes a walsender hold back changes until the named standbys have received them. Without
the setting bronze may be ahead of the promoted standby. The reader then refuses the standby
(`bronze.stream.timeline`). The third condition, ``sync_replication_slots`` and ``hot_standby_feedback``, is
set at each standby.

A command of the replication protocol marks an existing slot; no SQL function can.

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
    """Return the SQL that creates the slot, without a semicolon."""
    failover = ", failover => true" if source.failover else ""
    return f"SELECT pg_create_logical_replication_slot({quote_literal(source.slot)}, 'pgoutput'{failover})"


def require_support(version: int, source: SourceSettings) -> None:
    """Refuse `source.failover` if the server does not support failover slots. Pure.

    Raises:
        DefiniteError: ``failover-unsupported``.
    """
    if not source.failover or version >= SINCE:
        return
    raise DefiniteError(
        f"source.failover needs PostgreSQL {SINCE // 10000}, the server is {version // 10000}",
        code="failover-unsupported",
        where=address_of(source),
        remedy="remove source.failover, or upgrade the server; before PostgreSQL 17 a promoted standby has "
        "no slot, and `smelt snapshot FILE --all` resnapshots every table after a failover",
    )


def enable_failover(source: SourceSettings) -> None:
    """Mark the slot, which no session reads now, for standbys.

    Raises:
        DefiniteError: ``slot-failover-missing``: `source.manage` is false; the remedy has the command.
        SmeltError: the server refused the command, or does not answer.
    """
    if not source.manage:
        raise without_failover(source)
    connection = ReplicationConnection(source, application_name="deltasmelt failover")
    try:
        connection.query(failover_command(quote_identifier(source.slot)))
    finally:
        connection.close()


def failover_command(slot: str) -> str:
    """Return the command of the replication protocol that marks a slot."""
    return f"ALTER_REPLICATION_SLOT {slot} (FAILOVER true)"


def without_failover(source: SourceSettings) -> DefiniteError:
    """Return the error of a slot that should be marked for standbys, but that the reader may not mark."""
    user, database = user_and_database(source)
    return DefiniteError(
        f"replication slot {source.slot} is not synchronized to standbys, and source.failover requires this",
        code="slot-failover-missing",
        where=address_of(source),
        remedy=f'run, while no reader uses the slot: psql "dbname={database} user={user} '
        f'replication=database" -c "{failover_command(source.slot)}" (or set source.manage: true)',
    )
