"""A row filter of the pipeline file, parsed by the server: its printed form and its columns.

**Why the server prints the filter.** A publication's filter is stored as a parsed expression. Only the same
server's own print of the rule can be compared with the print of the stored filter. A check constraint on an
empty temporary table with the table's columns gives exactly this print and the filter's columns. The
transaction is rolled back, so nothing remains at the server, and the table itself is not locked against
writes.

**Cost.** One such transaction for each filter and shape of its table in a process (`_PRINTED`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg

from deltasmelt.bronze.errors import TableError
from deltasmelt.bronze.identifiers import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.bronze.catalog.queries import ColumnRow
    from deltasmelt.bronze.identifiers import TableName

_LOCK_SECONDS: Final = 2
_OF_FILTER: Final = ("0A", "22", "42")
"""Prefixes of SQLSTATEs that an invalid filter causes."""


class PrintedFilter(NamedTuple):
    """A valid filter."""

    # the text that the server prints for the publication's filter
    text: str
    # names of the columns that the filter reads
    columns: frozenset[str]


_PRINTED: Final[dict[tuple[Any, ...], PrintedFilter]] = {}


def read_filter(
    connection: psycopg.Connection[Any], table: TableName, where: str, columns: Sequence[ColumnRow]
) -> PrintedFilter | TableError:
    """Return a filter as the server prints it, or the error of the table.

    `connection` is in autocommit mode; `columns` are all columns of the table.

    Raises:
        psycopg.Error: the session failed, or another session locks the table.
    """
    shape = tuple((row.name, row.attnum, row.type_oid, row.typmod) for row in columns)
    known = (connection.info.dsn, table, where, shape)
    if known not in _PRINTED:
        try:
            with connection.transaction(force_rollback=True):
                _PRINTED[known] = _printed(connection, table, where)
        except psycopg.errors.InsufficientPrivilege:
            return invalid_filter(
                table,
                "the role may not create temporary tables, which the check of the filter needs",
                "as owner of the database: GRANT TEMPORARY ON DATABASE … TO …;",
            )
        except psycopg.errors.ReadOnlySqlTransaction:
            return invalid_filter(
                table,
                "the server is read-only, so the filter cannot be checked there",
                "set source.host to the primary, or remove the filter",
            )
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith(_OF_FILTER):
                raise
            return invalid_filter(table, error.diag.message_primary or str(error))
    return _PRINTED[known]


def _printed(connection: psycopg.Connection[Any], table: TableName, where: str) -> PrintedFilter:
    # The copy has the table's own name, so that the filter may qualify its columns.
    copy = f"pg_temp.{quote_identifier(table.name)}"
    connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
    make = f"CREATE TEMPORARY TABLE {quote_identifier(table.name)} (LIKE {table.quoted})"
    connection.execute(make.encode())
    # A prepared statement is a single statement, whatever the filter's text contains.
    check = f"ALTER TABLE {copy} ADD CONSTRAINT smelt_filter CHECK (\n{where}\n)"
    connection.execute(check.encode(), prepare=True)
    row = connection.execute(
        "SELECT pg_get_expr(c.conbin, c.conrelid), "
        "ARRAY(SELECT a.attname::text FROM pg_attribute a "
        "WHERE a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)) "
        "FROM pg_constraint c WHERE c.conrelid = %s::regclass AND c.conname = 'smelt_filter'",
        [copy],
    ).fetchone()
    assert row is not None  # noqa: S101 - the constraint was created above
    return PrintedFilter(row[0], frozenset(row[1]))


def invalid_filter(table: TableName, reason: str, remedy: str = "") -> TableError:
    """Return the error of a table whose filter PostgreSQL does not accept."""
    return TableError(
        table,
        f"the row filter of source.where is refused: {reason}",
        code="row-filter-invalid",
        remedy=remedy
        or "correct the condition under source.where; PostgreSQL allows columns of the table, "
        "constants, and built-in functions and operators that are immutable",
    )
