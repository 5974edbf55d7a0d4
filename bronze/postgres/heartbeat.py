"""Messages of deltasmelt in the server's log: the messages move the stream forward, without a row in bronze.

* *Transactional*: PostgreSQL decodes a non-transactional message at once, and no commit orders the message.
* *Committed locally*: a commit of a message never waits for a synchronous standby, which may be down.

PostgreSQL docs: https://www.postgresql.org/docs/current/functions-admin.html (pg_logical_emit_message).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.lsn import Lsn

if TYPE_CHECKING:
    import psycopg

HEARTBEAT_PREFIX: Final = "deltasmelt"
"""Prefix by which the decoder recognises the messages."""


def write_heartbeat(connection: psycopg.Connection[Any], purpose: str) -> Lsn:
    """Write a message and return the message's LSN; the commit record follows.

    `purpose` is the content, for people who read the log. `connection` is in autocommit mode.

    Raises:
        psycopg.Error: the server refused the message.
    """
    row = connection.execute(
        "SELECT pg_logical_emit_message(true, %s, %s)::text "
        "FROM set_config('synchronous_commit', 'local', true)",
        [HEARTBEAT_PREFIX, purpose],
    ).fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM has one row
    return Lsn.parse(row[0])
