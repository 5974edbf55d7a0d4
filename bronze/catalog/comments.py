r"""Comments of tables and columns, asked of pg_description: one round trip for all tables together.

A character that UTF-8 lacks, or bytes that are no text, must not refuse the whole answer. So comments come as
bytes of the database's own encoding. One that cannot be converted has its bytes written as ``\xNN``.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from bronze.comments import LONGEST, Comments, bounded
from bronze.postgres.conversion import server_encoding, to_utf8

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import psycopg

_QUERY: Final = """
    SELECT d.objoid, d.objsubid, convert_to(left(d.description, %(longest)s), getdatabaseencoding())
    FROM pg_description d
    WHERE d.classoid = 'pg_class'::regclass AND d.objoid = ANY (%(oids)s::oid[])
"""


def comments_of(
    connection: psycopg.Connection[Any], columns: Mapping[int, Collection[int]]
) -> dict[int, Comments]:
    """The comments that tables have now, by OID; of a root of partitions its own.

    Args:
        connection: idle, or inside the transaction whose snapshot is to be used.
        columns: attnums of the columns that are read, of each table by OID; comments of others are not told.
    """
    wanted = {"oids": list(columns), "longest": LONGEST + 1}
    rows = connection.execute(_QUERY, wanted).fetchall()
    texts = _texts(connection, [row[2] for row in rows])
    found: dict[int, dict[int, str]] = defaultdict(dict)
    for (oid, attnum, _), text in zip(rows, texts, strict=True):
        if attnum == 0 or attnum in columns[oid]:
            found[oid][attnum] = bounded(text)
    return {oid: Comments(oid, found[oid].pop(0, None), found[oid]) for oid in columns}


def _texts(connection: psycopg.Connection[Any], comments: list[bytes]) -> list[str]:
    encoding = server_encoding(connection)
    converted = comments if encoding == "UTF8" else to_utf8(connection, encoding, comments)
    return [
        original.decode("ascii", "backslashreplace") if text is None else text.decode(errors="replace")
        for original, text in zip(comments, converted, strict=True)
    ]
