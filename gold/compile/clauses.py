"""Pieces of SQL text that the queries of documents are made of. Pure.

Aggregates over the rows of a node, as Spark SQL. Pure.

Sums of floating-point values depend on the order of their terms. They are taken over sorted values, so that a
rebuild gives the same last bit. Sums of integers and decimals are exact in any order.

Silver's tables without a table behind them: a query over them reads nothing, and Spark tells its types.

The rows of a node as elements: their order, and how they are collected. Pure.

``collect_list`` has no order. So rows are numbered by a window over exactly the grouping columns, under their
names (one shuffle and one sort serve both). The collected structs are sorted by that number. So every type
and direction that ORDER BY knows can be used, and types without an order (maps) may be inside the elements.

NULLs are placed explicitly, never by Spark's defaults. Where the order is that of keys alone, which are never
NULL and ascending, the structs are sorted by them as they are, without numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from deltasmelt.gold.language import types
from deltasmelt.gold.language.notation import OrderedColumn
from deltasmelt.gold.tree.derived import Derived, order_name, origin
from deltasmelt.gold.tree.nodes import Aggregate, Child, Flattened, Many, Nested, Pick
from deltasmelt.silver.schema.catalog import OWN_COLUMNS, UNREPRESENTABLE
from deltasmelt.silver.sql import comment, indented, literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.gold.tree.nodes import Collect, Node, One, Pairs, Scope, Tree, TreeField


def measured(node: Aggregate, *, common: bool) -> list[str]:
    """The measures of a node as the columns ``m0, m1 …``, over its rows as ``t``.

    Args:
        node: an aggregate.
        common: all measures have the same `where`, and the rows have passed it.
    """
    output = []
    for index, measure in enumerate(node.measures):
        ddl = "" if measure.column is None else node.scope.table.column(measure.column).spark_type
        only = "" if common or measure.where is None else f" FILTER (WHERE {measure.where.sql('t')})"
        value = "*" if measure.column is None else quote("t", measure.column)
        if measure.order is not None:
            placed = f"struct({quote('t', measure.order)} AS o, {value} AS v)"
            found = f"{measure.function}(CASE WHEN {value} IS NOT NULL THEN {placed} END){only}"
            output.append(f"({found}).v AS m{index}")
            continue
        output.append(f"{_measure(measure.function, value, only, ddl)} AS m{index}")
    return output


def _measure(function: str, value: str, only: str, ddl: str) -> str:
    if function == "count_distinct":
        return f"count(DISTINCT {value}){only}"
    if function in {"sum", "avg"} and types.is_floating(ddl):
        terms = f"array_sort(collect_list(CAST({value} AS DOUBLE)){only})"
        # As PostgreSQL adds up: a sum of nothing but -0 is -0.
        total = f"aggregate({terms}, -0D, (total, term) -> total + term)"
        if function == "avg":
            total += f" / count({value}){only}"
        return f"CASE WHEN count({value}){only} > 0 THEN {total} END"
    if function == "avg" and types.is_integer(ddl):
        # Spark adds integers up as doubles here, which rounds; PostgreSQL does not.
        return f"CAST(sum(CAST({value} AS DECIMAL(20, 0))){only} AS DOUBLE) / count({value}){only}"
    return f"{function}({value}){only}"


def empty_table(tree: Tree, name: TableName) -> str:
    """A relation with the columns of a table that the document reads, and no table behind it."""
    table = tree.tables()[name]
    derived = [column for column in table.columns if isinstance(column, Derived)]
    read = {origin(table, column) for column in tree.reads(name) | set(table.key)}
    read.update(column.origin for column in derived)
    columns = {
        column.name: column.spark_type
        for column in table.columns
        if column.name in read and column not in derived
    }
    if derived:
        columns[UNREPRESENTABLE] = OWN_COLUMNS[UNREPRESENTABLE]
    return f"(SELECT {', '.join(f'CAST(NULL AS {ddl}) AS {quote(one)}' for one, ddl in columns.items())})"


@dataclass(frozen=True, slots=True)
class CommonTable:
    """A named SELECT of a query.

    Attributes:
        comment: what it gives, for people.
    """

    name: str
    comment: str
    sql: str


def with_steps(steps: Sequence[CommonTable], final: str) -> str:
    """A query whose common table expressions are the steps."""
    if not steps:
        return final
    listed = [f"{comment(step.comment)}\n{step.name} AS (\n{indented(step.sql, '  ')}\n)" for step in steps]
    return "WITH\n" + ",\n".join(listed) + "\n" + final


def select(
    columns: Sequence[str],
    source: str,
    joins: Sequence[str] = (),
    where: Sequence[str] = (),
    *,
    hint: str = "",
) -> str:
    """A SELECT, a column to a line."""
    lines = [
        "SELECT" + (f" /*+ {hint} */" if hint else ""),
        indented(",\n".join(columns), "  "),
        f"FROM {source}",
        *joins,
    ]
    if where:
        conditions = [f"({condition})" for condition in where] if len(where) > 1 else list(where)
        lines.append("WHERE " + "\n  AND ".join(conditions))
    return "\n".join(lines)


def subquery(query: str) -> str:
    """A query as a relation."""
    return f"(\n{indented(query, '  ')}\n) AS s"


def struct(pairs: Iterable[tuple[str, str]]) -> str:
    """A struct from names and expressions, one to a line where they are many."""
    parts = [f"{literal(name)}, {expression}" for name, expression in pairs]
    flat = ", ".join(parts)
    if len(flat) <= 80 and "\n" not in flat:
        return f"named_struct({flat})"
    return "named_struct(\n" + indented(",\n".join(parts), "  ") + "\n)"


def equal(pairs: Sequence[tuple[str, str]], this: str, other: str) -> str:
    """That columns of one alias equal those of another, pair by pair."""
    return " AND ".join(f"{quote(this, left)} = {quote(other, right)}" for left, right in pairs)


def numbered(keys: Sequence[str]) -> list[str]:
    """Expressions as the columns ``k0, k1 …``."""
    return [f"{key} AS k{index}" for index, key in enumerate(keys)]


def row_number(groups: Sequence[str], order: Sequence[str]) -> str:
    """The place of a row in its group, from 1."""
    return f"row_number() OVER (PARTITION BY {', '.join(groups)} ORDER BY {', '.join(order)})"


def ordered(wanted: OrderedColumn, value: str) -> str:
    """One term of an ORDER BY, NULLs placed explicitly."""
    direction = "DESC" if wanted.descending else "ASC"
    return f"{value} {direction} NULLS {'FIRST' if wanted.nulls_first else 'LAST'}"


def filtered(conditions: Sequence[str]) -> str:
    """What makes an aggregate take only some rows of its group."""
    return f" FILTER (WHERE {' AND '.join(conditions)})" if conditions else ""


def either(*conditions: str) -> str:
    """That one of some conditions holds; empty ones are none."""
    return " OR ".join(condition for condition in conditions if condition)


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
