"""The server's own record of the lake that reads a slot.

A slot sends each change once. A second lake that reads the slot takes changes away from the first lake, and
each lake alone seems correct. PostgreSQL stores no text with a slot. The publication's comment therefore
names, for each slot that reads the publication, the slot's lake, by the table id of `bronze.changes`.

**When.** A first start names the lake before creating the slot, and checks the name again once the slot
exists (`bronze.reader.session_start`). With two concurrent first starts the later name remains, and the
earlier start is refused. A lake from an earlier release is named once the continuation of the stream is
verified.

**Where nothing is written.** With ``manage: false``, in a publication of another role, and over a foreign
comment. The evidence is then the server's own count of transactions that the slot has sent
(`sent_transactions`). A crash of the server resets the count.

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
    """Return the lake id of each slot in a publication's comment. Pure."""
    if comment is None or not comment.startswith((MADE, _READ)):
        return {}
    return dict(_SLOT.findall(comment))


def read_comment(connection: psycopg.Connection[Any], publication: str) -> str | None:
    """Return the comment of a publication; None without a comment or a publication."""
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
    """Name the lake that reads the slot in the publication's comment, if our role may write the comment.

    `lake` is the table id of the lake's `bronze.changes`. `connection` is in autocommit mode.

    Raises:
        psycopg.Error: the server refused the comment; `LockNotAvailable` if another session has locked the
            publication.
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
        lakes = {slot: lake_id for slot, lake_id in lakes_of_slots(row[1]).items() if slot in slots}
        lakes[source.slot] = lake
        named = ", ".join(f"slot {slot} of lake {lake_id}" for slot, lake_id in sorted(lakes.items()))
        comment = f"{MADE if is_made_by_us(row[1]) else _READ}: {named}"
        connection.execute(
            f"COMMENT ON PUBLICATION {quote_identifier(name)} IS {quote_literal(comment)}".encode()
        )
