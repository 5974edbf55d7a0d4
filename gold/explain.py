"""Explain how changes reach a document: each node of the tree, and its join path to the roots. Pure.

The explanation reads gold's own data: the scopes of the tree with their columns (`gold.tree.resolve`), and
the columns by which gold walks rows up (`gold.incremental.affected`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deltasmelt.gold.tree.derived import origin
from deltasmelt.gold.tree.nodes import Aggregate, Collect, Many, One, Pick

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.gold.expressions.expressions import Expression
    from deltasmelt.gold.language.notation import OrderedColumn
    from deltasmelt.gold.tree.nodes import Node, Scope, Tree


@dataclass(frozen=True, slots=True)
class JoinStep:
    """A join on the path from rows to the roots.

    Attributes:
        from_columns: table and columns at the start of the step, ``public.order_items.order_id``.
        to_columns: table and columns with the same values, one step nearer to the root.
        max_times: for a join of a table with itself: how often the path may use the join.
    """

    from_columns: str
    to_columns: str
    max_times: int = 1


@dataclass(frozen=True, slots=True)
class ExplainedNode:
    """An occurrence of a table in a document.

    Attributes:
        path: fields from the document down, ``orders.items``; empty for the root.
        other_paths: other fields that come from one pass over the same rows (aggregates).
        kind: ``root``, ``one``, ``many``, ``through`` (a link table to the path's own table), or aggregates.
        columns: the columns read; a change of any other column affects no document at this place.
        where: the conditions on rows; one true condition is enough.
        order_by: the order of the rows, complete; empty if the order does not matter.
        join_path: from the row to the root whose document a change affects; empty for the root itself.
    """

    path: str
    other_paths: tuple[str, ...]
    kind: str
    table: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    where: str | None
    order_by: tuple[str, ...]
    join_path: tuple[JoinStep, ...]


def explain(tree: Tree) -> list[ExplainedNode]:
    """Return every node of a document: the root, then in the order of the file, links before their table."""
    above = {id(node.scope): node for node in tree.nodes()}
    explained = [_node(tree.root, "root", [tree.root.where], ())]
    for node in tree.nodes():
        paths = [_join_path(node, index, above) for index in range(len(node.scopes))]
        explained += [
            _node(link.scope, "through", [link.scope.where], path)
            for link, path in zip(node.links, paths, strict=False)
        ]
        measures = node.measures if isinstance(node, Aggregate) else []
        wheres = [measure.where for measure in measures] or [node.scope.where]
        explained_node = _node(node.scope, _kind(node), [] if None in wheres else wheres, paths[-1])
        other_labels = tuple(measure.label for measure in measures[1:])
        order_by = tuple(_ordered(node.scope, column) for column in _order(node))
        explained.append(replace(explained_node, other_paths=other_labels, order_by=order_by))
    return explained


def _node(
    scope: Scope, kind: str, wheres: Sequence[Expression | None], path: Sequence[JoinStep]
) -> ExplainedNode:
    table = scope.table
    read = {origin(table, name) for name in scope.reads | set(table.key)}
    columns = tuple(column.name for column in table.columns if column.name in read)
    texts = dict.fromkeys(str(text) for text in wheres if text is not None)
    filters = " or ".join(texts if len(texts) < 2 else (f"({text})" for text in texts)) or None
    return ExplainedNode(
        scope.label, (), kind, str(table.table), table.key, columns, filters, (), tuple(path)
    )


def _kind(node: Node) -> str:
    match node:
        case Aggregate():
            return ", ".join(dict.fromkeys(measure.function for measure in node.measures))
        case Pick():
            return "last" if node.last else "first"
        case _:
            return type(node).__name__.lower()


def _order(node: Node) -> Sequence[OrderedColumn]:
    """Return the order of a node's rows; empty if the order does not matter."""
    match node:
        case One(unique=False) | Many() | Collect() | Pick():
            return node.order
        case _:
            return ()


def _ordered(scope: Scope, column: OrderedColumn) -> str:
    text = origin(scope.table, column.column) + (" desc" if column.descending else "")
    usual = column.nulls_first == column.descending
    return text if usual else f"{text} nulls {'first' if column.nulls_first else 'last'}"


def _join_path(node: Node, index: int, above: dict[int, Node]) -> list[JoinStep]:
    """Return the path from a scope of a node to the root."""
    path: list[JoinStep] = []
    if node.recursion is not None:
        path.append(_step(node.scope, node.recursion.on, node.scope, node.recursion.depth - 1))
    scopes = [node.parent, *node.scopes]
    path += [_step(scopes[link + 1], node.on_at(link), scopes[link]) for link in range(index, -1, -1)]
    if id(node.parent) in above:
        parent = above[id(node.parent)]
        path += _join_path(parent, len(parent.links), above)
    return path


def _step(first: Scope, on: Sequence[tuple[str, str]], second: Scope, times: int = 1) -> JoinStep:
    left, right = (
        ", ".join(origin(scope.table, pair[side]) for pair in on)
        for side, scope in enumerate((first, second))
    )
    if len(on) > 1:
        left, right = f"({left})", f"({right})"
    return JoinStep(f"{first.table.table}.{left}", f"{second.table.table}.{right}", times)
