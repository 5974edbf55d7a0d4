"""Build a single document as of a cut, from only the rows that belong to the root.

The preview computes the rows of each table that belong to the root, table by table, from the root down, and
assembles the document from these rows alone. In a single query each node would find its rows again, and the
rows of all nodes above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.control import Cut
from deltasmelt.gold.builder.build import ComputedViews, CutViews, views_at_head
from deltasmelt.gold.builder.sizing import Sizing
from deltasmelt.gold.builder.spark_settings import INTERPRETED, SINGLE_TASK, SORTED
from deltasmelt.gold.builder.weights import Roots
from deltasmelt.gold.compile.column_types import schema_of
from deltasmelt.gold.compile.compiler import compile_tree
from deltasmelt.gold.tree.check import resolved
from deltasmelt.silver.run.table_log import SilverLog
from deltasmelt.silver.spark.tuning import settings
from deltasmelt.silver.sql import as_json, literal, quote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.gold.builder.memory import Machine
    from deltasmelt.gold.language.document import Document
    from deltasmelt.gold.tree.nodes import Tree
    from deltasmelt.silver.fresh import FreshTables, Head

_ROOT: Final = "previewed"
_LARGE: Final = 200_000
"""Number of rows of a table from which the gain of skipped files exceeds the cost of reading the log."""


def at_head(document: Document, fresh: FreshTables) -> tuple[Tree, Head]:
    """Return a document resolved by the shapes at the log's head, and the tables at the head."""
    names: set[str] = set()
    while True:
        head = fresh.read(names)
        tree = resolved(document, fresh.catalog(head))
        names_needed = {table.name for table in tree.tables().values()}
        if names_needed <= names:
            return tree, head
        names = names_needed


class Preview:
    """Builder of single documents, in a session that only the preview uses."""

    def __init__(self, spark: SparkSession, lake: Lake, machine: Machine) -> None:
        self._spark = spark
        self._views = CutViews(spark, lake)
        self._computed = ComputedViews(spark)
        self._silver = SilverLog(lake)
        self._sizing = Sizing(spark, machine)

    def document(self, tree: Tree, silver: Cut | Head, key: str | Sequence[str]) -> str:
        """Return a document as pretty JSON.

        Args:
            tree: the definition of the document, resolved.
            silver: a cut of silver, or its tables at the log's head.
            key: value of the root's key; values of a composite key, as a sequence or separated by commas.

        Raises:
            DefiniteError: the key does not fit the root's key in number or types of values; the root does not
                exist, or fails the `where`; gold refuses the document, or the document is too large.
        """
        values = key
        if isinstance(values, str):
            values = [part.strip() for part in values.split(",")] if len(tree.key) > 1 else [values]
        typed = _typed(tree, values)
        schema_of(self._spark, tree)  # refuse a document that a build would refuse
        try:
            row = self._row(tree, silver, typed)
        finally:
            self._computed.forget()
        if row is None:
            self._check_key(tree, values, typed)
            raise DefiniteError(
                f"{tree.name} has no document with the key {', '.join(values)}",
                code="document-not-found",
                where=f"silver cut {silver.commit_lsn}"
                if isinstance(silver, Cut)
                else f"silver at {silver.lsn}",
                remedy=f"check the key: no row of {tree.root.table.table} has this key, or the document's "
                "where excludes the row",
            )
        return row

    def _row(self, tree: Tree, silver: Cut | Head, typed: Sequence[str]) -> str | None:
        if isinstance(silver, Cut):
            relation = self._views.at(tree, silver)
        else:
            relation = views_at_head(self._spark, tree, silver)
        sizes = {name: self._silver.size(table.name) for name, table in tree.tables().items()}
        self._spark.sql(
            f"SELECT {', '.join(f'{value} AS k{i}' for i, value in enumerate(typed))}"
        ).createOrReplaceTempView(_ROOT)
        # In a large table, the literal values of the root's key find rows, which skips files.
        large = {name for name, (rows, _) in sizes.items() if rows > _LARGE}
        compiled = compile_tree(
            tree, relation, roots=_ROOT, single_task=True, key_values=typed, by_value=large
        )
        with settings(self._spark, INTERPRETED):
            for step in compiled.shared:
                self._computed.keep(step.sql, step.name)
            roots = Roots(_ROOT, frozenset(step.name for step in compiled.shared))
            plan = self._sizing.of_one(tree, relation, sizes, roots)
        document = as_json(map(quote, compiled.fields), pretty=True)
        values = {**INTERPRETED, **SINGLE_TASK, **({} if plan.together else SORTED)}
        with settings(self._spark, values):
            row = self._spark.sql(f"SELECT {document} AS json FROM (\n{compiled.assembly}\n)").first()
        return None if row is None else str(row["json"])

    def _check_key(self, tree: Tree, key: Sequence[str], typed: Sequence[str]) -> None:
        """Raise a DefiniteError of its own for a key that cannot exist, unlike a key without a row."""
        row = self._spark.sql(f"SELECT {' OR '.join(f'{value} IS NULL' for value in typed)} AS bad").first()
        if row is not None and row["bad"]:
            raise DefiniteError(
                f"{', '.join(key)!r} is not a key of {tree.root.table.table} ({_described(tree)})",
                code="document-key",
                where=tree.name,
            )


def _described(tree: Tree) -> str:
    return ", ".join(f"{name} {tree.root.table.column(name).spark_type}" for name in tree.key)


def _typed(tree: Tree, key: Sequence[str]) -> list[str]:
    """Return the key's values as expressions; raise a DefiniteError for too many or too few values."""
    if len(key) != len(tree.key):
        raise DefiniteError(
            f"the key has {len(tree.key)} column(s) ({_described(tree)}), {len(key)} given",
            code="document-key",
            where=tree.name,
        )
    return [
        f"try_cast({literal(value)} AS {tree.root.table.column(name).spark_type})"
        for name, value in zip(tree.key, key, strict=True)
    ]
