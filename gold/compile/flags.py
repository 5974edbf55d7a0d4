"""What may happen in a document and is counted: where it can, where it did, how often. Pure.

Each node whose rows, or those of a node below, can raise a flag has a column for it beside its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltasmelt.gold.compile.query import FLAGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.gold.tree.nodes import Node


def raised(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Those of `FLAGS` that can happen at or below nodes."""
    found: set[str] = set()
    for node in nodes:
        found.update(raised(node.children))
        if node.may_match_several:
            found.add("several")
        if node.recursion is not None:
            found.add("cut")
    return tuple(flag for flag in FLAGS if flag in found)


def flagged(children: Sequence[Node], flag: str) -> str:
    """Whether it happened at or below the joined children; empty where it cannot."""
    return " OR ".join(
        f"coalesce({child.name}.{flag}, false)" for child in children if flag in raised((child,))
    )
