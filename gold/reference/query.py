"""Write the documents of some roots as one query of PostgreSQL. Pure: a tree in, text out.

Every node is a LATERAL subquery below a row of its parent: the meaning of the language, word for word. The
query is slow for many roots, and obvious. Joins, order and aggregates share no code with `gold.compile`.
Order and equality are the operators of PostgreSQL's own types.

A row of the answer is the text of one JSON object: ``k`` the root's key, ``d`` the document, null if the root
fails its filter. Fields are ``f0, f1 …`` by their place, values are texts (`gold.reference.values.text`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltasmelt.bronze.identifiers import quote_identifier
from deltasmelt.gold.language import types
from deltasmelt.gold.reference.conditions import UntranslatableError, condition
from deltasmelt.gold.reference.values import (
    at_source,
    column_type,
    compared_value,
    equality,
    ordered_value,
    rows_at_source,
    sources,
    text,
    value,
)
from deltasmelt.gold.tree.nodes import (
    Aggregate,
    Child,
    Collect,
    Flattened,
    Many,
    Measure,
    Nested,
    Node,
    One,
    Pick,
    Scope,
    Tree,
    TreeField,
    Value,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltasmelt.gold.expressions.expressions import Expression
    from deltasmelt.gold.language.notation import OrderedColumn
    from deltasmelt.gold.tree.nodes import Pairs


def documents(tree: Tree, roots: str) -> str:
    """Return the query for a document without untranslatable fields (`gold.reference.comparable`).

    `roots` is a relation with the wanted rows of the root's table.
    """
    return _Writer().document(tree, roots)


def root_columns(tree: Tree) -> str:
    """Return the root's columns for the relation `roots` of `documents`."""
    columns = [at_source(tree.root.table, name) for name in [*tree.key, *sorted(tree.root.reads)]]
    return ", ".join(map(quote_identifier, dict.fromkeys(columns)))


class _Writer:
    def __init__(self) -> None:
        self._count = 0

    def document(self, tree: Tree, roots: str) -> str:
        alias = self._alias("t")
        row, joins = self._children(tree.children, alias)
        key = _object([text(value(name, alias)) for name in tree.key])
        document = _object(self._fields(tree.fields, tree.root, alias, row))
        if tree.root.where is not None:
            document = f"CASE WHEN {condition(tree.root.where, tree.root.table, alias)} THEN {document} END"
        listed = f"SELECT {key} AS k, {document} AS d\nFROM {roots} AS {alias}{joins}"
        return f"SELECT row_to_json(w)::text\nFROM (\n{listed}\n) AS w"

    def _alias(self, letter: str) -> str:
        self._count += 1
        return f"{letter}{self._count}"

    def _children(self, children: Sequence[Node], alias: str) -> tuple[dict[int, str], str]:
        """Return the aliases of nodes below a row, by node number, and the joins of the nodes to the row."""
        row: dict[int, str] = {}
        joins = ""
        for node in children:
            name = row[node.id] = self._alias("n")
            joins += f"\nLEFT JOIN LATERAL (\n{self._node(node, alias)}\n) AS {name} ON true"
        return row, joins

    def _node(self, node: Node, parent: str) -> str:
        if isinstance(node, One | Many) and node.recursion is not None:
            joins_itself = node.parent.table.table == node.scope.table.table
            return self._level(node, node.on, (node.parent, parent), [parent] if joins_itself else [], 1)
        source, filters, order, alias, links = self._path(node, parent)
        if isinstance(node, Aggregate):
            measured = [
                f"{_measure(node, measure, alias)} AS m{i}" for i, measure in enumerate(node.measures)
            ]
            return f"SELECT {', '.join(measured)}\nFROM {source}\nWHERE {filters}"
        if isinstance(node, Collect | Pick):
            (field,) = node.fields
            item_sql = self._field(field, node.scope, alias, {})
            if isinstance(node, Pick):
                return f"SELECT {item_sql} AS item\nFROM {source}\nWHERE {filters}\nORDER BY {order}\nLIMIT 1"
            return _gathered(node, f"{source}\nWHERE {filters} AND {item_sql} IS NOT NULL", item_sql, order)
        row, joins = self._children(node.children, alias)
        if isinstance(node, Many) and node.plain:
            item = self._field(node.fields[0], node.scope, alias, row)
        else:
            values = self._fields(node.fields, node.scope, alias, row)
            for link, name in zip(node.links, links, strict=True):
                values += self._fields(link.fields, link.scope, name, row)
            item = _object(values)
        source += joins
        if isinstance(node, One):
            return f"SELECT {item} AS item\nFROM {source}\nWHERE {filters}\nORDER BY {order}\nLIMIT 1"
        if not isinstance(node, Many):
            raise TypeError(type(node).__name__)
        return _gathered(node, f"{source}\nWHERE {filters}", item, order, names=_names_of(node, alias))

    def _path(self, node: Node, parent: str) -> tuple[str, str, str, str, list[str]]:
        """Return a node's rows: FROM, WHERE, ORDER BY, the alias of the node's table, the links' aliases."""
        tables, conditions, names = [], [], []
        place_before = (node.parent, parent)
        for scope, on in [*((link.scope, link.on) for link in node.links), (node.scope, node.on)]:
            alias = self._alias("t")
            tables.append(f"{rows_at_source(scope.table)} AS {alias}")
            conditions += _joined(on, (scope, alias), place_before)
            if scope.where is not None:
                conditions.append(condition(scope.where, scope.table, alias))
            names.append(alias)
            place_before = (scope, alias)
        order = [] if isinstance(node, Aggregate) else _order(node, names)
        source, filters = " CROSS JOIN ".join(tables), " AND ".join(conditions)
        return source, filters, ", ".join(order), names[-1], names[:-1]

    def _level(
        self, node: One | Many, on: Pairs, above: tuple[Scope, str], way: Sequence[str], depth: int
    ) -> str:
        """Return the rows of one level of a recursion; a row never occurs below itself."""
        recursion = node.recursion
        if recursion is None:
            raise TypeError("the node has no recursion")
        alias, scope = self._alias("t"), node.scope
        key = scope.table.key
        conditions = _joined(on, (scope, alias), above)
        if scope.where is not None:
            conditions.append(condition(scope.where, scope.table, alias))
        for ancestor in way:
            same_row = " AND ".join(
                _equal_columns((name, scope, alias), (name, scope, ancestor)) for name in key
            )
            conditions.append(f"NOT ({same_row})")
        row, joins = self._children(node.children, alias)
        values = self._fields(node.fields, scope, alias, row)
        if depth < recursion.depth:
            position, name = (scope, alias), self._alias("n")
            below = self._level(node, recursion.on, position, [*way, alias], depth + 1)
            joins += f"\nLEFT JOIN LATERAL (\n{below}\n) AS {name} ON true"
            values.append(f"{name}.item")
        source = f"{rows_at_source(scope.table)} AS {alias}{joins}\nWHERE {' AND '.join(conditions)}"
        order = ", ".join(_order(node, [alias]))
        if isinstance(node, One):
            return f"SELECT {_object(values)} AS item\nFROM {source}\nORDER BY {order}\nLIMIT 1"
        return _gathered(node, source, _object(values), order, names=_names_of(node, alias))

    def _fields(
        self, fields: Sequence[TreeField], scope: Scope, alias: str, row: Mapping[int, str]
    ) -> list[str]:
        return [self._field(field, scope, alias, row) for field in fields]

    def _field(self, tree_field: TreeField, scope: Scope, alias: str, row: Mapping[int, str]) -> str:
        if isinstance(tree_field, Value):
            if (name := bare_column(tree_field.expression)) is not None:
                return text(value(name, alias))
            # Even a single column, or none, is sent as an object: a row of NULLs is not "no row".
            columns = sources(tree_field.expression, scope.table)
            return _object([text(value(name, alias)) for name in columns] or ["NULL::text"])
        if isinstance(tree_field, Nested):
            return _object(self._fields(tree_field.fields, scope, alias, row))
        joined = row[tree_field.node.id]
        if isinstance(tree_field, Flattened):
            place = [field.name for field in tree_field.node.fields].index(tree_field.field.name)
            return f"coalesce({joined}.item -> 'f{place}', {_empty(tree_field.field)})"
        if isinstance(tree_field.node, Aggregate):
            return f"{joined}.m{tree_field.measure}"
        return f"{joined}.item"


def bare_column(expression: Expression) -> str | None:
    """Return the column of an expression that is a column alone; else None."""
    part = expression.parts[0] if len(expression.parts) == 1 else ""
    return None if isinstance(part, str) else part.name


def _object(values: Sequence[str]) -> str:
    """Return one JSON object of values by their place, even of more values than a function accepts."""
    listed = ", ".join(f"{item} AS f{place}" for place, item in enumerate(values))
    return f"(SELECT row_to_json(o) FROM (SELECT {listed}) AS o)"


def _joined(on: Pairs, left: tuple[Scope, str], right: tuple[Scope, str]) -> list[str]:
    """Return the conditions under which rows of two scopes belong together."""
    return [
        _equal_columns((at_source(left[0].table, mine), *left), (at_source(right[0].table, theirs), *right))
        for mine, theirs in on
    ]


def _equal_columns(first: tuple[str, Scope, str], second: tuple[str, Scope, str]) -> str:
    """Return the condition that two columns are equal."""
    (name, scope, alias), (other_name, other_scope, row) = first, second
    operator = equality(column_type(scope.table, name), column_type(other_scope.table, other_name))
    left, right = compared_value(scope.table, name, alias), compared_value(other_scope.table, other_name, row)
    return f"{left} {operator} {right}"


def _order(node: Node, names: Sequence[str]) -> list[str]:
    """Return the order of a node's rows: the file's order, then the node's key, then the links' keys."""
    columns: Sequence[OrderedColumn] = node.order if isinstance(node, One | Many | Collect | Pick) else ()
    last = isinstance(node, Pick) and node.last
    scopes: list[tuple[Scope, str]] = list(zip([link.scope for link in node.links], names[:-1], strict=True))
    terms = [
        (node.scope, names[-1], column.column, column.descending, column.nulls_first) for column in columns
    ]
    for scope, alias in reversed(scopes):
        terms += [(scope, alias, name, False, False) for name in scope.table.key]
    ordered = []
    for scope, alias, name, descending, nulls_first in terms:
        term = ordered_value(scope.table, at_source(scope.table, name), alias)
        direction, nulls = "DESC" if descending != last else "ASC", "FIRST" if nulls_first != last else "LAST"
        ordered.append(f"{term} {direction} NULLS {nulls}")
    return ordered


def _names_of(node: Many, alias: str) -> tuple[str, str]:
    """Return the names of a map's elements, and the values that distinguish names; empty for an array."""
    if node.map_by is None:
        return "", ""
    name = at_source(node.scope.table, node.map_by)
    # Names are texts. A value that silver holds in another type has one text in gold, and may have several in
    # PostgreSQL.
    held_as_text = node.scope.table.column(name).spark_type == "STRING"
    return text(value(name, alias)), text(value(name, alias)) if held_as_text else value(name, alias)


def _gathered(
    node: Many | Collect, source: str, item: str, order: str, *, names: tuple[str, str] = ("", "")
) -> str:
    """Return the elements of a node as one JSON value."""
    numbered = f"{item} AS item, row_number() OVER (ORDER BY {order}) AS n"
    filters, element = "", "s.item"
    name, value_of_name = names
    if name:
        numbered += f", {name} AS name"
        numbered += f", row_number() OVER (PARTITION BY {value_of_name} ORDER BY {order}) AS same"
        filters = " FILTER (WHERE s.same = 1 AND s.name IS NOT NULL)"
        element = "json_build_object('k', s.name, 'v', s.item)"
    elif node.most_elements is not None:
        filters = f" FILTER (WHERE s.n <= {node.most_elements})"
    items = f"coalesce(json_agg({element} ORDER BY s.n){filters}, '[]'::json)"
    rows = f"(\nSELECT {numbered}\nFROM {source}\n) AS s"
    if node.cap is None:
        return f"SELECT {items} AS item\nFROM {rows}"
    capped = _object(["a.items", "a.times::text", text(f"(a.times > {node.cap})")])
    return f"SELECT {capped} AS item\nFROM (SELECT {items} AS items, count(*) AS times\nFROM {rows}) AS a"


def _measure(node: Aggregate, measure: Measure, alias: str) -> str:
    filters = ""
    if measure.where is not None:
        try:
            filters = f" FILTER (WHERE {condition(measure.where, node.scope.table, alias)})"
        except UntranslatableError:
            return "NULL"  # the comparison omits the field
    if measure.column is None:
        return f"(count(*){filters})::text"
    return _aggregated(node, at_source(node.scope.table, measure.column), measure.function, alias, filters)


def _aggregated(node: Aggregate, name: str, function: str, alias: str, only: str) -> str:
    table = node.scope.table
    argument, ddl = compared_value(table, name, alias), table.column(name).spark_type
    if function in {"min", "max"}:
        # Some types have an order, but no aggregate min or max.
        place = 0 if function == "min" else 1
        order = ordered_value(table, name, alias)
        return text(f"(percentile_disc({place}) WITHIN GROUP (ORDER BY {order}){only})")
    if function in {"count", "count_distinct"}:
        distinct = "DISTINCT " if function == "count_distinct" else ""
        return f"(count({distinct}{argument}){only})::text"
    total = f"sum({argument}){only}"
    if types.is_floating(ddl):
        # Floating-point sums depend on the order of their terms; the document language adds ascending terms.
        total = f"sum({argument}::float8 ORDER BY {argument}::float8){only}"
    if function == "avg":
        number = f"nullif(count({argument}){only}, 0)"
        means = {True: f"{total} / {number}", False: f"({total})::numeric::float8 / {number}"}
        is_whole = types.is_integer(ddl)
        total = (
            means[types.is_floating(ddl)] if types.is_floating(ddl) or is_whole else f"avg({argument}){only}"
        )
    return text(f"({total})")


def _empty(field: TreeField) -> str:
    """Return the value of a flattened field without a row, as JSON."""
    if isinstance(field, Flattened):
        return _empty(field.field)
    if not isinstance(field, Child):
        return "NULL"
    node = field.node
    if isinstance(node, Aggregate):
        counts = node.measures[field.measure].function in {"count", "count_distinct"}
        return "to_json('0'::text)" if counts else "NULL"
    if not isinstance(node, Many | Collect):
        return "NULL"
    return "'[]'::json" if node.cap is None else _object(["'[]'::json", "'0'", "'f'"])
