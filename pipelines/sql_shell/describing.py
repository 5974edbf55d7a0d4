r"""What ``\d`` shows of tables, as cells. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pipelines.sql_shell.catalog import ColumnInfo, TableInfo


class Cells(NamedTuple):
    """A table to be printed.

    Attributes:
        right: the columns that are flush right.
        head: a line before it.
    """

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    right: tuple[str, ...] = ()
    head: str = ""


def tables_listed(tables: Iterable[tuple[TableInfo, int | None]]) -> Cells:
    """Tables with their numbers of columns and rows; a number of rows that is not known is ``?``."""
    rows = [
        (table.layer, table.name, str(len(table.columns)), "?" if count is None else f"{count:,}")
        for table, count in tables
    ]
    return Cells(("layer", "table", "columns", "rows"), rows, right=("columns", "rows"))


def columns_listed(table: TableInfo) -> Cells:
    """The columns of a table; of a table of the source also what they are there."""
    shown = "as it is now" if table.version is None else f"version {table.version}"
    if table.source is None:
        rows = [(column.name, column.spark_type) for column in table.columns]
        return Cells(("column", "type"), rows, head=f"{table.sql_name}, {shown}")
    of_source = [
        (column.name, column.spark_type, column.source_type or "", _constraint(column))
        for column in table.columns
    ]
    head = f"{table.sql_name}, {shown}, from {table.source}"
    return Cells(("column", "type", "PostgreSQL", "there"), of_source, head=head)


def _constraint(column: ColumnInfo) -> str:
    if column.in_key:
        return "key"
    return "not null" if column.not_null else ""
