"""How the publication carries each table, as a fingerprint that differs once it may have failed to.

A table that is taken out of the publication and put back leaves no trace in the stream: what was changed in
between is missing. The same for operations that are not published for a while, a row filter or a column list
that comes and goes, a publication that is dropped and recreated. The catalog keeps the trace: each of these
acts makes a new row, with an oid of its own (``pg_publication_rel``, ``pg_publication_namespace``,
``pg_publication``), or writes the publication's row again, which shows in its ``xmin``. `fingerprints`
folds what says so into one number per table. `bronze.store.gaps` keeps it with bronze and compares it at each
look, so that removing and putting back is noticed whether it happened between two looks or while no reader
ran.

Different fingerprints do not prove that a change is missing (the owner of the publication may have changed);
equal ones prove that none is. Where they differ the table gets a new snapshot.

A table that has a problem, for which the reader leaves its changes out, has the fingerprint 0. So a
snapshot brings its changes of that time when the problem is gone.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.postgres.unnamed import unnamed_tables

if TYPE_CHECKING:
    from collections.abc import Iterable

    import psycopg

    from deltasmelt.bronze.identifiers import TableName

NOT_CARRIED: Final = 0

SINCE_SCHEMAS: Final = 150000
"""Version whose publications may carry schemas, column lists and row filters."""


def fingerprints(
    connection: psycopg.Connection[Any], publication: str, tables: Iterable[TableName]
) -> dict[TableName, int]:
    """The fingerprint of each table now; `NOT_CARRIED` for one that the publication does not carry.

    Args:
        connection: idle, in autocommit mode.
        publication: its name.
        tables: ordinary tables and roots of partitions.
    """
    row = connection.execute(
        """
        SELECT oid, puballtables, concat_ws(' ', oid, xmin, pubinsert, pubupdate, pubdelete,
                                            pubtruncate, pubviaroot)
        FROM pg_publication WHERE pubname = %s
        """,
        [publication],
    ).fetchone()
    if row is None:
        return dict.fromkeys(tables, NOT_CARRIED)
    oid, all_tables, whole = row
    named = {
        (schema, name): text
        for schema, name, text in connection.execute(
            """
            SELECT n.nspname, c.relname, concat_ws(' ', r.oid, r.xmin, c.oid)
            FROM pg_publication_rel r
            JOIN pg_class c ON c.oid = r.prrelid
            JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE r.prpubid = %s AND c.oid <> ALL (%s::oid[])
            """,
            [oid, list(unnamed_tables(connection))],
        )
    }
    schemas = published_schemas(connection, oid)
    found = {}
    for table in tables:
        direct, schema = named.get((table.schema, table.name)), schemas.get(table.schema)
        carried = all_tables or direct is not None or schema is not None
        found[table] = _number(f"{whole}|{direct}|{schema}") if carried else NOT_CARRIED
    return found


def published_schemas(connection: psycopg.Connection[Any], publication: int) -> dict[str, str]:
    """Schemas that a publication carries as a whole; a text for each that a later ADD makes another.

    Args:
        connection: to the source.
        publication: its oid.
    """
    if connection.info.server_version < SINCE_SCHEMAS:
        return {}
    rows = connection.execute(
        """
        SELECT n.nspname, concat_ws(' ', p.oid, p.xmin)
        FROM pg_publication_namespace p
        JOIN pg_namespace n ON n.oid = p.pnnspid
        WHERE p.pnpubid = %s
        """,
        [publication],
    )
    return dict(rows.fetchall())


def transactions(connection: psycopg.Connection[Any]) -> tuple[int, int]:
    """Numbers of the oldest transaction that runs, and of the next one; without any they are the same."""
    row = connection.execute(
        "SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint "
        "FROM pg_current_snapshot() AS s"
    ).fetchone()
    assert row is not None  # noqa: S101 - a function's row
    return int(row[0]), int(row[1])


def _number(text: str) -> int:
    """63 bits that stand for a text; never 0."""
    return (int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1) or 1
