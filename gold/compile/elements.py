"""The rows of a node as elements: their order, and how they are collected. Pure.

``collect_list`` has no order. So rows are numbered by a window over exactly the grouping columns, under their
names (one shuffle and one sort serve both). The collected structs are sorted by that number. So every type
and direction that ORDER BY knows can be used, and types without an order (maps) may be inside the elements.

NULLs are placed explicitly, never by Spark's defaults. Where the order is that of keys alone, which are never
NULL and ascending, the structs are sorted by them as they are, without numbers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeAlias

from gold.compile.clauses import filtered, ordered, row_number, struct
from gold.language import types
from gold.language.notation import OrderedColumn
from gold.tree.derived import order_name
from gold.tree.nodes import Aggregate, Child, Flattened, Many, Nested, Pick
from silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gold.tree.nodes import Collect, Node, One, Pairs, Scope, TreeField

RowOrder: TypeAlias = "list[tuple[OrderedColumn, str]]"
"""By what rows are ordered, with the alias of each column's table."""

_WITHOUT_ORDER: Final = re.compile(r"map|variant|json|interval", re.IGNORECASE)
"""Words without which an expression over columns that have an order has one, too."""


def join_path(node: Node) -> list[tuple[Scope, Pairs, str]]:
    """From the parent to the node's rows: each table with its conditions and its alias; the last is ``t``."""
    names = ["l", *(f"l{place}" for place in range(2, len(node.links) + 1))]
    links = [(link.scope, link.on, name) for link, name in zip(node.links, names, strict=False)]
    return [*links, (node.scope, node.on, "t")]


def ordering(node: One | Many | Collect | Pick) -> RowOrder:
    """By what the rows of a node are ordered; no two are equal."""
    order = [(wanted, "t") for wanted in node.order]
    for scope, _, alias in reversed(join_path(node)[:-1]):
        order += [(OrderedColumn(order_name(scope.table, name)), alias) for name in scope.table.key]
    if isinstance(node, Pick) and node.last:
        return [(_reversed(wanted), alias) for wanted, alias in order]
    return order


def named(order: RowOrder) -> list[str]:
    """What is ordered by, as the columns ``o0, o1 …``."""
    return [f"{quote(alias, wanted.column)} AS o{index}" for index, (wanted, alias) in enumerate(order)]


def place_of(names: Sequence[str], order: RowOrder) -> str:
    """The place of a row among those with the same `names`, over the columns that `named` gives."""
    return row_number(names, [ordered(wanted, f"o{index}") for index, (wanted, _) in enumerate(order)])


def is_by_key(node: Many | Collect) -> bool:
    """Whether the elements of an array lie in the order of keys alone, and can be compared by Spark.

    Then they are sorted as structs, which begin with the key.
    """
    if node.most_elements is not None:
        return False
    plain = all(
        wanted.column in node.scope.table.key and not wanted.descending and not wanted.nulls_first
        for wanted in node.order
    )
    return plain and _comparable(node)


def collected_by_key(columns: int) -> str:
    """The elements of a group in the order of so many key columns."""
    ordered_by = [(f"o{index}", f"o{index}") for index in range(columns)]
    return f"sort_array(collect_list({struct([*ordered_by, ('item', 'item')])})).item"


def collected(node: Many | Collect, only: Sequence[str] = ()) -> str:
    """The elements of a group by their number: an array, a map, or the first of them with how many there are.

    Args:
        node: whose elements.
        only: conditions of the rows to take; the others of the group are not elements.
    """
    element = "named_struct('n', n, 'item', item)"
    is_map = isinstance(node, Many) and node.map_by is not None
    if is_map:
        element = "named_struct('n', n, 'name', name, 'item', item)"
    taken = [*only, *([] if node.cap is None else [f"n <= {node.cap}"])]
    elements = f"collect_list({element}){filtered(taken)}"
    # Sorting by Spark's own order is cheaper than by a function of two elements.
    in_order = (
        f"sort_array({elements})" if _comparable(node) else f"array_sort({elements}, (a, b) -> a.n - b.n)"
    )
    if is_map:
        return f"map_from_entries(transform({in_order}, e -> struct(e.name, e.item)))"
    items = f"{in_order}.item"
    if node.cap is None:
        return items
    count = f"count(*){filtered(only)}"
    return struct([("items", items), ("count", count), ("truncated", f"{count} > {node.cap}")])


def _reversed(wanted: OrderedColumn) -> OrderedColumn:
    return OrderedColumn(wanted.column, not wanted.descending, not wanted.nulls_first)


def _comparable(node: Node) -> bool:
    """Whether the elements of a node surely have an order: maps and variants have none."""
    if isinstance(node, Many) and node.map_by is not None:
        return False
    return all(_has_order(field, node.scope) for field in node.fields) and all(
        _has_order(field, link.scope) for link in node.links for field in link.fields
    )


def _has_order(field: TreeField, scope: Scope) -> bool:
    if isinstance(field, Nested):
        return all(_has_order(inner, scope) for inner in field.fields)
    if isinstance(field, Flattened):
        return _has_order(field.field, field.node.scope)
    if isinstance(field, Child):
        return isinstance(field.node, Aggregate) or _comparable(field.node)
    texts = (part for part in field.expression.parts if isinstance(part, str))
    return not any(_WITHOUT_ORDER.search(text) for text in texts) and all(
        types.orderable(scope.table.column(name).spark_type) for name in field.expression.columns
    )
