"""Track the counted events of a document: possible places, raised flags, numbers. Pure.

If the rows of a node, or of a node below, can raise a flag, the node has a column for the flag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltasmelt.gold.compile.query import FLAGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.gold.tree.nodes import Node


def raised(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Return the `FLAGS` that nodes, or the nodes below, can raise."""
    flags: set[str] = set()
    for node in nodes:
        flags.update(raised(node.children))
        if node.may_match_several:
            flags.add("several")
        if node.recursion is not None:
            flags.add("cut")
    return tuple(flag for flag in FLAGS if flag in flags)


def flagged(children: Sequence[Node], flag: str) -> str:
    """Return the condition that joined children, or nodes below, raised a flag; empty if no node can."""
    return " OR ".join(
        f"coalesce({child.name}.{flag}, false)" for child in children if flag in raised((child,))
    )
