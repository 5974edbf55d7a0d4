"""How large each document of a cut is, without assembling any: a query that adds up what it holds. Pure.

The rows of each node are found and joined as the document's own query does it (`gold.compile.compiler`). But
an element is a number, its bytes as JSON: the length of text, the usual width of other values. What one
parent has is their sum, so that nothing grows with a document.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gold.builder.widths import fields_width, width
from gold.compile.clauses import numbered, select, subquery, with_steps
from gold.compile.compiler import Compiler
from gold.language import types
from gold.tree.derived import rows_of
from gold.tree.nodes import Aggregate, Flattened, Nested, Value
from silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gold.builder.widths import TableSizes
    from gold.compile.query import TableSql
    from gold.tree.nodes import Collect, Many, Node, One, Recursion, Scope, Tree, TreeField

BYTES: Final = "bytes"
_SAMPLED: Final = 20_000
"""Rows of a table that are looked at to tell how many one parent has."""


@dataclass(frozen=True, slots=True)
class Roots:
    """The documents that are meant.

    Attributes:
        view: a relation with their keys, ``k0, k1 …``.
        kept: names of the document's own row sets (`gold.compile.query.Compiled.shared`) that are there as
            views.
    """

    view: str
    kept: frozenset[str]


def weights_query(tree: Tree, relation: TableSql, sizes: TableSizes, roots: Roots | None = None) -> str:
    """The key of each document, ``k0, k1 …``, and its `BYTES`, about.

    Args:
        tree: the document.
        relation: gives the SQL relation of each silver table.
        sizes: of the tables.
        roots: None weighs all.
    """
    return _Weights(tree, relation, sizes, roots).query()


def fans_query(nodes: Sequence[Node], relation: TableSql, sizes: TableSizes) -> str:
    """For each of some nodes (column ``node``) how many rows one parent has at most (``most``).

    Of a large table this is estimated from a sample, rather too high than too low: a parent that has a
    noticeable share of the table has that share of the sample, too.
    """
    parts = []
    for node in nodes:
        scope, on = (node.links[0].scope, node.links[0].on) if node.links else (node.scope, node.on)
        rows = max(sizes[scope.table.table][0], 1)
        share = min(1.0, _SAMPLED / rows)
        sample = "" if share == 1 else f" TABLESAMPLE ({100 * share:.6f} PERCENT) REPEATABLE (7)"
        keys = [quote(this) for this, _ in on]
        known = " AND ".join(f"{key} IS NOT NULL" for key in keys)
        rows_read = f"{rows_of(scope.table, relation(scope.table.table))}{sample}"
        counts = f"SELECT count(*) AS n FROM {rows_read} WHERE {known} GROUP BY {', '.join(keys)}"
        largest = "coalesce(max(n), 0)"
        seen = largest if share == 1 else f"({largest} + 3 * sqrt({largest}) + 3) / {share:.8f}D"
        parts.append(f"SELECT {node.id} AS node, CAST({seen} AS BIGINT) AS most FROM ({counts})")
    return "\nUNION ALL\n".join(parts)


class _Weights(Compiler):
    def __init__(self, tree: Tree, relation: TableSql, sizes: TableSizes, roots: Roots | None) -> None:
        super().__init__(tree, relation, None if roots is None else roots.view)
        self._sizes = sizes
        self._depth: dict[str, int] = {}
        self._kept = frozenset[str]() if roots is None else roots.kept

    def query(self) -> str:
        tree = self._tree
        source = self._begin()
        key = numbered([quote("t", name) for name in tree.key])
        own = self._own(tree.fields, tree.root, "t")
        columns = [*key, f"{_sum(own, tree.children)} AS {BYTES}"]
        where = [] if tree.root.where is None else [tree.root.where.sql("t")]
        final = select(columns, f"{source} AS t", self._joins(tree.children, "t"), where)
        rows = (step for step in self._rows.values() if step.name not in self._kept)
        return with_steps((*rows, *self._nodes), final)

    def _recursive(self, node: One | Many, recursion: Recursion, parent_source: str) -> None:
        """Each level counts as the first one does."""
        self._recurring(node, recursion, parent_source)
        self._depth[node.name] = recursion.depth
        self._node(replace(node, recursion=None), parent_source)

    def _item(self, node: Node) -> str:
        item = _sum(self._own(node.fields, node.scope, "t"), node.children)
        return f"{self._depth[node.name]} * ({item})" if node.name in self._depth else item

    def _below(self, node: Node) -> dict[str, str]:  # noqa: ARG002 - its interface
        """A weight says nothing of what a document's build counts."""
        return {}

    def _many(self, node: Many | Collect, rows: str, keys: Sequence[str], where: Sequence[str]) -> str:
        names = ", ".join(f"k{i}" for i in range(len(keys)))
        output = [*numbered(keys), f"{self._item(node)} AS item"]
        found = select(output, rows, self._joins(node.children, "t"), where)
        bound = node.most_elements
        total = "sum(item)"
        if bound is not None:
            total = f"CAST(sum(item) / count(*) * least(count(*), {bound}L) AS BIGINT)"
        return select([names, f"{total} AS item"], subquery(found)) + f"\nGROUP BY {names}"

    def _joins(self, children: Sequence[Node], alias: str) -> list[str]:
        return super()._joins([replace(child, recursion=None) for child in _weighed(children)], alias)

    def _own(self, fields: Sequence[TreeField], scope: Scope, alias: str) -> list[str]:
        """Terms that are the bytes of an object's own fields."""
        texts = [
            name for name in _columns(fields) if types.base(scope.table.column(name).spark_type) == "STRING"
        ]
        fixed = fields_width(fields, scope, self._sizes) - sum(
            width(scope, name, self._sizes) for name in texts
        )
        lengths = (f"coalesce(octet_length({quote(alias, name)}), 4) + 2" for name in texts)
        return [f"{max(round(fixed), 2)}L", *lengths]


def _columns(fields: Sequence[TreeField]) -> Iterator[str]:
    for field in fields:
        if isinstance(field, Nested):
            yield from _columns(field.fields)
        elif isinstance(field, Value):
            yield from field.expression.columns
        elif isinstance(field, Flattened):
            continue


def _sum(own: Sequence[str], children: Sequence[Node]) -> str:
    return " + ".join([*own, *(f"coalesce({child.name}.item, 0L)" for child in _weighed(children))])


def _weighed(nodes: Sequence[Node]) -> list[Node]:
    """Nodes without aggregates, which are small."""
    return [node for node in nodes if not isinstance(node, Aggregate)]
