"""Silver's tables without a table behind them: a query over them reads nothing, and Spark tells its types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from silver.sql import quote

if TYPE_CHECKING:
    from bronze.identifiers import TableName
    from gold.tree.nodes import Tree


def empty_table(tree: Tree, name: TableName) -> str:
    """A relation with the columns of a table that the document reads, and no table behind it."""
    table = tree.tables()[name]
    read = tree.reads(name) | set(table.key)
    columns = [column for column in table.columns if column.name in read]
    return f"(SELECT {', '.join(f'CAST(NULL AS {one.spark_type}) AS {quote(one.name)}' for one in columns)})"
