"""One document as it would be at a cut, read by what finds its rows.

The rows of each table that belong to the root are found one after another, from the root down, and kept. The
document is then assembled from them alone. In one query each node would find its rows again, and those of all
nodes above it. In a large table, rows are searched by the literal values of the root's key, which skips
files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bronze.errors import DefiniteError
from gold.builder.kept import Kept
from gold.builder.sizing import Sizing
from gold.builder.spark_settings import INTERPRETED, SINGLE_TASK, SORTED
from gold.builder.views import CutViews, views_at_head
from gold.builder.weights import Roots
from gold.compile.column_types import schema_of
from gold.compile.compiler import compile_tree
from silver.run.sessions import own_session
from silver.run.spark_settings import settings
from silver.run.table_log import SilverLog
from silver.sql import as_json, literal, quote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from bronze.lake.control import Cut
    from bronze.lake.location import Lake
    from gold.builder.memory import Machine
    from gold.tree.nodes import Tree
    from silver.fresh import Head

_ROOT: Final = "previewed"
_LARGE: Final = 200_000
"""Rows of a table from which on leaving out files is worth a question to its log."""


class Preview:
    """Makes single documents.

    Args:
        spark: a session.
        lake: where the tables lie.
        machine: where tasks run.
    """

    def __init__(self, spark: SparkSession, lake: Lake, machine: Machine) -> None:
        self._spark = own_session(spark)
        self._views = CutViews(self._spark, lake)
        self._kept = Kept(self._spark)
        self._silver = SilverLog(self._spark, lake)
        self._sizing = Sizing(self._spark, machine)

    def document(self, tree: Tree, cut: Cut, key: Sequence[str], *, head: Head | None = None) -> str | None:
        """A document as pretty JSON; None where the root is not there or fails the `where`.

        Args:
            tree: its definition, resolved.
            cut: of silver.
            key: the root's key as text.
            head: its tables at the log's head, where it is made of these and not of the cut's.

        Raises:
            DefiniteError: the key has another number of values, or values of other types, than the root's; or
                the document is refused, or too large.
        """
        typed = _typed(tree, key)
        schema_of(self._spark, tree)  # what is refused when it is built is here as well
        try:
            row = self._row(tree, cut, typed, head)
        finally:
            self._kept.forget()
        if row is None:
            self._check_key(tree, key, typed)
        return row

    def _row(self, tree: Tree, cut: Cut, typed: Sequence[str], head: Head | None) -> str | None:
        relation = self._views.at(tree, cut) if head is None else views_at_head(self._spark, tree, head)
        sizes = {name: self._silver.size(table.name) for name, table in tree.tables().items()}
        self._spark.sql(
            f"SELECT {', '.join(f'{value} AS k{i}' for i, value in enumerate(typed))}"
        ).createOrReplaceTempView(_ROOT)
        large = {name for name, (rows, _) in sizes.items() if rows > _LARGE}
        compiled = compile_tree(tree, relation, roots=_ROOT, single_task=True, given=typed, by_value=large)
        with settings(self._spark, INTERPRETED):
            for step in compiled.shared:
                self._kept.keep(step.sql, step.name)
            roots = Roots(_ROOT, frozenset(step.name for step in compiled.shared))
            plan = self._sizing.of_one(tree, relation, sizes, roots)
        document = as_json(map(quote, compiled.fields), pretty=True)
        wanted = {**INTERPRETED, **SINGLE_TASK, **({} if plan.together else SORTED)}
        with settings(self._spark, wanted):
            row = self._spark.sql(f"SELECT {document} AS json FROM (\n{compiled.assembly}\n)").first()
        return None if row is None else str(row["json"])

    def _check_key(self, tree: Tree, key: Sequence[str], typed: Sequence[str]) -> None:
        """Tell a key that is not there from one that cannot be.

        Raises:
            DefiniteError: a value is none of its column's type.
        """
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
    """The key's values as expressions.

    Raises:
        DefiniteError: there are too many, or too few.
    """
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
