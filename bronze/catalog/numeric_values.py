"""Count the digits of values in numeric columns: one query for each table, within bounds.

A query reads at most `MOST_ROWS` rows, for at most three seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.shapes import PgType

MOST_ROWS: Final = 100_000
"""Greatest number of rows that the query reads of a table."""
_SECONDS: Final = 3
_NOT_COUNTED: Final = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.QueryCanceled,
)


@dataclass(frozen=True, slots=True)
class NumericValues:
    """Counts over the values of one column."""

    # number of values that are not NULL
    values: int
    # number of values that the decimal does not hold
    unfit: int
    # number of NaN and infinite values, which no decimal holds
    special: int
    # digits before the point of the largest number
    whole: int
    # greatest number of digits after the point that a value needs
    scale: int


@dataclass(frozen=True, slots=True)
class CountedTable:
    """Counts over the rows of one table."""

    # number of rows that were read
    rows: int
    # whether the query read all rows
    complete: bool
    # the counts by column name
    columns: Mapping[str, NumericValues]


def is_numeric(type_: PgType) -> bool:
    """Check whether a column holds a single numeric, possibly through domains."""
    while type_.kind == "domain" and type_.element is not None:
        type_ = type_.element
    return type_.kind == "base" and type_.name == "numeric"


def count_values(
    connection: psycopg.Connection[Any], table: SourceTable, decimals: Mapping[str, tuple[int, int]]
) -> CountedTable | None:
    """Return counts over the values of some columns; None if the server refused or did not finish.

    `decimals` has precision and scale of the decimal that each column becomes. `connection` is in autocommit
    mode or inside a transaction.
    """
    # A larger table is sampled by blocks, so that new rows count like old rows.
    estimate = table.rows_estimate or 0
    share = min(100.0, 100.0 * MOST_ROWS / estimate) if estimate > MOST_ROWS else None
    try:
        with connection.transaction():
            connection.execute("SET LOCAL lock_timeout = '1s'")
            connection.execute(f"SET LOCAL statement_timeout = '{_SECONDS}s'")
            row = connection.execute(_query(table, decimals, share)).fetchone()
            connection.execute("SET LOCAL lock_timeout = DEFAULT")
            connection.execute("SET LOCAL statement_timeout = DEFAULT")
    except _NOT_COUNTED:
        return None
    if row is None:
        return None
    rows, cells = int(row[0]), iter(row[1:])
    columns = {}
    for name in decimals:
        values, unfit, special, largest, scale = (next(cells) for _ in range(5))
        digits = len(str(int(largest))) if largest else 0
        columns[name] = NumericValues(int(values), int(unfit), int(special), digits, int(scale or 0))
    return CountedTable(rows, share is None and rows < MOST_ROWS, columns)


def _query(table: SourceTable, decimals: Mapping[str, tuple[int, int]], share: float | None) -> sql.Composed:
    counts: list[sql.Composable] = [sql.SQL("count(*)")]
    for name, (precision, scale) in decimals.items():
        column = sql.Identifier(name)
        finite = sql.SQL("{0} > '-Infinity' AND {0} < 'Infinity'").format(column)
        fits = sql.SQL("abs({0}) < {1} AND {0} = trunc({0}, {2})").format(
            column, sql.Literal(10 ** (precision - scale)), sql.Literal(scale)
        )
        counts += [
            sql.SQL("count({})").format(column),
            sql.SQL("count(*) FILTER (WHERE NOT ({}))").format(fits),
            sql.SQL("count(*) FILTER (WHERE NOT ({}))").format(finite),
            sql.SQL("max(trunc(abs({}))) FILTER (WHERE {})").format(column, finite),
            sql.SQL("max(scale(trim_scale({}))) FILTER (WHERE {})").format(column, finite),
        ]
    sample: sql.Composable = sql.SQL("")
    if share is not None:
        sample = sql.SQL(" TABLESAMPLE SYSTEM ({})").format(sql.Literal(share))
    columns = sql.SQL(", ").join(
        sql.SQL("{0}::numeric AS {0}").format(sql.Identifier(name)) for name in decimals
    )
    return sql.SQL("SELECT {} FROM (SELECT {} FROM {}{}{} LIMIT {}) AS read").format(
        sql.SQL(", ").join(counts),
        columns,
        sql.SQL("" if table.kind == "p" else "ONLY "),
        sql.Identifier(table.table.schema, table.table.name),
        sample,
        sql.Literal(MOST_ROWS),
    )
