"""A document as one Spark SQL query. Pure: a tree in, text out.

Each node becomes one common table expression: its rows, joined with its own children, grouped by the columns that
the parent finds them by (``k0, k1 …``), so that it joins the parent by LEFT JOIN on unique keys and never changes
the number of the parent's rows. There is no correlated subquery, and columns of different tables meet only under
their own aliases, so names cannot clash.

*Order.* ``collect_list`` has none. Rows are numbered by a window over exactly the grouping columns (one shuffle serves both),
and the collected structs are sorted by that number; thus every type and direction that ORDER BY knows can be used, and types
without an order (maps) may be inside the elements. NULLs are placed explicitly, never by Spark's defaults.

*Nothing found.* A missing partner of a LEFT JOIN is NULL; `many` and `collect` turn it into an empty array, counts into 0.

*Restricted to some roots.* With `roots`, the rows of each table are first cut down by semi joins, from the
roots outwards, so that an incremental run aggregates what belongs to its roots and nothing else.

*The same twice.* Sums of floating-point values depend on the order of their terms; they are taken over sorted values, so that a
rebuild gives the same last bit. Sums of integers and decimals are exact in any order.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gold import types
from gold.documents import OrderedColumn
from gold.tree import Child, Nested, Node, Scope, Tree, TreeField, Value
from silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bronze.identifiers import TableName

Relation: TypeAlias = "Callable[[TableName], str]"
"""Gives the SQL relation of a silver table, e.g. ``delta.`/lake/silver/orders` VERSION AS OF 7``."""

SEVERAL = "_several"
"""Column of the compiled query (where a `one` is not found by a key): whether one matched several rows."""

KEY = "_key"
"""Column of gold tables whose documents do not hold their root's key."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A document's query.

    Attributes:
        sql: one SELECT: the document's fields, then `KEY` where needed, then `SEVERAL` where it can happen.
        columns: names of the columns that the gold table takes from it.
        fields: names of the document's own fields among them.
        key: the root's key as expressions over these columns.
        several: whether `SEVERAL` is there.
    """

    sql: str
    columns: tuple[str, ...]
    fields: tuple[str, ...]
    key: tuple[str, ...]
    several: bool


def compile_tree(tree: Tree, relation: Relation, *, roots: str | None = None) -> Compiled:
    """Compile a document.

    Args:
        tree: the resolved document.
        relation: gives the SQL relation of each silver table.
        roots: a relation with the key of the roots to build, columns ``k0, k1 …``; None builds all.
    """
    return _Compiler(tree, relation, roots).document()


def struct(pairs: Iterable[tuple[str, str]]) -> str:
    """A struct from names and expressions, one to a line where they are many."""
    parts = [f"{literal(name)}, {expression}" for name, expression in pairs]
    flat = ", ".join(parts)
    if len(flat) <= 80 and "\n" not in flat:
        return f"named_struct({flat})"
    return "named_struct(\n" + textwrap.indent(",\n".join(parts), "  ") + "\n)"


class _Compiler:
    def __init__(self, tree: Tree, relation: Relation, roots: str | None) -> None:
        self._tree = tree
        self._relation = relation
        self._roots = roots
        self._steps: list[tuple[str, str, str]] = []  # name, comment, SELECT

    def document(self) -> Compiled:
        tree, root = self._tree, self._tree.root
        source = self._relation(root.table.table)
        if self._roots is not None:
            matched = " AND ".join(f"{quote('t', name)} = r.k{i}" for i, name in enumerate(tree.key))
            self._step(
                "roots",
                f"rows of {root.table.table} to build",
                _semi_join(source, self._roots, matched, root),
            )
            source = "roots"
        for node in tree.children:
            self._node(node, source)
        output = [(_name(field), self._field(field, "t")) for field in tree.fields]
        fields = tuple(name for name, _ in output)
        if tree.key_fields:
            key = tuple(quote(name) for name in tree.key_fields)
        else:
            output.append((KEY, struct((name, quote("t", name)) for name in tree.key)))
            key = tuple(quote(KEY, name) for name in tree.key)
        columns = tuple(name for name, _ in output)
        several = _several(tree.children)
        if several:
            output.append((SEVERAL, several))
        selected = ",\n".join(f"{expression} AS {quote(name)}" for name, expression in output)
        where = [] if root.where is None or self._roots is not None else [root.where.sql("t")]
        final = _select(selected, f"{source} AS t", self._joins(tree.children, "t"), where)
        return Compiled(self._with(final), columns, fields, key, bool(several))

    def _step(self, name: str, comment: str, select: str) -> None:
        self._steps.append((name, comment, select))

    def _with(self, final: str) -> str:
        if not self._steps:
            return final
        steps = [
            f"-- {comment}\n{name} AS (\n{textwrap.indent(select, '  ')}\n)"
            for name, comment, select in self._steps
        ]
        return "WITH\n" + ",\n".join(steps) + "\n" + final

    def _node(self, node: Node, parent_source: str) -> None:
        """Add the steps of a node: its children first, then itself."""
        far, link, where = self._sources(node, parent_source)
        for child in node.children:
            self._node(child, far)
        rows = f"{far} AS t"
        if node.link is not None:
            rows = f"{link} AS l\nJOIN {far} AS t ON {_on(node.link.to, 'l', 't')}"
        keys = (
            [quote("l", this) for this, _ in node.link.on]
            if node.link
            else [quote("t", this) for this, _ in node.on]
        )
        comment = f"{node.scope.label}: {node.scope.table.table}"
        select = {"one": self._one, "many": self._many, "collect": self._many, "aggregate": self._aggregate}[
            node.kind
        ]
        self._step(node.name, comment, select(node, rows, keys, where))

    def _sources(self, node: Node, parent_source: str) -> tuple[str, str | None, list[str]]:
        """Relations of a node's own rows and of its link, and what is left to filter them by."""
        far, link = self._relation(node.scope.table.table), None
        found = [*_not_null(node)]
        filters = [node.scope.where.sql("t")] if node.scope.where else []
        link_filters: list[str] = []
        if node.link is not None:
            link = self._relation(node.link.scope.table.table)
            link_filters = [node.link.scope.where.sql("l")] if node.link.scope.where else []
        if self._roots is None:
            return far, link, [*found, *link_filters, *filters]
        label = f"{node.scope.label}: rows"
        if node.link is None:
            name = f"{node.name}_rows"
            self._step(name, label, _semi_join(far, parent_source, _on(node.on, "t", "r"), node.scope))
            return name, None, []
        link_name, far_name = f"{node.name}_links", f"{node.name}_rows"
        on = _on(node.link.on, "t", "r")
        self._step(
            link_name,
            f"{node.scope.label}: links",
            _semi_join(link or "", parent_source, on, node.link.scope),
        )
        to = " AND ".join(
            f"{quote('t', far_column)} = {quote('r', this)}" for this, far_column in node.link.to
        )
        self._step(far_name, label, _semi_join(far, link_name, to, node.scope))
        return far_name, link_name, []

    def _one(self, node: Node, rows: str, keys: Sequence[str], where: Sequence[str]) -> str:
        item = self._item(node)
        below = _several(node.children)
        if node.unique:
            output = [*_numbered(keys), f"{item} AS item", *([f"{below} AS several"] if below else [])]
            return _select(",\n".join(output), rows, self._joins(node.children, "t"), where)
        several = f"count(*) OVER (PARTITION BY {', '.join(keys)}) > 1" + (f" OR {below}" if below else "")
        output = [
            *_numbered(keys),
            f"{self._row_number(node, keys)} AS n",
            f"{item} AS item",
            f"{several} AS several",
        ]
        inner = _select(",\n".join(output), rows, self._joins(node.children, "t"), where)
        names = [f"k{i}" for i in range(len(keys))]
        return _select(", ".join([*names, "item", "several"]), _subquery(inner), [], ["n = 1"])

    def _many(self, node: Node, rows: str, keys: Sequence[str], where: Sequence[str]) -> str:
        below = _several(node.children)
        if node.kind == "collect":
            assert isinstance(node.fields[0], Value)  # noqa: S101 - so made by gold.tree
            where = [*where, f"{node.fields[0].expression.sql('t')} IS NOT NULL"]
        output = [*_numbered(keys), f"{self._row_number(node, keys)} AS n", f"{self._item(node)} AS item"]
        output += [f"{below} AS several"] if below else []
        inner = _select(",\n".join(output), rows, self._joins(node.children, "t"), where)
        names = ", ".join(f"k{i}" for i in range(len(keys)))
        ordered = "array_sort(collect_list(named_struct('n', n, 'item', item)), (a, b) -> a.n - b.n)"
        collected = [
            f"transform({ordered}, e -> e.item) AS item",
            *(["bool_or(several) AS several"] if below else []),
        ]
        limit = [] if node.limit is None else [f"n <= {node.limit}"]
        return _select(",\n".join([names, *collected]), _subquery(inner), [], limit) + f"\nGROUP BY {names}"

    def _aggregate(self, node: Node, rows: str, keys: Sequence[str], where: Sequence[str]) -> str:
        wheres = {measure.where for measure in node.measures}
        common = wheres.pop() if len(wheres) == 1 else None
        if common is not None:
            where = [*where, common.sql("t")]
        output = list(_numbered(keys))
        for index, measure in enumerate(node.measures):
            ddl = "" if measure.column is None else node.scope.table.column(measure.column).spark_type
            only = (
                ""
                if common is not None or measure.where is None
                else f" FILTER (WHERE {measure.where.sql('t')})"
            )
            value = "*" if measure.column is None else quote("t", measure.column)
            output.append(f"{_measure(measure.function, value, only, ddl)} AS m{index}")
        return _select(",\n".join(output), rows, [], where) + f"\nGROUP BY {', '.join(keys)}"

    def _item(self, node: Node) -> str:
        if node.plain:
            return self._field(node.fields[0], "t")
        pairs = [(_name(field), self._field(field, "t")) for field in node.fields]
        if node.link is not None:
            pairs += [(_name(field), self._field(field, "l")) for field in node.link.fields]
        return struct(pairs)

    def _field(self, field: TreeField, alias: str) -> str:
        if isinstance(field, Value):
            return field.expression.sql(alias)
        if isinstance(field, Nested):
            return struct((_name(inner), self._field(inner, alias)) for inner in field.fields)
        return _child(field)

    def _joins(self, children: Sequence[Node], alias: str) -> list[str]:
        joins = []
        for child in children:
            matched = (
                f"{child.name}.k{i} = {quote(alias, name)}" for i, name in enumerate(child.parent_columns)
            )
            joins.append(f"LEFT JOIN {child.name} ON {' AND '.join(matched)}")
        return joins

    def _row_number(self, node: Node, keys: Sequence[str]) -> str:
        order = [_ordered(wanted, "t") for wanted in node.order]
        if node.link is not None:
            order += [_ordered(OrderedColumn(name), "l") for name in node.link.scope.table.key]
        return f"row_number() OVER (PARTITION BY {', '.join(keys)} ORDER BY {', '.join(order)})"


def _child(field: Child) -> str:
    node = field.node
    if node.kind == "aggregate":
        found = f"{node.name}.m{field.measure}"
        counts = node.measures[field.measure].function in {"count", "count_distinct"}
        return f"coalesce({found}, 0L)" if counts else found
    return f"{node.name}.item" if node.kind == "one" else f"coalesce({node.name}.item, array())"


def _measure(function: str, value: str, only: str, ddl: str) -> str:
    if function == "count_distinct":
        return f"count(DISTINCT {value}){only}"
    if function in {"sum", "avg"} and types.is_floating(ddl):
        terms = f"array_sort(collect_list(CAST({value} AS DOUBLE)){only})"
        total = f"aggregate({terms}, 0D, (total, term) -> total + term)"
        if function == "avg":
            total += f" / count({value}){only}"
        return f"CASE WHEN count({value}){only} > 0 THEN {total} END"
    if function == "avg" and types.is_integer(ddl):
        # Spark adds integers up as doubles here, which rounds; PostgreSQL does not.
        return f"CAST(sum(CAST({value} AS DECIMAL(20, 0))){only} AS DOUBLE) / count({value}){only}"
    return f"{function}({value}){only}"


def _several(children: Sequence[Node]) -> str:
    """Whether a `one` below matched several rows, as an expression over the joined children; empty where none can."""
    exposing = [child for child in children if can_match_several(child)]
    return " OR ".join(f"coalesce({child.name}.several, false)" for child in exposing)


def can_match_several(node: Node) -> bool:
    """Whether a `one` at or below a node is found by columns that are not a key."""
    return (node.kind == "one" and not node.unique) or any(
        can_match_several(child) for child in node.children
    )


def _not_null(node: Node) -> list[str]:
    """A NULL join key joins nothing: such rows would only be grouped in vain."""
    if node.link is not None:
        key = node.link.scope.table.key
        return [f"{quote('l', this)} IS NOT NULL" for this, _ in node.link.on if this not in key]
    return [f"{quote('t', this)} IS NOT NULL" for this, _ in node.on if this not in node.scope.table.key]


def _numbered(keys: Sequence[str]) -> list[str]:
    return [f"{key} AS k{index}" for index, key in enumerate(keys)]


def _on(pairs: Sequence[tuple[str, str]], this: str, other: str) -> str:
    return " AND ".join(f"{quote(this, left)} = {quote(other, right)}" for left, right in pairs)


def _ordered(wanted: OrderedColumn, alias: str) -> str:
    direction = "DESC" if wanted.descending else "ASC"
    return f"{quote(alias, wanted.column)} {direction} NULLS {'FIRST' if wanted.nulls_first else 'LAST'}"


def _name(field: TreeField) -> str:
    return field.name


def _semi_join(relation: str, kept: str, condition: str, scope: Scope) -> str:
    where = [] if scope.where is None else [scope.where.sql("t")]
    return _select("t.*", f"{relation} AS t", [f"LEFT SEMI JOIN {kept} AS r ON {condition}"], where)


def _select(columns: str, source: str, joins: Sequence[str], where: Sequence[str]) -> str:
    lines = ["SELECT", textwrap.indent(columns, "  "), f"FROM {source}", *joins]
    if where:
        conditions = [f"({condition})" for condition in where] if len(where) > 1 else list(where)
        lines.append("WHERE " + "\n  AND ".join(conditions))
    return "\n".join(lines)


def _subquery(select: str) -> str:
    return f"(\n{textwrap.indent(select, '  ')}\n) AS s"
