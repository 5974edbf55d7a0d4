"""Which lake reads the slot, as the server itself knows it.

A slot gives each change once. A second lake that reads the slot takes changes away from the first one, and
each lake alone sees nothing wrong. PostgreSQL keeps no text with a slot, so the comment of the publication
names the lake of each slot that reads it, by the table id of `bronze.changes`.

**When.** A first start names its lake before it makes the slot, and checks the name again once the slot is
there (`bronze.reader.session_start`). Of two first starts at once the later name stands, and the other start
is refused. A lake that an earlier release began is named when its stream was found to go on.

**Where nothing is written.** With ``manage: false``, in a publication of another role, and over a comment
that somebody else wrote. There the server's own count of transactions that the slot has sent is the evidence
(`sent_transactions`). A crash of the server resets that count.

PostgreSQL docs: https://www.postgresql.org/docs/current/sql-comment.html and
https://www.postgresql.org/docs/current/monitoring-stats.html (pg_stat_replication_slots).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.catalog.publication import MADE, is_made_by_us
from deltasmelt.bronze.identifiers import quote_identifier, quote_literal
from deltasmelt.bronze.postgres.connection import lock_timeout

if TYPE_CHECKING:
    import psycopg

    from deltasmelt.bronze.config.sections import SourceSettings

_READ: Final = "read by deltasmelt"
_SLOT: Final = re.compile(r"slot ([a-z0-9_]+) of lake ([0-9a-f-]{36})")


def lakes_of_slots(comment: str | None) -> dict[str, str]:
    """Return the id of the lake of each slot that a publication's comment names. Pure."""
    if comment is None or not comment.startswith((MADE, _READ)):
        return {}
    return dict(_SLOT.findall(comment))


def read_comment(connection: psycopg.Connection[Any], publication: str) -> str | None:
    """Return the comment of a publication; None where it has none, or does not exist."""
    row = connection.execute(
        "SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = %s", [publication]
    ).fetchone()
    return None if row is None else row[0]


def sent_transactions(connection: psycopg.Connection[Any], slot: str) -> int:
    """Return how many transactions a slot has sent to readers since the server last lost its statistics."""
    row = connection.execute(
        "SELECT total_txns FROM pg_stat_replication_slots WHERE slot_name = %s", [slot]
    ).fetchone()
    return 0 if row is None or row[0] is None else int(row[0])


def mark_slot(connection: psycopg.Connection[Any], source: SourceSettings, lake: str) -> None:
    """Name the lake that reads the slot in the publication's comment, where this role may write there.

    Args:
        connection: in autocommit mode.
        source: names slot and publication, and says by `manage` whether the publication may be changed.
        lake: table id of `bronze.changes`.

    Raises:
        psycopg.Error: the server refused it; `LockNotAvailable` where another session holds the publication.
    """
    name = source.publication
    if not source.manage or lakes_of_slots(read_comment(connection, name)).get(source.slot) == lake:
        return
    with connection.transaction():
        connection.execute(lock_timeout(source.timing.publication_lock).encode())
        connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"deltasmelt publication {name}"]
        )
        row = connection.execute(
            "SELECT pg_has_role(pubowner, 'USAGE'), obj_description(oid, 'pg_publication') "
            "FROM pg_publication WHERE pubname = %s",
            [name],
        ).fetchone()
        if row is None or not row[0] or not (row[1] is None or row[1].startswith((MADE, _READ))):
            return
        slots = {slot for (slot,) in connection.execute("SELECT slot_name FROM pg_replication_slots")}
        lakes = {slot: of for slot, of in lakes_of_slots(row[1]).items() if slot in slots}
        lakes[source.slot] = lake
        named = ", ".join(f"slot {slot} of lake {of}" for slot, of in sorted(lakes.items()))
        comment = f"{MADE if is_made_by_us(row[1]) else _READ}: {named}"
        connection.execute(
            f"COMMENT ON PUBLICATION {quote_identifier(name)} IS {quote_literal(comment)}".encode()
        )
