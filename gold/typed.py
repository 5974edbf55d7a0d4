"""The types of a document's columns, asked of Spark without any data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gold.compile import compile_tree
from silver.sql import quote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bronze.identifiers import TableName
    from gold.tree import Tree


def columns_of(spark: SparkSession, tree: Tree) -> dict[str, Any]:
    """Spark's description of a document's fields (`StructType.jsonValue`).

    Raises:
        PySparkException: an expression is not well-formed, or does not fit its types.
    """
    compiled = compile_tree(tree, lambda name: _empty(tree, name))
    described: dict[str, Any] = (
        spark.sql(compiled.sql).select(*map(quote, compiled.fields)).schema.jsonValue()
    )
    return described


def _empty(tree: Tree, name: TableName) -> str:
    """A relation with a table's columns and no table behind it."""
    columns = tree.tables()[name].columns
    return f"(SELECT {', '.join(f'CAST(NULL AS {one.spark_type}) AS {quote(one.name)}' for one in columns)})"
