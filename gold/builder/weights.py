"""Weigh each document of a cut without assembling any: a query that adds up the bytes of rows. Pure.

The query finds and joins the rows of each node as the document's own query does (`gold.compile.compiler`).
But an element is a number, its bytes as JSON: the length of texts, the usual width of all further values. The
weight of a parent's rows is their sum, so no value grows with a document.

The query weighs a recursion from the last level upwards: a row's weight is its own bytes plus the weight of
the rows below. So each level is one join and one sum over the existing rows, however many paths lead through
a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from deltasmelt.gold.builder.widths import fields_width, is_forest, width
from deltasmelt.gold.compile.clauses import CommonTable, numbered, select, subquery, with_steps
from deltasmelt.gold.compile.compiler import Compiler
from deltasmelt.gold.language import types
from deltasmelt.gold.tree.derived import rows_of
from deltasmelt.gold.tree.nodes import Aggregate, Flattened, Nested, One, Value
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltasmelt.gold.builder.widths import TableSizes
    from deltasmelt.gold.compile.query import TableSql
    from deltasmelt.gold.tree.nodes import Collect, Many, Node, Recursion, Scope, Tree, TreeField

BYTES: Final = "bytes"
_MOST: Final = "1e12D"
"""Bytes that no heap has room for; the query cuts sums at this number, so that no sum overflows."""
_SAMPLED: Final = 20_000
"""Number of a table's rows that the query samples to estimate the rows of one parent."""


@dataclass(frozen=True, slots=True)
class Roots:
    """The documents to weigh.

    `view` is a relation with the documents' keys, ``k0, k1 …``. `computed` names the document's shared row
    sets (`gold.compile.query.Compiled.shared`) that exist as views.
    """

    view: str
    computed: frozenset[str]


def weights_query(tree: Tree, relation: TableSql, sizes: TableSizes, roots: Roots | None = None) -> str:
    """Return a query for the key of each document (of `roots`), ``k0, k1 …``, and its approximate `BYTES`."""
    return _Weights(tree, relation, sizes, roots).query()


def fans_query(nodes: Sequence[Node], relation: TableSql, sizes: TableSizes) -> str:
    """Return a query for the highest number of rows (``most``) that one parent has in each node (``node``).

    The negative number of a node stands for its recursion: the highest number of rows directly below one row.
    """
    parts = []
    places = [
        (node.id, *((node.links[0].scope, node.links[0].on) if node.links else (node.scope, node.on)))
        for node in nodes
    ]
    places += [(-node.id, node.scope, node.recursion.on) for node in nodes if node.recursion is not None]
    for number, scope, on in places:
        rows = max(sizes[scope.table.table][0], 1)
        share = min(1.0, _SAMPLED / rows)
        sample = "" if share == 1 else f" TABLESAMPLE ({100 * share:.6f} PERCENT) REPEATABLE (7)"
        keys = [quote(this) for this, _ in on]
        known = " AND ".join(f"{key} IS NOT NULL" for key in keys)
        rows_read = f"{rows_of(scope.table, relation(scope.table.table))}{sample}"
        counts = f"SELECT count(*) AS n FROM {rows_read} WHERE {known} GROUP BY {', '.join(keys)}"
        largest = "coalesce(max(n), 0)"
        # An estimate from a sample, rather too high than too low. A parent with a noticeable share of the
        # table has an equal share of the sample.
        seen = largest if share == 1 else f"({largest} + 3 * sqrt({largest}) + 3) / {share:.8f}D"
        parts.append(f"SELECT {number} AS node, CAST({seen} AS BIGINT) AS most FROM ({counts})")
    return "\nUNION ALL\n".join(parts)


class _Weights(Compiler):
    def __init__(self, tree: Tree, relation: TableSql, sizes: TableSizes, roots: Roots | None) -> None:
        super().__init__(tree, relation, None if roots is None else roots.view)
        self._sizes = sizes
        self._walked: dict[str, str] = {}
        self._computed = frozenset[str]() if roots is None else roots.computed

    def query(self) -> str:
        tree = self._tree
        source = self._begin()
        key = numbered([quote("t", name) for name in tree.key])
        own = self._own(tree.fields, tree.root, "t")
        columns = [*key, f"{_sum(own, tree.children)} AS {BYTES}"]
        where = [] if tree.root.where is None else [tree.root.where.sql("t")]
        final = select(columns, f"{source} AS t", self._joins(tree.children, "t"), where)
        rows = (step for step in self._rows.values() if step.name not in self._computed)
        return with_steps((*rows, *self._nodes), final)

    def _recursive(self, node: One | Many, recursion: Recursion, parent_source: str) -> None:
        """Weigh each row with all rows below, up to the last level; then weigh the node's own rows."""
        source = self._recurring(node, recursion, parent_source)
        for child in node.children:
            self._node(child, source)
        key = node.scope.table.key
        names = list(dict.fromkeys([*key, *(name for pair in recursion.on for name in pair)]))
        place = {name: f"c{i}" for i, name in enumerate(names)}
        columns = [f"{quote('t', name)} AS {column}" for name, column in place.items()]
        item = _sum(self._own(node.fields, node.scope, "t"), node.children)
        where = [] if node.scope.where is None else [node.scope.where.sql("t")]
        made = select([*columns, f"CAST({item} AS DOUBLE) AS item"], f"{source} AS t",
                      self._joins(node.children, "t"), where)  # fmt: skip
        rows = walked = self._step(node, "rows", made)
        above = [(place[this], place[theirs]) for this, theirs in recursion.on]
        below = ", ".join(this for this, _ in above)
        own = " AND ".join(f"{this} <=> {theirs}" for this, theirs in above)
        # In a forest, a row that is its own parent does not count below itself. The document cuts any longer
        # circle; the query follows the circle up to the last level, so the weight exceeds the document's
        # bytes.
        others = f" WHERE NOT ({own})" if is_forest(node, recursion) else ""
        met = " AND ".join(f"s.{this} = b.{theirs}" for this, theirs in above)
        for level in range(recursion.depth - 1, 0, -1):
            found = f"SELECT {below}, {_total(node)} AS item FROM {walked}{others}"
            item = f"least(b.item + coalesce(s.item, 0D), {_MOST}) AS item"
            joined = f"LEFT JOIN {subquery(found + f' GROUP BY {below}')} ON {met}"
            query = select([*(f"b.{column}" for column in place.values()), item], f"{rows} AS b", [joined])
            walked = self._step(node, f"from{level}", query)
        self._walked[node.name] = walked
        self._node(replace(node, recursion=None, children=()), parent_source)

    def _step(self, node: Node, suffix: str, sql: str) -> str:
        name = f"{node.name}_{suffix}"
        self._nodes.append(CommonTable(name, f"{node.scope.label}: {suffix}", sql))
        return name

    def _grouped(self, node: Node, rows: str, keys: Sequence[str], where: Sequence[str]) -> str:
        walked = self._walked.get(node.name)
        if walked is not None:
            on = " AND ".join(f"w.c{i} = {quote('t', name)}" for i, name in enumerate(node.scope.table.key))
            rows = f"{rows}\nJOIN {walked} AS w ON {on}"
        return super()._grouped(node, rows, keys, where)

    def _item(self, node: Node) -> str:
        if node.name in self._walked:
            return "CAST(w.item AS BIGINT)"
        return _sum(self._own(node.fields, node.scope, "t"), node.children)

    def _below(self, node: Node) -> dict[str, str]:  # noqa: ARG002 - its interface
        """Return no counts: a weight counts no event of a document's build."""
        return {}

    def _many(self, node: Many | Collect, rows: str, keys: Sequence[str], where: Sequence[str]) -> str:
        names = ", ".join(f"k{i}" for i in range(len(keys)))
        output = [*numbered(keys), f"{self._item(node)} AS item"]
        found = select(output, rows, self._joins(node.children, "t"), where)
        total = f"CAST({_total(node)} AS BIGINT) AS item"
        return select([names, total], subquery(found)) + f"\nGROUP BY {names}"

    def _joins(self, children: Sequence[Node], alias: str) -> list[str]:
        return super()._joins([replace(child, recursion=None) for child in _weighed(children)], alias)

    def _own(self, fields: Sequence[TreeField], scope: Scope, alias: str) -> list[str]:
        """Return terms for the bytes of an object's own fields."""
        texts = [
            name for name in _columns(fields) if types.base(scope.table.column(name).spark_type) == "STRING"
        ]
        fixed = fields_width(fields, scope, self._sizes) - sum(
            width(scope, name, self._sizes) for name in texts
        )
        lengths = (f"coalesce(octet_length({quote(alias, name)}), 4) + 2" for name in texts)
        return [f"{max(round(fixed), 2)}L", *lengths]


def _total(node: Node) -> str:
    """Return an aggregate for the weight of a parent's rows of a node."""
    if isinstance(node, One):
        return "max(item)"
    bound = node.most_elements
    return "sum(item)" if bound is None else f"sum(item) / count(*) * least(count(*), {bound}L)"


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
    """Return the nodes without aggregates, because aggregates are small."""
    return [node for node in nodes if not isinstance(node, Aggregate)]
