"""Derive further columns for a document, next to silver's columns: keys of comparisons, lost values. Pure.

Spark may not compare a column like PostgreSQL (`gold.language.comparing`). The tree then names a derived
column instead: in a join pair, a term of an order, or a measure. Gold computes a derived column while reading
the rows of the table (`with_derived`). So all code that works by column names needs no further rule: the
compiler, the walk from changes to roots, and the images of roots.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deltasmelt.bronze.shapes import PgType
from deltasmelt.gold.language.comparing import PREFIX, lost_name, may_lose
from deltasmelt.silver.schema.catalog import UNREPRESENTABLE, SilverColumn
from deltasmelt.silver.schema.types import TEXT
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.gold.language.comparing import Rule
    from deltasmelt.gold.tree.nodes import Tree
    from deltasmelt.silver.schema.catalog import SilverTable


@dataclass(frozen=True, slots=True)
class Derived(SilverColumn):
    """A column that gold computes while reading a table, by `sql` over the table's columns.

    `origin` is the source column, and with `merges` different values may give the same result.
    """

    sql: str = ""
    origin: str = ""
    merges: bool = False


def key_of(column: SilverColumn, rule: Rule, kind: str) -> Derived:
    """Return the column by which Spark compares `column` like PostgreSQL; `kind`: equality or order."""
    assert rule.key is not None  # noqa: S101 - for the type checker
    name = f"{PREFIX}_{kind}{rule.tag and '_'}{rule.tag}_{column.name}"
    return replace(_derived(column, name, rule.ddl, rule.key(quote(column.name))), merges=rule.merges)


def lost_of(column: SilverColumn) -> Derived:
    """Return the column that flags rows whose value of `column` silver could not hold."""
    # Delta has statistics for the first half of the test; a function of the map alone would stop file
    # skipping.
    is_lost = (
        f"({UNREPRESENTABLE} IS NOT NULL AND map_contains_key({UNREPRESENTABLE}, {literal(column.name)}))"
    )
    return _derived(column, lost_name(column.name), "BOOLEAN", is_lost)


def presence_of(column: SilverColumn) -> Derived:
    """Return the column that is NULL exactly if `column` is NULL at the source."""
    lost = lost_of(column).sql
    sql = f"CASE WHEN {quote(column.name)} IS NOT NULL OR {lost} THEN true END"
    return _derived(column, f"{PREFIX}_there_{column.name}", "BOOLEAN", sql)


def order_name(table: SilverTable, name: str) -> str:
    """Return the column that gives a column's order: the derived column, or else the given column."""
    derived = f"{PREFIX}_order_{name}"
    return derived if any(column.name == derived for column in table.columns) else name


def extended(table: SilverTable, derived: Iterable[Derived]) -> SilverTable:
    """Return a table with derived columns after its own columns."""
    return replace(table, columns=(*table.columns, *derived))


def origin(table: SilverTable, name: str) -> str:
    """Return the source column behind a column."""
    column = table.column(name)
    return column.origin if isinstance(column, Derived) else name


def computed(table: SilverTable) -> list[str]:
    """Return the derived columns of a table as expressions over its rows, each under its name."""
    derived = [column for column in table.columns if isinstance(column, Derived)]
    return [f"{column.sql} AS {quote(column.name)}" for column in derived]


def rows_of(table: SilverTable, relation: str) -> str:
    """Return a relation of a table's rows with the derived columns."""
    derived = computed(table)
    return f"(SELECT *, {', '.join(derived)} FROM {relation})" if derived else relation


def with_derived(tree: Tree, relation: Callable[[TableName], str]) -> Callable[[TableName], str]:
    """Return relations of a document's tables with the derived columns."""
    tables = tree.tables()
    return lambda name: rows_of(tables[name], relation(name))


def may_be_lost(tree: Tree) -> dict[TableName, list[str]]:
    """Return, by table, the columns that a document reads and whose values silver may lose."""
    lossy_columns: dict[TableName, list[str]] = {}
    for name, table in tree.tables().items():
        columns_read = {origin(table, column) for column in tree.reads(name)}
        lossy = [
            column.name
            for column in table.columns
            if column.name in columns_read and not isinstance(column, Derived) and may_lose(column)
        ]
        if lossy:
            lossy_columns[name] = lossy
    return lossy_columns


def _derived(column: SilverColumn, name: str, ddl: str, sql: str) -> Derived:
    return Derived(
        name,
        ddl,
        None,
        not_null=False,
        reading=TEXT,
        type=PgType("base", "text"),
        sql=sql,
        origin=column.name,
    )
