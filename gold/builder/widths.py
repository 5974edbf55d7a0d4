"""Estimate the bytes of documents from the statistics of silver's tables. Pure.

For each node of a document, two numbers count: the rows of its table, and the width of a row as JSON. The
average number of rows follows from the sizes of the tables. The number for the largest document follows from
the most rows that one parent has (`fans`).
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

from deltasmelt.gold.language import types
from deltasmelt.gold.tree.derived import Derived
from deltasmelt.gold.tree.nodes import Aggregate, Child, Collect, Flattened, Many, Nested, One, Pick, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.gold.tree.nodes import Node, Recursion, Scope, Tree, TreeField

TableSizes: TypeAlias = "Mapping[TableName, tuple[int, int]]"
"""Rows and bytes of each silver table."""

_FIXED: Final = {
    "BOOLEAN": 5, "TINYINT": 3, "SMALLINT": 4, "INT": 7, "BIGINT": 10, "FLOAT": 8, "DOUBLE": 12, "DECIMAL": 8,
    "DATE": 12, "TIMESTAMP": 29, "TIMESTAMP_NTZ": 28,
}  # fmt: skip
_SHORT: Final = 20
_COMPRESSED: Final = 4
"""Bytes of text as JSON for each byte in a file."""
_EMPTY: Final = 700
"""Bytes of a file for each of its columns, whatever the column holds."""
_BEYOND: Final = 2**60
"""Number of bytes or rows that no heap has room for."""
_OWN: Final = 24
"""Bytes of a document in addition to its fields."""


def average(tree: Tree, sizes: TableSizes) -> int:
    """Return the average bytes of a document."""
    return round(_of_tree(tree, sizes, lambda node: _rows_per_parent(node, sizes), None))


def most(tree: Tree, sizes: TableSizes, fans: Mapping[int, int] | None = None) -> int:
    """Return bytes that no document exceeds, by the statistics.

    `fans` has, by node, the most rows that one parent has. By the negative of a recursion's node, it has the
    most rows directly below one row. Without `fans`, a parent may have all rows of a table.
    """

    def fan(node: Node, number: int) -> float:
        if isinstance(node, One | Pick):
            return 1
        found = max(sizes[scope.table.table][0] for scope in node.scopes)
        return found if fans is None else fans.get(number, found)

    def per_parent(node: Node) -> float:
        return fan(node, node.id)

    def levels(node: Node, recursion: Recursion, rows: float) -> float:
        """Return the rows of all levels."""
        # In a forest, a row has one place in a level; in a net, a row is on many paths.
        bound = sizes[node.scope.table.table][0] if is_forest(node, recursion) else math.inf
        further, found = fan(node, -node.id), 0.0
        further = min(further, node.most_elements or further)
        for _ in range(recursion.depth):
            found += rows
            rows = min(rows * further, max(bound, rows if isinstance(node, One) else 0), _BEYOND)
        return found

    return round(min(_of_tree(tree, sizes, per_parent, levels), _BEYOND))


def is_forest(node: Node, recursion: Recursion) -> bool:
    """Check whether each row of a recursion has at most one row above."""
    return {theirs for _, theirs in recursion.on} >= set(node.scope.table.key)


def recursions(tree: Tree) -> set[TableName]:
    """Return the tables of recursions in which a row may have several rows below."""
    return {
        node.scope.table.table
        for node in tree.nodes()
        if node.recursion is not None and not isinstance(node, One)
    }


def below(tree: Tree, sizes: TableSizes) -> dict[TableName, int]:
    """Return the bytes that one more row of each table adds, with an average number of child rows."""
    found: dict[TableName, int] = {}

    def wide(node: Node) -> float:
        own = fields_width(node.fields, node.scope, sizes)
        own += sum(fields_width(link.fields, link.scope, sizes) for link in node.links)
        return own + sum(max(1.0, _rows_per_parent(child, sizes)) * wide(child) for child in node.children)

    for node in tree.nodes():
        for scope in node.scopes:
            found[scope.table.table] = found.get(scope.table.table, 0) + round(wide(node))
    root = tree.root.table.table
    found[root] = found.get(root, 0) + round(fields_width(tree.fields, tree.root, sizes))
    return found


def places(tree: Tree) -> Counter[TableName]:
    """Count the places of a document that hold fields of each table."""
    nodes = [node for node in tree.nodes() if not isinstance(node, Aggregate)]
    return Counter(
        scope.table.table for scope in [tree.root, *(one for node in nodes for one in node.scopes)]
    )


def many(tree: Tree) -> list[Node]:
    """Return the nodes with several rows per parent in a document."""
    return [node for node in tree.nodes() if isinstance(node, Many | Collect)]


def _rows_per_parent(node: Node, sizes: TableSizes) -> float:
    """Return the average number of a node's rows per parent."""
    if isinstance(node, One | Pick):
        return 1
    table = node.links[0].scope if node.links else node.scope
    return sizes[table.table.table][0] / max(sizes[node.parent.table.table][0], 1)


def _of_tree(
    tree: Tree,
    sizes: TableSizes,
    per_parent: Callable[[Node], float],
    levels: Callable[[Node, Recursion, float], float] | None,
) -> float:
    """Return the bytes of a document.

    `per_parent` gives the rows of a node per parent, `levels` a recursion's rows from the rows of its first
    level. With `levels` the result is a maximum.
    """

    def of(nodes: Sequence[Node], parents: float) -> Iterator[float]:
        for node in nodes:
            if isinstance(node, Aggregate):
                yield parents * sum(len(measure.label) + _SHORT for measure in node.measures)
                continue
            rows = parents * per_parent(node)
            if levels is not None and not isinstance(node, One | Pick):
                # If rows are found from one parent only, a node has at most the rows of its table.
                rows = min(rows, max(sizes[scope.table.table][0] for scope in node.scopes))
            bound = node.most_elements
            rows = rows if bound is None else min(rows, parents * bound)
            if node.recursion is not None:
                depth = node.recursion.depth
                rows = rows * depth if levels is None else levels(node, node.recursion, rows)
            wide = fields_width(node.fields, node.scope, sizes)
            wide += sum(fields_width(link.fields, link.scope, sizes) for link in node.links)
            yield rows * wide + sum(of(node.children, rows))

    return _OWN + fields_width(tree.fields, tree.root, sizes) + sum(of(tree.children, 1))


def fields_width(fields: Sequence[TreeField], scope: Scope, sizes: TableSizes) -> float:
    """Return the bytes of an object's own fields; a field of child rows counts with its name alone."""
    found = 2.0
    for field in fields:
        if not isinstance(field, Flattened):
            found += len(field.name) + 4
        if isinstance(field, Nested):
            found += fields_width(field.fields, scope, sizes)
        elif isinstance(field, Value):
            found += sum(width(scope, name, sizes) for name in field.expression.columns) or _SHORT
        elif isinstance(field, Child):
            found += 2
    return found


def width(scope: Scope, column: str, sizes: TableSizes) -> float:
    """Return the bytes of a column's values as JSON."""
    kind = types.base(scope.table.column(column).spark_type)
    if kind in _FIXED:
        return _FIXED[kind]
    rows, size = sizes[scope.table.table]
    stored = [one for one in scope.table.columns if not isinstance(one, Derived)]
    size = max(0, size - _EMPTY * (len(stored) + len(scope.table.own_columns)))
    shares = [_share(types.base(one.spark_type)) for one in stored]
    return max(_SHORT, _COMPRESSED * size / max(rows, 1) * _share(kind) / sum(shares))


def is_fixed(kind: str) -> bool:
    """Check whether all values of a type have about equal bytes as JSON."""
    return kind in _FIXED


def _share(kind: str) -> int:
    """Return a column's relative share of a row's bytes."""
    # Binary values are usually longer than texts.
    return 0 if kind in _FIXED else 8 if kind == "BINARY" else 1
