"""One state of the catalog for several queries; failures in that state are temporary or permanent.

A transaction's snapshot covers only the rows of the catalog. The server's own functions (``format_type``, the
output of a column's default) read types, labels and indexes in their present state. The functions fail if
these objects no longer exist, for one of two reasons:

* A session dropped the objects after the snapshot was taken. A newer snapshot shows this change completely,
  so a retry is right, and the error heals by itself (``concurrent-change``).
* The catalog is damaged. An enum's label was deleted from pg_enum by hand, and a default still uses the
  label; or the library of an extension is missing, whose function prints a default. Each attempt fails, with
  any SQLSTATE of such a function, and a query for all tables fails as a whole. The reader therefore queries
  ever smaller groups (`in_parts`), each group in a savepoint. A table that fails alike in two snapshots fails
  permanently. Errors of the session and of load belong to no table (`may_be_damage`); the reader raises them.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Row = TypeVar("Row")
Read = TypeVar("Read")

_VANISHED: Final = (
    psycopg.errors.InternalError_,
    psycopg.errors.InvalidBinaryRepresentation,
    psycopg.errors.UndefinedObject,
    psycopg.errors.UndefinedTable,
)
"""Errors after an object was dropped, in catalog queries that name only objects of every server."""

_OF_SESSION: Final = ("08", "25", "40", "53", "55P03", "57")
"""Prefixes of SQLSTATEs that no table causes: a lost connection, a lack of resources, a lock, a timeout."""


def is_idle(connection: psycopg.Connection[Any]) -> bool:
    """Check whether a connection is outside a transaction, so that each `one_snapshot` is newer."""
    return connection.info.transaction_status == TransactionStatus.IDLE


@contextmanager
def one_snapshot(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Run all statements of the block in one snapshot; inside a transaction, in the transaction's snapshot.

    Raises:
        psycopg.errors.SerializationFailure: an object was dropped meanwhile, or is damaged.
    """
    try:
        if not is_idle(connection):
            yield
            return
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield
    except _VANISHED as error:
        raise psycopg.errors.SerializationFailure(_words(error)) from error


def may_be_damage(error: psycopg.DatabaseError) -> bool:
    """Check whether a catalog query may have failed at a single table's description. Pure."""
    if isinstance(error, psycopg.errors.SerializationFailure):  # `one_snapshot`: an object was dropped
        return True
    return error.sqlstate is not None and not error.sqlstate.startswith(_OF_SESSION)


class DamagedError(Exception):
    """The failure of a catalog query for a single table, alike in two snapshots."""


def or_damaged(connection: psycopg.Connection[Any], read: Callable[[], Read]) -> Read:
    """Return the result of `read` in a snapshot; after a failure, in a newer snapshot.

    Raises:
        DamagedError: both attempts failed alike. The error is no psycopg.Error: it concerns one table and not
            the session.
        psycopg.DatabaseError: the attempts failed differently, or the snapshot belongs to the caller.
    """
    try:
        return read()
    except psycopg.DatabaseError as error:
        if not is_idle(connection) or not may_be_damage(error):
            raise
        message = _words(error)
    try:
        return read()
    except psycopg.DatabaseError as error:
        if _words(error) != message:
            raise
        raise DamagedError(message) from error


def in_parts(
    connection: psycopg.Connection[Any], rows: Sequence[Row], read: Callable[[Sequence[Row]], list[Read]]
) -> tuple[list[Read], list[tuple[Row, str]]]:
    """Read rows together, after a failure in halves; return the results, and each row that fails alone.

    `connection` is inside the transaction whose snapshot the reads use.
    """
    try:
        with connection.transaction():  # a savepoint: a failure keeps the snapshot usable
            return read(rows), []
    except psycopg.DatabaseError as error:
        if not may_be_damage(error):
            raise
        if len(rows) < 2:
            if rows:
                read(rows[:0])  # a failure without any row is no row's fault: raise it
            return [], [(row, _words(error)) for row in rows]
    half = len(rows) // 2
    parts = [in_parts(connection, half_of_rows, read) for half_of_rows in (rows[:half], rows[half:])]
    return [row for clean, _ in parts for row in clean], [row for _, failed in parts for row in failed]


def _words(error: psycopg.Error) -> str:
    message = error.diag.message_primary
    return str(error) if message is None else f"{message} (SQLSTATE {error.sqlstate})"
