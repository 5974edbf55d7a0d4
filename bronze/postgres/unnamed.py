r"""Tables whose names no query can carry: a character of the name has no counterpart in UTF-8.

Every catalog query returns names, and a single inconvertible name makes the server refuse the whole result.
In a database with another encoding than UTF-8, the reader therefore finds the tables first, by bytes, without
conversion. Later queries leave the tables out by OID. Each of the tables has a separate error, with the bytes
of the name written as ``\xNN``; the rest of the tables continue. The check covers the names of the table, of
the schema, the columns and the unique indexes, and of a partitioned table's partitions. In the stream
`bronze.stream.encodings` skips the changes of the tables.

In any other name, the character ends the pipeline with an equal code:

* the name of a schema in the publication;
* the name of a type or role that a carried table uses;
* a label of an enum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.postgres.conversion import server_encoding, to_utf8

if TYPE_CHECKING:
    import psycopg

_QUERY: Final = """
    WITH names (oid, name) AS (
        SELECT c.oid, x.name
        FROM pg_class c
        JOIN pg_namespace n ON n.oid = c.relnamespace
        CROSS JOIN LATERAL (VALUES (n.nspname::text), (c.relname::text)) AS x (name)
        WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
        UNION ALL
        SELECT a.attrelid, a.attname::text FROM pg_attribute a WHERE a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT i.indrelid, x.relname::text
        FROM pg_index i
        JOIN pg_class x ON x.oid = i.indexrelid
        WHERE i.indisunique
    ),
    foreigners (oid, name) AS (
        SELECT oid, convert_to(name, getdatabaseencoding()) FROM names
    )
    SELECT f.oid, c.oid, c.relkind IN ('r', 'p') AND c.relpersistence = 'p', f.name,
           convert_to(n.nspname::text, getdatabaseencoding()),
           convert_to(c.relname::text, getdatabaseencoding())
    FROM foreigners f
    JOIN pg_class c ON c.oid = coalesce(pg_partition_root(f.oid)::oid, f.oid)
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND strpos(encode(f.name, 'escape'), chr(92)) > 0
"""
"""`encode` writes bytes beyond ASCII with a backslash; few names remain."""


class Unnamed(NamedTuple):
    """A relation with a name that cannot be converted."""

    # the name in question, as far as its characters are ASCII
    name: str
    # the relation's name for messages; for a partition, the root's
    table: TableName
    # whether the relation could otherwise be carried: no view, and in the log
    is_table: bool


def unnamed_tables(connection: psycopg.Connection[Any]) -> dict[int, Unnamed]:
    """Return relations with a name that cannot be converted, by OID: roots and their partitions, views too.

    In a database with encoding UTF-8 no query runs.
    """
    encoding = server_encoding(connection)
    if encoding == "UTF8":
        return {}
    rows = connection.execute(_QUERY).fetchall()
    names = sorted({name for row in rows for name in row[3:]})
    texts = dict(zip(names, to_utf8(connection, encoding, names), strict=True))
    tables = {}
    for oid, root, is_table, name, schema, table in rows:
        if texts[name] is None:
            replacement = TableName(_spelled(schema, texts[schema]), _spelled(table, texts[table]))
            tables[oid] = tables[root] = Unnamed(_spelled(name, None), replacement, is_table)
    return tables


def _spelled(name: bytes, text: bytes | None) -> str:
    return name.decode("ascii", "backslashreplace") if text is None else text.decode()
