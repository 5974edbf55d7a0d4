"""Members of a publication whose list or filter makes the application's UPDATEs and DELETEs fail.

PostgreSQL refuses each UPDATE and DELETE of a table whose column list lacks a column of the replica identity,
and of a table whose row filter reads a column outside of the replica identity. Under REPLICA IDENTITY FULL
PostgreSQL refuses each list. A changed key causes this, also while no reader polls.

The queries read only the catalog and take no lock on a table. The columns of a stored filter are the numbers
in its expression tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.drift.membership import SINCE_SCHEMAS
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.postgres.partition_tree import TREE
from deltasmelt.bronze.postgres.unnamed import unnamed_tables

if TYPE_CHECKING:
    import psycopg

_LIMITED_QUERY: Final = """
    SELECT r.prrelid
    FROM pg_publication_rel r
    JOIN pg_publication p ON p.oid = r.prpubid
    WHERE p.pubname = %s AND (p.pubupdate OR p.pubdelete)
      AND (r.prattrs IS NOT NULL OR r.prqual IS NOT NULL)
"""
_HARMFUL_QUERY: Final = rf"""{TREE},
    limited AS MATERIALIZED (
        SELECT r.prrelid AS root,
               r.prattrs IS NOT NULL AS has_list,
               ARRAY(SELECT a.attname::text FROM pg_attribute a
                     WHERE a.attrelid = r.prrelid AND a.attnum = ANY (r.prattrs::int2[])) AS listed,
               ARRAY(SELECT a.attname::text FROM pg_attribute a
                     WHERE a.attrelid = r.prrelid AND a.attnum IN (
                         SELECT v[1]::int FROM regexp_matches(r.prqual::text, ':varattno (\d+)', 'g') v)
               ) AS filtered
        FROM pg_publication_rel r
        JOIN pg_publication p ON p.oid = r.prpubid
        WHERE p.pubname = %(publication)s AND r.prrelid = ANY (%(oids)s::oid[])
    )
    SELECT DISTINCT n.nspname, c.relname
    FROM limited l
    JOIN tree ON tree.root = l.root
    JOIN pg_class leaf ON leaf.oid = tree.oid AND leaf.relkind = 'r'
    CROSS JOIN LATERAL (
        SELECT ARRAY(
            SELECT a.attname::text
            FROM pg_index i
            JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[])
            WHERE i.indrelid = leaf.oid
              AND CASE leaf.relreplident WHEN 'd' THEN i.indisprimary
                                         WHEN 'i' THEN i.indisreplident ELSE false END)
    ) AS identity (names)
    JOIN pg_class c ON c.oid = l.root
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid <> ALL (%(unnamed)s::oid[])
      AND (l.has_list AND (leaf.relreplident = 'f' OR NOT identity.names <@ l.listed)
           OR leaf.relreplident <> 'f' AND NOT l.filtered <@ identity.names)
"""


def limited_members(connection: psycopg.Connection[Any], publication: str) -> list[int]:
    """Return the members of a publication with a list or a filter, by oid."""
    if connection.info.server_version < SINCE_SCHEMAS:
        return []
    return [oid for (oid,) in connection.execute(_LIMITED_QUERY, [publication])]


def harmful_members(connection: psycopg.Connection[Any], publication: str) -> frozenset[TableName]:
    """Return the members of a publication whose UPDATEs and DELETEs fail because of a list or a filter."""
    oids = limited_members(connection, publication)
    if not oids:
        return frozenset()
    parameters = {"publication": publication, "oids": oids, "unnamed": list(unnamed_tables(connection))}
    return frozenset(TableName(*row) for row in connection.execute(_HARMFUL_QUERY, parameters))
