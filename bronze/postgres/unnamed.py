r"""Tables whose names cannot be said: one character of which UTF-8 has no counterpart.

Every question about the catalog carries names, and the server refuses the whole answer for one name that it
cannot convert. So in a database of another encoding than UTF-8 these tables are found first, by bytes, which
are not converted. They are then left out of the questions by their oid. Each is an error of its own, under a
name in which such bytes stand as ``\xNN``; all others go on. What counts are the names of the table, its
schema, its columns, its unique indexes, and of a partitioned table those of its partitions. In the stream
`bronze.stream.encodings` leaves their changes out.

Such a character in a name that is no table's ends the pipeline with the same code:

* of one of the publication's own schemas;
* of a type or role that a carried table uses;
* of a label of an enum.
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
"""`encode` writes bytes beyond ASCII with a backslash. Few names are left then."""


class Unnamed(NamedTuple):
    """A relation of which some name cannot be converted.

    Attributes:
        name: that one, as far as it is ASCII.
        table: what to call it; of a partition, its root.
        is_table: a table that could be carried otherwise, not a view or one that is not in the log.
    """

    name: str
    table: TableName
    is_table: bool


def unnamed_tables(connection: psycopg.Connection[Any]) -> dict[int, Unnamed]:
    """Relations of which some name cannot be converted, by oid: roots and their partitions, views too.

    Args:
        connection: to any database; nothing is asked of one in UTF-8.
    """
    encoding = server_encoding(connection)
    if encoding == "UTF8":
        return {}
    rows = connection.execute(_QUERY).fetchall()
    names = sorted({name for row in rows for name in row[3:]})
    texts = dict(zip(names, to_utf8(connection, encoding, names), strict=True))
    found = {}
    for oid, root, is_table, name, schema, table in rows:
        if texts[name] is None:
            said = TableName(_said(schema, texts[schema]), _said(table, texts[table]))
            found[oid] = found[root] = Unnamed(_said(name, None), said, is_table)
    return found


def _said(name: bytes, text: bytes | None) -> str:
    return name.decode("ascii", "backslashreplace") if text is None else text.decode()
