"""A fingerprint of the publication's way to carry each table: it differs once a change may be missing.

A table that is removed from the publication and added again leaves no trace in the stream: the changes of the
time between are missing. So are changes of temporarily unpublished operations, changes behind a temporary row
filter or column list, and changes while a publication is dropped and recreated. The catalog keeps the trace.
Each such statement on the publication inserts a row with a new OID (``pg_publication_rel``,
``pg_publication_namespace``, ``pg_publication``), or rewrites the publication's row, which changes the row's
``xmin``. `fingerprints` combines the values into a number for each table. `bronze.store.gaps` stores the
number with bronze and compares the number in each poll. A removal is therefore detected between two polls and
while no reader ran.

Different fingerprints do not prove a missing change (the publication's owner may have changed). Equal
fingerprints prove that no change is missing. If the fingerprints differ, the table gets a new snapshot.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.postgres.unnamed import unnamed_tables

if TYPE_CHECKING:
    from collections.abc import Iterable

    import psycopg

    from deltasmelt.bronze.identifiers import TableName

# The fingerprint of a table with a problem, whose changes the reader skips. A snapshot therefore brings the
# skipped changes once the problem is solved.
NOT_CARRIED: Final = 0

SINCE_SCHEMAS: Final = 150000
"""First version whose publications may carry schemas, column lists and row filters."""


def fingerprints(
    connection: psycopg.Connection[Any], publication: str, tables: Iterable[TableName]
) -> dict[TableName, int]:
    """Return the present fingerprint of each table; `NOT_CARRIED` for a table outside of the publication.

    `connection` is idle, in autocommit mode. `tables` are ordinary tables and partitioned roots.
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
    oid, all_tables, row_id = row
    row_of_table = {
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
    numbers = {}
    for table in tables:
        direct, schema = row_of_table.get((table.schema, table.name)), schemas.get(table.schema)
        carried = all_tables or direct is not None or schema is not None
        numbers[table] = _number(f"{row_id}|{direct}|{schema}") if carried else NOT_CARRIED
    return numbers


def published_schemas(connection: psycopg.Connection[Any], publication: int) -> dict[str, str]:
    """Return the schemas that a publication carries as a whole; each with a text that a later ADD changes.

    `publication` is the publication's OID.
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
    """Return the numbers of the oldest running and of the next transaction; equal if none runs."""
    row = connection.execute(
        "SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint "
        "FROM pg_current_snapshot() AS s"
    ).fetchone()
    assert row is not None  # noqa: S101 - a function's row
    return int(row[0]), int(row[1])


def _number(text: str) -> int:
    """Return a 63-bit hash of a text, never 0."""
    return (int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1) or 1
