"""Find the part of a document that PostgreSQL can compute with the same meaning. Pure.

Filters are Spark SQL. If `gold.reference.conditions` cannot translate a filter, both sides omit the field;
for a filter of the root, both omit the whole document. The caller gets each omitted field with the reason, so
that no caller reports an uncompared field as equal. The comparison also omits a column that PostgreSQL orders
or compares by a different rule than documents.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deltasmelt.gold.language.comparing import comparison
from deltasmelt.gold.reference.conditions import UntranslatableError, condition
from deltasmelt.gold.reference.values import at_source, base_type, is_citext, is_text
from deltasmelt.gold.tree.nodes import (
    Aggregate,
    Child,
    Collect,
    Flattened,
    Many,
    Nested,
    Node,
    One,
    Pick,
    Scope,
    Tree,
    TreeField,
    Value,
)
from deltasmelt.silver.schema.types import reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.bronze.shapes import PgType
    from deltasmelt.silver.schema.catalog import SilverTable


@dataclass(frozen=True, slots=True)
class Comparable:
    """The part of a document to compare.

    `tree` is the document without the omitted fields, None if no field remains. `left_out` are the omitted
    fields, each with its reason.
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
    # The key gets a separate column, because the field with the key may be among the omitted fields.
    return Comparable(replace(tree, fields=fields, children=children, key_fields=()), tuple(left_out))


def _untranslatable(scopes: Sequence[Scope]) -> str:
    for scope in scopes:
        if scope.where is not None:
            names = sorted(scope.where.columns)
            if reason := next(filter(None, (_chosen(scope.table, name) for name in names)), ""):
                return f"the filter {str(scope.where)!r} of {scope.table.table}: {reason}"
            try:
                condition(scope.where, scope.table, "t")
            except UntranslatableError as error:
                return f"the filter {str(scope.where)!r} of {scope.table.table}: {error}"
    return ""


def _rest(
    fields: Sequence[TreeField], children: Sequence[Node], left_out: list[str], within: str
) -> tuple[tuple[TreeField, ...], tuple[Node, ...]]:
    """Return fields and children without untranslatable parts."""
    nodes: dict[int, Node] = {}
    reasons: dict[int, str] = {}
    for node in children:
        if reason := _untranslatable(node.scopes) or _otherwise(node):
            reasons[node.id] = reason
            continue
        inner, below = _rest(node.fields, node.children, left_out, node.scope.label)
        if node.fields and not inner:
            reasons[node.id] = "none of its fields can be compared"
            continue
        nodes[node.id] = replace(node, fields=inner, children=below)
    comparable_fields = _fields(fields, nodes, reasons, left_out, within)
    used = _nodes(comparable_fields)
    # An aggregate without a measure is a mere join, and would repeat the row once per row of the aggregate.
    remaining = [node for node in nodes.values() if node.id in used or not isinstance(node, Aggregate)]
    return tuple(comparable_fields), tuple(remaining)


def _nodes(fields: Sequence[TreeField]) -> set[int]:
    """Return the nodes that fields of a row come from."""
    inner = [_nodes(field.fields) for field in fields if isinstance(field, Nested)]
    return {field.node.id for field in fields if isinstance(field, Child)}.union(*inner)


def _fields(
    fields: Sequence[TreeField],
    nodes: dict[int, Node],
    reasons: dict[int, str],
    left_out: list[str],
    within: str,
) -> list[TreeField]:
    remaining: list[TreeField] = []
    for field in fields:
        name = f"{within}.{field.name}" if within else field.name
        # A field with `sql` needs no translation: the server sends the columns, and Spark computes the
        # expression (`gold.reference.reading`).
        if isinstance(field, Value):
            remaining.append(field)
        elif isinstance(field, Nested):
            if inner := _fields(field.fields, nodes, reasons, left_out, name):
                remaining.append(replace(field, fields=tuple(inner)))
        elif field.node.id not in nodes:
            left_out.append(f"{name}: {reasons[field.node.id]}")
        elif isinstance(field, Child):
            node = nodes[field.node.id]
            reason = _measure(node, field.measure) if isinstance(node, Aggregate) else ""
            if reason:
                left_out.append(f"{name}: {reason}")
            else:
                remaining.append(replace(field, node=node))
        else:
            remaining += _flattened(field, nodes[field.node.id])
    return remaining


def _flattened(field: Flattened, node: Node) -> list[TreeField]:
    """Return the field of a flattened row, if the row still has the field."""
    inner = [inner_field for inner_field in node.fields if inner_field.name == field.field.name]
    return [replace(field, node=node, field=inner_field) for inner_field in inner]


def _otherwise(node: Node) -> str:
    """Return why the server finds or orders a node's rows by another rule; empty for the same rule."""
    joined = []
    previous = node.parent
    for scope, on in [*((link.scope, link.on) for link in node.links), (node.scope, node.on)]:
        joined += [pair for mine, theirs in on for pair in ((scope, mine), (previous, theirs))]
        previous = scope
    ordered = [(link.scope, name) for link in node.links for name in link.scope.table.key]
    if isinstance(node, One | Many | Collect | Pick):
        ordered += [(node.scope, column.column) for column in node.order]
    if node.recursion is not None:
        joined += [(node.scope, name) for pair in node.recursion.on for name in pair]
    reasons = [
        *(_chosen(scope.table, name) for scope, name in joined),
        *(_unordered(scope.table, name) for scope, name in ordered),
    ]
    return next(filter(None, reasons), "")


def _chosen(table: SilverTable, name: str) -> str:
    """Return why silver holds a column's values in another type; empty for the usual type."""
    column = table.column(at_source(table, name))
    if not column.overridden:
        return ""
    plain = replace(column, overridden=False, spark_type=reading(column.type).ddl)
    # The text of a number has another order, and gold refuses the text; the number is PostgreSQL's.
    family, plain_family = (
        comparison(held_as).family.replace("number as text", "number") for held_as in (column, plain)
    )
    message = (
        f"silver.types converts {table.table}.{column.name} to {column.spark_type}, which compares "
        "differently"
    )
    return "" if family == plain_family else message


def _unordered(table: SilverTable, name: str) -> str:
    """Return why the server orders a column by another rule; empty for the same rule."""
    column = table.column(at_source(table, name))
    message = f"{table.table}.{column.name} is of "
    if comparison(column).order.refused and column.spark_type != "STRING":
        return message + "a type that Spark orders differently"
    if _has_text(base_type(column.type)):
        return message + "a composite or array with texts, which PostgreSQL orders by their collation"
    return _chosen(table, name)


def _has_text(pg_type: PgType) -> bool:
    """Check whether values contain texts that a query's COLLATE does not reach."""
    if pg_type.kind == "composite":
        parts = [base_type(inner) for _, inner in pg_type.fields]
        return any(is_text(part) or is_citext(part) or _has_text(part) for part in parts)
    if pg_type.kind == "array" and pg_type.element is not None:
        return is_citext(pg_type.element) or _has_text(base_type(pg_type.element))
    return False


def _measure(node: Aggregate, place: int) -> str:
    measure = node.measures[place]
    if measure.column is not None and measure.function != "count":
        table, name = node.scope.table, at_source(node.scope.table, measure.column)
        reason = _chosen(table, name)
        if measure.function in {"min", "max"}:
            reason = reason or _unordered(table, name)
            if is_citext(table.column(name).type):
                reason = (
                    f"for texts of {table.table}.{name} that differ only in case, any text may be the result"
                )
        if reason:
            return reason
    predicate = measure.where
    if predicate is None:
        return ""
    return _untranslatable([replace(node.scope, where=predicate)])
