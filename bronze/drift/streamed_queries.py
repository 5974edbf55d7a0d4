"""Ask the source whether a partition still has every row that its first transaction streamed.

**The proof.** Transaction X created a partition and inserted N rows under the root since the partition's
first row, and did nothing else there. Where the partition has N rows that X wrote, each of the N rows is one
of them. So X truncated none away. Rows that X put into other partitions, and rows that others updated or
deleted since, make the number smaller: then nothing is proved, and the table is copied.

**The cost.** Nobody else can write to the partition before X commits, so X's rows begin at the first page. No
more than the first 16 MB are read, and only of partitions in this doubt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg

from deltasmelt.bronze.postgres.connection import lock_timeout

if TYPE_CHECKING:
    from deltasmelt.bronze.drift.storage import Part
    from deltasmelt.bronze.drift.streamed import Named

_PAGES: Final = 2048
_LOCK_SECONDS: Final = 2
_REFUSED: Final = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.UndefinedTable,
    psycopg.errors.InsufficientPrivilege,
)
"""Somebody alters or dropped the partition, or we may not read it: the question stays open."""


def has_all_rows(connection: psycopg.Connection[Any], part: Part, named: Named) -> bool:
    """Check whether a partition has every row that the transaction which named the partition streamed.

    Args:
        connection: in autocommit mode, by which `part` was seen.
        part: the partition; `attached` may be the number of a subtransaction, under which rows may stand.
        named: the transaction.
    """
    if named.inserts is None:
        return False
    try:
        with connection.transaction():
            connection.execute(lock_timeout(_LOCK_SECONDS).encode())
            row = connection.execute(
                f"SELECT count(*) FROM ONLY {part.name} "
                f"WHERE ctid < '({_PAGES},0)'::tid AND xmin::text::bigint IN (%s, %s)".encode(),
                [named.xid, part.attached],
            ).fetchone()
    except _REFUSED:
        return False
    return row is not None and row[0] == named.inserts
