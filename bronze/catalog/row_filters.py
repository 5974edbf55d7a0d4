"""A row filter of the pipeline file, parsed by the server: its printed form and its columns.

**Why the server prints the filter.** A publication's filter is stored as a parsed expression. Only the same
server's own print of the rule can be compared with the print of the stored filter. A check constraint on an
empty temporary table with the table's columns gives exactly this print and the filter's columns. The
transaction is rolled back, so nothing remains at the server.

**Why several prints.** The publication gets the print and not the file's text. The server parses the print
again, and may print the result in another way: for a varchar, the casts of ``IN`` move. A comparison with the
first print would differ for ever. So the print is parsed until it stays the same.

**No lock.** The temporary table is made from the catalog's columns and not ``LIKE`` the table, which would
wait for a session that locks the table, and all other tables would wait too. A stored filter names columns by
number, so the server also prints the stored filter of a locked table for such an empty copy
(`printed_unlocked`). So VACUUM FULL does not hide whether the publication has the rule's filter.

**Cost.** One such transaction for each filter and shape of its table in a process (`_PRINTED`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg

from deltasmelt.bronze.errors import TableError
from deltasmelt.bronze.identifiers import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Hashable

    from deltasmelt.bronze.identifiers import TableName

_PRINTS: Final = 8
"""Greatest number of prints of one filter."""

_COLUMNS: Final = """
    SELECT string_agg(concat_ws(' ', quote_ident(a.attname),
        CASE WHEN a.attisdropped THEN 'int' ELSE format_type(a.atttypid, a.atttypmod) END,
        'COLLATE ' || quote_ident(n.nspname) || '.' || quote_ident(c.collname)), ', ' ORDER BY a.attnum)
    FROM pg_attribute a
    LEFT JOIN pg_collation c ON c.oid = a.attcollation AND NOT a.attisdropped
    LEFT JOIN pg_namespace n ON n.oid = c.collnamespace
    WHERE a.attrelid = %s AND a.attnum > 0
"""
"""A dropped column stays as a placeholder, so that the columns of the copy have the table's numbers."""

_OF_FILTER: Final = ("0A", "22", "42")
"""Prefixes of SQLSTATEs that an invalid filter causes."""


_CANNOT_COPY: Final = (
    psycopg.errors.ActiveSqlTransaction,  # the caller's transaction only reads
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.ReadOnlySqlTransaction,
)


class PrintedFilter(NamedTuple):
    """A valid filter."""

    # the text that the server prints for the publication's filter
    text: str
    # names of the columns that the filter reads
    columns: frozenset[str]


_PRINTED: Final[dict[tuple[Any, ...], PrintedFilter]] = {}


def read_filter(
    connection: psycopg.Connection[Any], table: TableName, where: str, relation_id: int, shape: Hashable
) -> PrintedFilter | TableError:
    """Return a filter as the server prints it, or the error of the table.

    `connection` is in autocommit mode; a print is used again until the table's `shape` changes.

    Raises:
        psycopg.Error: the session failed.
    """
    known = (connection.info.dsn, table, where, relation_id, shape)
    if known not in _PRINTED:
        try:
            with connection.transaction(force_rollback=True):
                _write_enabled(connection)
                _PRINTED[known] = _printed(connection, table, where, relation_id)
        except psycopg.errors.InsufficientPrivilege as error:
            return invalid_filter(
                table,
                f"the role may not make the temporary table that checks the filter: {_words(error)}",
                "as owner of the database: GRANT TEMPORARY ON DATABASE … TO …; for a type of another schema: "
                "GRANT USAGE ON SCHEMA … TO …;",
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
            return invalid_filter(table, _words(error))
    return _PRINTED[known]


def _words(error: psycopg.Error) -> str:
    return error.diag.message_primary or str(error)


def _write_enabled(connection: psycopg.Connection[Any]) -> None:
    """Let the transaction write, although the role or the session may read by default.

    Raises:
        psycopg.errors.ReadOnlySqlTransaction: the server is a standby.
    """
    try:
        connection.execute("SET TRANSACTION READ WRITE")
    except psycopg.errors.FeatureNotSupported as error:
        raise psycopg.errors.ReadOnlySqlTransaction(str(error)) from error


def _printed(
    connection: psycopg.Connection[Any], table: TableName, where: str, relation_id: int
) -> PrintedFilter:
    # The copy has the table's own name, so that the filter may qualify its columns.
    copy = _empty_copy(connection, table.name, relation_id)
    columns, text = frozenset[str](), where
    for _ in range(_PRINTS):
        # A prepared statement is a single statement, whatever the filter's text contains.
        check = f"ALTER TABLE {copy} ADD CONSTRAINT smelt_filter CHECK (\n{text}\n)"
        connection.execute(check.encode(), prepare=True)
        row = connection.execute(
            "SELECT pg_get_expr(c.conbin, c.conrelid), "
            "ARRAY(SELECT a.attname::text FROM pg_attribute a "
            "WHERE a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)) "
            "FROM pg_constraint c WHERE c.conrelid = %s::regclass AND c.conname = 'smelt_filter'",
            [copy],
        ).fetchone()
        assert row is not None  # noqa: S101 - the constraint was created above
        before, text, columns = text, row[0], frozenset(row[1])
        if text == before:
            break
        connection.execute(f"ALTER TABLE {copy} DROP CONSTRAINT smelt_filter".encode())
    # A print that never stays the same is refused when the publication gets the filter.
    return PrintedFilter(text, columns)


def _empty_copy(connection: psycopg.Connection[Any], name: str, relation_id: int) -> str:
    """Create an empty temporary table with the columns of a table; return its quoted name."""
    row = connection.execute(_COLUMNS, [relation_id]).fetchone()
    listed = "" if row is None else row[0] or ""
    connection.execute(f"CREATE TEMPORARY TABLE {quote_identifier(name)} ({listed})".encode())
    return f"pg_temp.{quote_identifier(name)}"


def printed_unlocked(connection: psycopg.Connection[Any], relation_id: int, stored: str) -> str | None:
    """Return a stored filter as the server prints it, without a lock of its table; None if refused."""
    query = (
        "SELECT pg_get_expr(prqual, %s::regclass) FROM pg_publication_rel "
        "WHERE prrelid = %s AND prqual::text = %s LIMIT 1"
    )
    try:
        with connection.transaction(force_rollback=True):
            _write_enabled(connection)
            copy = _empty_copy(connection, "smelt_filter", relation_id)
            row = connection.execute(query, [copy, relation_id, stored]).fetchone()
    except _CANNOT_COPY:
        return None
    return None if row is None else row[0]


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
