"""One state of the catalog for several queries, and what fails in it: for a moment, or for good.

A transaction's snapshot holds for rows of the catalog alone. The server's own functions look types, labels
and indexes up as they are now: ``format_type``, and the output of a column's default. They fail where those
are gone. There are two reasons:

* somebody dropped them after the snapshot was taken. A newer snapshot sees that change whole, so another try
  is right, and the error is one that heals (``concurrent-change``);
* the catalog is damaged: the label of an enum was deleted from pg_enum by hand, and a default still has it;
  or the library of an extension is gone, whose function prints a default. Each try fails, with any SQLSTATE
  that such a function gives, and a query for all tables fails for all of them. So the reader asks in ever
  smaller groups (`in_parts`), each group in a savepoint. A table that fails alike in two snapshots fails for
  good. Errors of the session, and of load, are no table's (`may_be_damage`): the reader raises them.
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
"""Errors that a dropped object gives, in queries of the catalog that name only what each server has."""

_OF_SESSION: Final = ("08", "25", "40", "53", "55P03", "57")
"""How SQLSTATEs begin that no table causes: a lost connection, a lack of resources, a lock, a timeout."""


def is_idle(connection: psycopg.Connection[Any]) -> bool:
    """Return whether a connection is in no transaction: each `one_snapshot` is a newer one then."""
    return connection.info.transaction_status == TransactionStatus.IDLE


@contextmanager
def one_snapshot(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """All statements of the block see one state of the catalog; inside a transaction, that transaction's.

    Raises:
        psycopg.errors.SerializationFailure: something vanished meanwhile, or is damaged.
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
    """Check whether a query of the catalog may have failed at a single table's description. Pure."""
    if isinstance(error, psycopg.errors.SerializationFailure):  # as `one_snapshot` raises what vanished
        return True
    return error.sqlstate is not None and not error.sqlstate.startswith(_OF_SESSION)


class DamagedError(Exception):
    """What the catalog says of a table fails at the server, in two snapshots alike."""


def or_damaged(connection: psycopg.Connection[Any], read: Callable[[], Read]) -> Read:
    """Return what `read` reads in a snapshot of its own; in a newer one, where the first try failed.

    Raises:
        DamagedError: both tries failed alike. No psycopg.Error: it is one table's, and no session's.
        psycopg.DatabaseError: they failed otherwise, or the snapshot is the caller's.
    """
    try:
        return read()
    except psycopg.DatabaseError as error:
        if not is_idle(connection) or not may_be_damage(error):
            raise
        before = _words(error)
    try:
        return read()
    except psycopg.DatabaseError as error:
        if _words(error) != before:
            raise
        raise DamagedError(before) from error


def in_parts(
    connection: psycopg.Connection[Any], rows: Sequence[Row], read: Callable[[Sequence[Row]], list[Read]]
) -> tuple[list[Read], list[tuple[Row, str]]]:
    """Read rows together, and where that fails in halves: what was read, and each row that fails by itself.

    Args:
        connection: inside the transaction whose snapshot is to be used.
        rows: what to read.
        read: reads some of them.
    """
    try:
        with connection.transaction():  # a savepoint: what fails leaves the snapshot as it was
            return read(rows), []
    except psycopg.DatabaseError as error:
        if not may_be_damage(error):
            raise
        if len(rows) < 2:
            if rows:
                read(rows[:0])  # what fails without any row is no row's fault, and is raised
            return [], [(row, _words(error)) for row in rows]
    half = len(rows) // 2
    parts = [in_parts(connection, some, read) for some in (rows[:half], rows[half:])]
    return [one for found, _ in parts for one in found], [one for _, failed in parts for one in failed]


def _words(error: psycopg.Error) -> str:
    said = error.diag.message_primary
    return str(error) if said is None else f"{said} (SQLSTATE {error.sqlstate})"
