"""Silver's tables at a cut, or at the log's head, as views of one session."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from gold.tree.nodes import ascii_word
from silver.run.small_reads import table_at
from silver.schema.live_rows import is_live, live_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from bronze.identifiers import TableName
    from bronze.lake.control import Cut
    from bronze.lake.location import Lake
    from gold.tree.nodes import Tree
    from silver.fresh import Head


class CutViews:
    """Views of silver's tables at a version. They stay between cycles: resolving a version lists the log."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark = spark
        self._lake = lake
        self._versions: dict[str, int] = {}

    def at(self, tree: Tree, cut: Cut) -> Callable[[TableName], str]:
        """Gives for each table of a document the view of its live rows at the cut."""
        names: dict[TableName, str] = {}
        for name, table in tree.tables().items():
            view = view_of(name)
            version = cut.tables[table.name]
            if self._versions.get(view) != version:
                rows = table_at(self._spark, self._lake, "silver", table.name, version)
                live_rows(rows).createOrReplaceTempView(view)
                self._versions[view] = version
            names[name] = view
        return names.__getitem__


def views_at_head(spark: SparkSession, tree: Tree, head: Head) -> Callable[[TableName], str]:
    """Gives for each table of a document the view of its live rows at the log's head.

    Raises:
        DefiniteError: one of them cannot be shown.
    """
    names: dict[TableName, str] = {}
    for name, table in tree.tables().items():
        rows = spark.sql(f"SELECT * FROM {head.view(table.name)} WHERE {is_live(table)}")
        names[name] = view_of(name)
        rows.createOrReplaceTempView(names[name])
    return names.__getitem__


def view_of(name: TableName) -> str:
    """The view of a table, another one for each; ``"a.b"."c"`` and ``"a"."b.c"`` are two."""
    return f"silver_{ascii_word(str(name))}_{hashlib.sha256(name.quoted.encode()).hexdigest()[:12]}"
