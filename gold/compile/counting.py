"""Build a query that counts how often the `FLAGS` of `gold.compile.query` were raised. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from deltasmelt.gold.compile.clauses import subquery
from deltasmelt.gold.compile.compiler import Compiler
from deltasmelt.gold.compile.flags import raised
from deltasmelt.gold.compile.query import counts_of
from deltasmelt.gold.expressions.expressions import column
from deltasmelt.gold.tree.nodes import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.gold.compile.query import TableSql
    from deltasmelt.gold.tree.nodes import Node, Tree


def count_flagged(tree: Tree, relation: TableSql) -> tuple[tuple[str, ...], str]:
    """Return the possible `FLAGS` and a query that counts their roots; without flags the query is empty."""
    # Only the nodes with flags: a part of the document's cost, not the whole document again.
    bare = _without_the_rest(tree.children)
    fields = tuple(Value(name, column(name)) for name in tree.key)
    compiled = Compiler(replace(tree, fields=fields, children=bare), relation, None).document()
    flags = compiled.flags
    return flags, f"SELECT {', '.join(counts_of(flags))} FROM {subquery(compiled.sql)}" if flags else ""


def _without_the_rest(nodes: Sequence[Node]) -> tuple[Node, ...]:
    return tuple(
        replace(node, fields=(), links=tuple(replace(link, fields=()) for link in node.links),
                children=_without_the_rest(node.children))
        for node in nodes
        if raised((node,))
    )  # fmt: skip
