r"""Comments of tables and columns, asked of pg_description: one round trip for all tables together.

A character that UTF-8 lacks, or bytes that are no text, must not refuse the whole answer. So comments come as
bytes of the database's own encoding. One that cannot be converted has its bytes written as ``\xNN``.

The server checks what it gives out as such bytes, too. One comment that is not of the database's encoding, as
templates of another one bring, refuses the query. Comments stop no rows, so nothing is known of any then.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import psycopg

from bronze.comments import LONGEST, Comments, bounded
from bronze.postgres.conversion import server_encoding, to_utf8

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_QUERY: Final = """
    SELECT d.objoid, d.objsubid, convert_to(left(d.description, %(longest)s), getdatabaseencoding())
    FROM pg_description d
    WHERE d.classoid = 'pg_class'::regclass AND d.objoid = ANY (%(oids)s::oid[])
"""

_LOGGER = logging.getLogger("deltasmelt.reader")
_REFUSED: Final[set[str]] = set()
"""Databases of which it was said that they refuse."""


def comments_of(
    connection: psycopg.Connection[Any], columns: Mapping[int, Collection[int]]
) -> dict[int, Comments] | None:
    """The comments that tables have now, by OID; of a root of partitions its own. None: the server refuses.

    Args:
        connection: idle, or inside the transaction whose snapshot is to be used.
        columns: attnums of the columns that are read, of each table by OID; comments of others are not told.
    """
    wanted = {"oids": list(columns), "longest": LONGEST + 1}
    try:
        with connection.transaction():  # a caller inside of one goes on after a refusal
            rows = connection.execute(_QUERY, wanted).fetchall()
    except psycopg.DataError as error:
        level = logging.DEBUG if connection.info.dsn in _REFUSED else logging.WARNING
        _REFUSED.add(connection.info.dsn)
        _LOGGER.log(level, "comments of the source's tables are left out, PostgreSQL refuses them: %s", error)
        return None
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
