"""Find places at which a document orders text: by code points, for any collation at the source. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltasmelt.gold.language.comparing import comparison
from deltasmelt.gold.tree.derived import origin
from deltasmelt.gold.tree.nodes import Aggregate, Collect, Many, One, Pick

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.gold.tree.nodes import Node, Scope, Tree


def text_orders(tree: Tree) -> Iterator[tuple[str, TableName, str]]:
    """Yield each place at which the order of text decides: path, table and column."""
    for node in tree.nodes():
        for label, name in _ordered(node):
            column = origin(node.scope.table, name)
            if comparison(node.scope.table.column(column)).family in {"text", "citext"}:
                yield label, node.scope.table.table, column


def _ordered(node: Node) -> Iterator[tuple[str, str]]:
    if isinstance(node, Aggregate):
        for measure in node.measures:
            if measure.function in {"min", "max"} and measure.column is not None:
                yield measure.label, measure.column
    elif isinstance(node, Many | Collect | Pick) or (isinstance(node, One) and not node.unique):
        takes = isinstance(node, One | Pick) or node.most_elements is not None
        for column in node.order:
            # The key, as the last term of each order, counts only if the order also decides which rows gold
            # takes.
            if takes or not _is_key(node.scope, column.column):
                yield node.scope.label, column.column


def _is_key(scope: Scope, name: str) -> bool:
    return origin(scope.table, name) in scope.table.key
