"""How changes reach a document: each place of its tree, and the way from there to the roots. Pure.

It is told from what gold itself works by: the scopes of the tree with the columns they read
(`gold.tree.resolve`) and the columns by which rows are walked up (`gold.incremental.affected`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gold.tree.nodes import Aggregate, Collect, Many, One, Pick

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gold.expressions.expressions import Expression
    from gold.language.notation import OrderedColumn
    from gold.tree.nodes import Node, Scope, Tree


@dataclass(frozen=True, slots=True)
class Hop:
    """A step from rows towards the roots.

    Attributes:
        this: table and columns that the step starts from, ``public.order_items.order_id``.
        other: table and columns that have the same values one step nearer to the root.
        levels: of a join of a table with itself: how often it may be taken.
    """

    this: str
    other: str
    levels: int = 1


@dataclass(frozen=True, slots=True)
class Place:
    """One occurrence of a table in a document.

    Attributes:
        path: fields from the document down, ``orders.items``; empty for the root.
        also: other fields that come from one pass over the same rows (aggregates).
        verb: ``root``, ``one``, ``many``, ``through`` (a table on the way to the path's own), or aggregates.
        key: the table's key.
        reads: columns; a change in any other column of the table marks nothing here.
        where: the conditions that rows must meet; one is enough.
        order: the order of the rows, complete; empty where it does not matter.
        way: from the row to the root whose document a change marks; empty for the root itself.
    """

    path: str
    also: tuple[str, ...]
    verb: str
    table: str
    key: tuple[str, ...]
    reads: tuple[str, ...]
    where: str | None
    order: tuple[str, ...]
    way: tuple[Hop, ...]


def explain(tree: Tree) -> list[Place]:
    """Every place of a document: the root, then in the order of the file, tables between before theirs."""
    above = {id(node.scope): node for node in tree.nodes()}
    places = [_place(tree.root, "root", [tree.root.where], ())]
    for node in tree.nodes():
        ways = [_way(node, index, above) for index in range(len(node.scopes))]
        places += [
            _place(link.scope, "through", [link.scope.where], way)
            for link, way in zip(node.links, ways, strict=False)
        ]
        measures = node.measures if isinstance(node, Aggregate) else []
        wheres = [measure.where for measure in measures] or [node.scope.where]
        own = _place(node.scope, _verb(node), [] if None in wheres else wheres, ways[-1])
        also = tuple(measure.label for measure in measures[1:])
        order = tuple(_ordered(wanted) for wanted in _order(node))
        places.append(replace(own, also=also, order=order))
    return places


def _place(scope: Scope, verb: str, wheres: Sequence[Expression | None], way: Sequence[Hop]) -> Place:
    table = scope.table
    reads = tuple(column.name for column in table.columns if column.name in scope.reads | set(table.key))
    texts = dict.fromkeys(str(where) for where in wheres if where is not None)
    where = " or ".join(texts if len(texts) < 2 else (f"({text})" for text in texts)) or None
    return Place(scope.label, (), verb, str(table.table), table.key, reads, where, (), tuple(way))


def _verb(node: Node) -> str:
    match node:
        case Aggregate():
            return ", ".join(dict.fromkeys(measure.function for measure in node.measures))
        case Pick():
            return "last" if node.last else "first"
        case _:
            return type(node).__name__.lower()


def _order(node: Node) -> Sequence[OrderedColumn]:
    """The order of a node's rows; empty where it does not matter."""
    match node:
        case One(unique=False) | Many() | Collect() | Pick():
            return node.order
        case _:
            return ()


def _ordered(wanted: OrderedColumn) -> str:
    text = wanted.column + (" desc" if wanted.descending else "")
    usual = wanted.nulls_first == wanted.descending
    return text if usual else f"{text} nulls {'first' if wanted.nulls_first else 'last'}"


def _way(node: Node, index: int, above: dict[int, Node]) -> list[Hop]:
    """From one of a node's scopes to the root."""
    hops: list[Hop] = []
    if node.recursion is not None:
        table = node.scope.table.table
        hops.append(_hop(table, node.recursion.on, table, node.recursion.depth - 1))
    scopes = [node.parent, *node.scopes]
    hops += [
        _hop(scopes[place + 1].table.table, node.on_at(place), scopes[place].table.table)
        for place in range(index, -1, -1)
    ]
    if id(node.parent) in above:
        parent = above[id(node.parent)]
        hops += _way(parent, len(parent.links), above)
    return hops


def _hop(this: object, on: Sequence[tuple[str, str]], other: object, levels: int = 1) -> Hop:
    mine, theirs = (", ".join(pair[side] for pair in on) for side in (0, 1))
    if len(on) > 1:
        mine, theirs = f"({mine})", f"({theirs})"
    return Hop(f"{this}.{mine}", f"{other}.{theirs}", levels)
