"""Build the pieces of SQL text for the queries of documents. Pure."""

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
    """Return the measures of a node as the columns ``m0, m1 …``, over the node's rows as ``t``.

    With `common`, all measures have the same filter, and the rows have passed the filter.
    """
    output = []
    for index, measure in enumerate(node.measures):
        ddl = "" if measure.column is None else node.scope.table.column(measure.column).spark_type
        condition = "" if common or measure.where is None else f" FILTER (WHERE {measure.where.sql('t')})"
        value = "*" if measure.column is None else quote("t", measure.column)
        if measure.order is not None:
            placed = f"struct({quote('t', measure.order)} AS o, {value} AS v)"
            ordered_value = f"{measure.function}(CASE WHEN {value} IS NOT NULL THEN {placed} END){condition}"
            output.append(f"({ordered_value}).v AS m{index}")
            continue
        output.append(f"{_measure(measure.function, value, condition, ddl)} AS m{index}")
    return output


def _measure(function: str, value: str, only: str, ddl: str) -> str:
    if function == "count_distinct":
        return f"count(DISTINCT {value}){only}"
    if function in {"sum", "avg"} and types.is_floating(ddl):
        # The sum depends on the order of the terms, so the query adds sorted values: a rebuild gives the same
        # result to the last bit. Sums of integers and decimals are exact in any order.
        terms = f"array_sort(collect_list(CAST({value} AS DOUBLE)){only})"
        # PostgreSQL's sum of only -0 is -0.
        total = f"aggregate({terms}, -0D, (total, term) -> total + term)"
        if function == "avg":
            total += f" / count({value}){only}"
        return f"CASE WHEN count({value}){only} > 0 THEN {total} END"
    if function == "avg" and types.is_integer(ddl):
        # Spark's avg adds integers up as doubles and rounds; PostgreSQL does not.
        return f"CAST(sum(CAST({value} AS DECIMAL(20, 0))){only} AS DOUBLE) / count({value}){only}"
    return f"{function}({value}){only}"


def empty_table(tree: Tree, name: TableName) -> str:
    """Return a relation with the columns of a table that the document reads, without rows from the table."""
    table = tree.tables()[name]
    derived = [column for column in table.columns if isinstance(column, Derived)]
    read_columns = {origin(table, column) for column in tree.reads(name) | set(table.key)}
    read_columns.update(column.origin for column in derived)
    columns = {
        column.name: column.spark_type
        for column in table.columns
        if column.name in read_columns and column not in derived
    }
    if derived:
        columns[UNREPRESENTABLE] = OWN_COLUMNS[UNREPRESENTABLE]
    # A query over the relation reads nothing, and Spark still finds the query's types.
    return (
        f"(SELECT {', '.join(f'CAST(NULL AS {ddl}) AS {quote(column)}' for column, ddl in columns.items())})"
    )


@dataclass(frozen=True, slots=True)
class CommonTable:
    """A named SELECT of a query; `comment` describes its result for people."""

    name: str
    comment: str
    sql: str


def with_steps(steps: Sequence[CommonTable], final: str) -> str:
    """Return a query whose common table expressions are the steps."""
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
    """Return a SELECT with one column per line."""
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
    """Return a query as a relation."""
    return f"(\n{indented(query, '  ')}\n) AS s"


def struct(pairs: Iterable[tuple[str, str]]) -> str:
    """Return a struct from names and expressions; a long struct has one field per line."""
    parts = [f"{literal(name)}, {expression}" for name, expression in pairs]
    flat = ", ".join(parts)
    if len(flat) <= 80 and "\n" not in flat:
        return f"named_struct({flat})"
    return "named_struct(\n" + indented(",\n".join(parts), "  ") + "\n)"


def equal(pairs: Sequence[tuple[str, str]], first: str, second: str) -> str:
    """Return the condition that columns of two aliases are equal, pair by pair."""
    return " AND ".join(f"{quote(first, left)} = {quote(second, right)}" for left, right in pairs)


def numbered(keys: Sequence[str]) -> list[str]:
    """Return expressions as the columns ``k0, k1 …``."""
    return [f"{key} AS k{index}" for index, key in enumerate(keys)]


def row_number(groups: Sequence[str], order: Sequence[str]) -> str:
    """Return the number of a row in its group, from 1."""
    return f"row_number() OVER (PARTITION BY {', '.join(groups)} ORDER BY {', '.join(order)})"


def ordered(column: OrderedColumn, value: str) -> str:
    """Return a term of an ORDER BY, with NULLs placed explicitly."""
    direction = "DESC" if column.descending else "ASC"
    return f"{value} {direction} NULLS {'FIRST' if column.nulls_first else 'LAST'}"


def filtered(conditions: Sequence[str]) -> str:
    """Return the FILTER clause that restricts an aggregate to some rows of its group."""
    return f" FILTER (WHERE {' AND '.join(conditions)})" if conditions else ""


def either(*conditions: str) -> str:
    """Return the condition that any of some conditions holds; empty conditions do not count."""
    return " OR ".join(condition for condition in conditions if condition)


RowOrder: TypeAlias = "list[tuple[OrderedColumn, str]]"
"""The order of rows: each column with the alias of its table."""
_WITHOUT_ORDER: Final = re.compile(r"map|variant|json|interval", re.IGNORECASE)
"""Types without an order: an expression without these words, over orderable columns, has an order."""


def join_path(node: Node) -> list[tuple[Scope, Pairs, str]]:
    """Return each table from the parent to the node's rows, with conditions and alias; the last is ``t``."""
    names = ["l", *(f"l{place}" for place in range(2, len(node.links) + 1))]
    links = [(link.scope, link.on, name) for link, name in zip(node.links, names, strict=False)]
    return [*links, (node.scope, node.on, "t")]


def ordering(node: One | Many | Collect | Pick) -> RowOrder:
    """Return the order of a node's rows; no two rows are equal in this order."""
    order = [(column, "t") for column in node.order]
    for scope, _, alias in reversed(join_path(node)[:-1]):
        order += [(OrderedColumn(order_name(scope.table, name)), alias) for name in scope.table.key]
    if isinstance(node, Pick) and node.last:
        return [(_reversed(column), alias) for column, alias in order]
    return order


def named(order: RowOrder) -> list[str]:
    """Return the columns of an order as ``o0, o1 …``."""
    return [f"{quote(alias, column.column)} AS o{index}" for index, (column, alias) in enumerate(order)]


def place_of(names: Sequence[str], order: RowOrder) -> str:
    """Return the number of a row among rows with equal `names`, over the columns of `named`.

    `collect_list` has no order, so the query sorts the collected structs by this number. Elements can then
    have every type and direction that ORDER BY knows, and may contain types without an order (maps).
    """
    # The window partitions by exactly the grouping columns, under their names: a single shuffle and sort
    # serve window and grouping. NULLs are placed explicitly, never by Spark's defaults.
    return row_number(names, [ordered(column, f"o{index}") for index, (column, _) in enumerate(order)])


def is_by_key(node: Many | Collect) -> bool:
    """Check whether the elements of an array are in the order of keys alone, and Spark can compare them."""
    if node.most_elements is not None:
        return False
    # Keys are ascending and never NULL, so the query sorts the structs themselves, which begin with the key.
    plain = all(
        column.column in node.scope.table.key and not column.descending and not column.nulls_first
        for column in node.order
    )
    return plain and _comparable(node)


def collected_by_key(columns: int) -> str:
    """Return the elements of a group in the order of `columns` key columns."""
    ordered_by = [(f"o{index}", f"o{index}") for index in range(columns)]
    return f"sort_array(collect_list({struct([*ordered_by, ('item', 'item')])})).item"


def collected(node: Many | Collect, only: Sequence[str] = ()) -> str:
    """Return the elements of a group by their number: an array, a map, or the first elements with a count.

    `only` has conditions on the rows; rows of the group that fail a condition are not elements.
    """
    element = "named_struct('n', n, 'item', item)"
    is_map = isinstance(node, Many) and node.map_by is not None
    if is_map:
        element = "named_struct('n', n, 'name', name, 'item', item)"
    conditions = [*only, *([] if node.cap is None else [f"n <= {node.cap}"])]
    elements = f"collect_list({element}){filtered(conditions)}"
    # A sort by Spark's own order is cheaper than a sort by a function of two elements.
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


def _reversed(column: OrderedColumn) -> OrderedColumn:
    return OrderedColumn(column.column, not column.descending, not column.nulls_first)


def _comparable(node: Node) -> bool:
    """Check whether the elements of a node surely have an order: maps and variants have none."""
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
