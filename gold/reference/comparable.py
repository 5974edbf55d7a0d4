"""The part of a document that PostgreSQL can compute with the same meaning. Pure.

Filters are Spark SQL. If `gold.reference.conditions` cannot translate a filter, the field is left out on both
sides; for a filter of the root the whole document is left out. Each field left out is returned with the
reason, so that no caller reports an uncompared field as equal.

Fields with `sql` need no translation: the server sends the columns, and Spark computes the expression
(`gold.reference.reading`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gold.reference.conditions import UntranslatableError, condition
from gold.tree.nodes import Aggregate, Child, Flattened, Nested, Node, Scope, Tree, TreeField, Value

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Comparable:
    """The part of a document to compare.

    Attributes:
        tree: the document without the other fields; None where nothing is left.
        left_out: the other fields, each with its reason.
    """

    tree: Tree | None
    left_out: tuple[str, ...]


def comparable(tree: Tree) -> Comparable:
    """Return the part of a document that `gold.reference.query` can write."""
    left_out: list[str] = []
    if reason := _untranslatable([tree.root]):
        return Comparable(None, (f"{tree.name}: {reason}",))
    fields, children = _rest(tree.fields, tree.children, left_out, "")
    if not fields:
        return Comparable(None, tuple(left_out))
    # The key stands in a column of its own: the field that holds it may be one of those left out.
    return Comparable(replace(tree, fields=fields, children=children, key_fields=()), tuple(left_out))


def _untranslatable(scopes: Sequence[Scope]) -> str:
    for scope in scopes:
        if scope.where is not None:
            try:
                condition(scope.where, scope.table, "t")
            except UntranslatableError as error:
                return f"the filter {str(scope.where)!r} of {scope.table.table}: {error}"
    return ""


def _rest(
    fields: Sequence[TreeField], children: Sequence[Node], left_out: list[str], within: str
) -> tuple[tuple[TreeField, ...], tuple[Node, ...]]:
    """Fields and children without what cannot be translated."""
    kept: dict[int, Node] = {}
    reasons: dict[int, str] = {}
    for node in children:
        if reason := _untranslatable(node.scopes):
            reasons[node.id] = reason
            continue
        inner, below = _rest(node.fields, node.children, left_out, node.scope.label)
        if node.fields and not inner:
            reasons[node.id] = "none of its fields can be compared"
            continue
        kept[node.id] = replace(node, fields=inner, children=below)
    found = _fields(fields, kept, reasons, left_out, within)
    return tuple(found), tuple(kept.values())


def _fields(
    fields: Sequence[TreeField],
    kept: dict[int, Node],
    reasons: dict[int, str],
    left_out: list[str],
    within: str,
) -> list[TreeField]:
    found: list[TreeField] = []
    for field in fields:
        name = f"{within}.{field.name}" if within else field.name
        if isinstance(field, Value):
            found.append(field)
        elif isinstance(field, Nested):
            if inner := _fields(field.fields, kept, reasons, left_out, name):
                found.append(replace(field, fields=tuple(inner)))
        elif field.node.id not in kept:
            left_out.append(f"{name}: {reasons[field.node.id]}")
        elif isinstance(field, Child):
            node = kept[field.node.id]
            reason = _measure(node, field.measure) if isinstance(node, Aggregate) else ""
            if reason:
                left_out.append(f"{name}: {reason}")
            else:
                found.append(replace(field, node=node))
        else:
            found += _flattened(field, kept[field.node.id])
    return found


def _flattened(field: Flattened, node: Node) -> list[TreeField]:
    """The field of a flattened row, where that row still has it."""
    inner = [one for one in node.fields if one.name == field.field.name]
    return [replace(field, node=node, field=one) for one in inner]


def _measure(node: Aggregate, place: int) -> str:
    where = node.measures[place].where
    if where is None:
        return ""
    return _untranslatable([replace(node.scope, where=where)])
