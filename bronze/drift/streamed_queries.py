"""A query whether a partition still has every row that the partition's first transaction streamed.

**The proof.** Transaction X created a partition, inserted N rows under the root since the partition's first
row, and did nothing else there. If the partition has N rows that X wrote, these are the N streamed rows. So X
truncated no row. Rows that X inserted into other partitions make the number smaller, and so do later updates
and deletes. Then nothing is proved, and the table is copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg

from deltasmelt.bronze.postgres.connection import lock_timeout

if TYPE_CHECKING:
    from deltasmelt.bronze.drift.storage import Part
    from deltasmelt.bronze.drift.streamed import Named

# No other transaction can write to the partition before X commits, so X's rows begin at the first page. The
# query reads at most the first 16 MB, and only of partitions in this doubt.
_PAGES: Final = 2048
_LOCK_SECONDS: Final = 2
_REFUSED: Final = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.UndefinedTable,
    psycopg.errors.InsufficientPrivilege,
)
"""Another session alters or dropped the partition, or our role may not read the partition: still unknown."""


def has_all_rows(connection: psycopg.Connection[Any], part: Part, named: Named) -> bool:
    """Check whether a partition has every row that the partition's first transaction streamed.

    Args:
        connection: in autocommit mode; the connection of the poll that saw `part`.
        part: the partition; `attached` may be the number of a subtransaction that wrote rows.
        named: the transaction in which the stream named the partition.
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
