"""The sessions that hold a lock that another session waits for, as text for a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from deltasmelt.bronze.identifiers import TableName


LET_GO: Final = "another session, which has released the lock since then"
"""The text for a lock that no session holds any more."""


_WAITING_QUERY: Final = """
    WITH locks AS MATERIALIZED (SELECT * FROM pg_locks),
    waiters AS MATERIALIZED (
        SELECT DISTINCT l.pid
        FROM locks l
        JOIN locks ours ON ours.pid = ANY (%(pids)s::int[])
                       AND ours.granted
                       AND ours.locktype = l.locktype
                       AND ours.database IS NOT DISTINCT FROM l.database
                       AND ours.relation IS NOT DISTINCT FROM l.relation
                       AND ours.virtualxid IS NOT DISTINCT FROM l.virtualxid
                       AND ours.transactionid IS NOT DISTINCT FROM l.transactionid
        WHERE NOT l.granted
    )
    SELECT w.pid, coalesce(left(a.query, 80), '')
    FROM waiters w
    LEFT JOIN pg_stat_activity a ON a.pid = w.pid
    WHERE pg_blocking_pids(w.pid) && %(pids)s::int[]
    LIMIT 1
"""
"""pg_locks is read again each time, and shows locks of every role; pg_stat_activity does neither.

``pg_blocking_pids`` locks the server's whole lock table. The query therefore calls the function only for
sessions that wait for an object that the reader has locked. An application whose sessions wait for each
other's rows is not slowed down.
"""


_HOLDERS_QUERY: Final = """
    WITH wanted (number, oid) AS MATERIALIZED (
        SELECT number, to_regclass(name)::oid FROM unnest(%s::text[]) WITH ORDINALITY AS w (name, number)
    )
    SELECT DISTINCT ON (w.number) w.number, l.pid, l.mode, coalesce(left(a.query, 80), ''), p.gid, p.owner
    FROM wanted w
    JOIN pg_locks l ON l.relation = w.oid AND l.locktype = 'relation'
    LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    LEFT JOIN pg_locks x ON l.pid IS NULL AND x.pid IS NULL AND x.locktype = 'transactionid'
                        AND x.virtualtransaction = l.virtualtransaction
    LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
    WHERE l.pid IS DISTINCT FROM pg_backend_pid() AND l.mode = ANY (%s)
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
    ORDER BY w.number, l.granted DESC, l.pid
"""
"""A prepared transaction has no process; the lock on its own transaction number leads to its name."""

END_HOLDER: Final = (
    "to end the session that holds the lock: SELECT pg_terminate_backend(…); a prepared transaction: COMMIT "
    "PREPARED '…'; or ROLLBACK PREPARED '…';"
)


def waiting_for(connection: psycopg.Connection[Any], pids: Sequence[int]) -> tuple[int, str] | None:
    """Return a session that waits for a lock of `pids`, and its statement; connection in autocommit mode."""
    row = connection.execute(_WAITING_QUERY, {"pids": list(pids)}).fetchone()
    return None if row is None else (row[0], row[1])


def describe_holders(
    connection: psycopg.Connection[Any], tables: Sequence[TableName], modes: Sequence[str]
) -> dict[TableName, str]:
    """Return as text the sessions that hold, or wait for, a lock of these modes, for each locked table."""
    names = [table.quoted for table in tables]
    rows = connection.execute(_HOLDERS_QUERY, [names, list(modes)])
    return {
        tables[number - 1]: (f"backend {pid}" if pid else f"prepared transaction {gid} of {owner}")
        + f", {mode}"
        + (f" ({query})" if query else "")
        for number, pid, mode, query, gid, owner in rows
    }


def describe_holder(connection: psycopg.Connection[Any], table: TableName, modes: Sequence[str]) -> str:
    """Return the text of `describe_holders` for a table that was locked."""
    return describe_holders(connection, [table], modes).get(table, LET_GO)
