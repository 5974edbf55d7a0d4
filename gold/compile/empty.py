"""Silver's tables without a table behind them: a query over them reads nothing, and Spark tells its types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gold.tree.derived import Derived, origin
from silver.schema.catalog import OWN_COLUMNS, UNREPRESENTABLE
from silver.sql import quote

if TYPE_CHECKING:
    from bronze.identifiers import TableName
    from gold.tree.nodes import Tree


def empty_table(tree: Tree, name: TableName) -> str:
    """A relation with the columns of a table that the document reads, and no table behind it."""
    table = tree.tables()[name]
    derived = [column for column in table.columns if isinstance(column, Derived)]
    read = {origin(table, column) for column in tree.reads(name) | set(table.key)}
    read.update(column.origin for column in derived)
    columns = {
        column.name: column.spark_type
        for column in table.columns
        if column.name in read and column not in derived
    }
    if derived:
        columns[UNREPRESENTABLE] = OWN_COLUMNS[UNREPRESENTABLE]
    return f"(SELECT {', '.join(f'CAST(NULL AS {ddl}) AS {quote(one)}' for one, ddl in columns.items())})"
