"""Compile a document to one Spark SQL query. Pure: a tree in, text out.

Each node becomes one common table expression: the node's rows, joined with the node's children. The rows are
grouped by the columns by which the parent finds them (``k0, k1 …``). So the parent joins the node by LEFT
JOIN on unique keys, and the join never changes the number of the parent's rows. The query has no correlated
subquery. Each table has its own alias, so names of columns cannot clash.

With `roots`, semi joins first reduce the rows of each table, from the roots outwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltasmelt.gold.compile.clauses import (
    CommonTable,
    collected,
    collected_by_key,
    either,
    equal,
    is_by_key,
    join_path,
    measured,
    named,
    numbered,
    ordering,
    place_of,
    select,
    struct,
    subquery,
)
from deltasmelt.gold.compile.flags import flagged, raised
from deltasmelt.gold.compile.query import KEY, Compiled, TableSql, flag_column
from deltasmelt.gold.compile.recursion import RecursionSteps
from deltasmelt.gold.tree.derived import with_derived
from deltasmelt.gold.tree.nodes import (
    Aggregate,
    Child,
    Collect,
    Flattened,
    Many,
    Nested,
    One,
    Pick,
    Value,
    ascii_word,
)
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.gold.tree.nodes import Node, Pairs, Recursion, Scope, Tree, TreeField


def compile_tree(
    tree: Tree,
    relation: TableSql,
    *,
    roots: str | None = None,
    single_task: bool = False,
    broadcast: bool = False,
    key_values: Sequence[str] = (),
    by_value: Collection[TableName] = (),
    listed: Mapping[str, str] | None = None,
) -> Compiled:
    """Compile a document.

    Args:
        tree: the resolved document to compile.
        relation: returns the SQL relation of each silver table.
        roots: a relation with the keys of the roots to build, columns ``k0, k1 …``; None builds all.
        single_task: the rows of these roots easily fit one task; each table's rows then share one partition,
            and all later steps need no shuffle.
        broadcast: the keys of these roots and of their rows easily fit into memory; each task then gets all
            keys, and Spark shuffles no table to find rows. `single_task` implies `broadcast`.
        key_values: for a single root, the values of its key as SQL.
        by_value: tables whose rows are found by the values in `key_values` if possible, not by a join with
            `roots`.
        listed: literals of columns of `roots` (`gold.incremental.key_lists`), by which Spark reads tables.
    """
    compiler = Compiler(tree, relation, roots, single_task=single_task, broadcast=broadcast)
    compiler.key_values, compiler.by_value, compiler.listed = key_values, by_value, listed or {}
    return compiler.document()


class Compiler:
    """Builder of the steps of a document."""

    def __init__(
        self,
        tree: Tree,
        relation: TableSql,
        roots: str | None,
        *,
        single_task: bool = False,
        broadcast: bool = False,
    ) -> None:
        self._tree = tree
        self._relation = with_derived(tree, relation)
        self._roots = roots
        hints = ["BROADCAST(r)"] * (single_task or broadcast) + ["REPARTITION(1)"] * single_task
        self._hint = f"/*+ {', '.join(hints)} */ " if hints else ""
        self.key_values: Sequence[str] = ()
        self.by_value: Collection[TableName] = ()
        self.listed: Mapping[str, str] = {}
        self._root = ""
        self._rows: dict[tuple[TableName, str, Pairs], CommonTable] = {}
        self._nodes: list[CommonTable] = []

    def document(self) -> Compiled:
        """Return the whole document."""
        tree, root = self._tree, self._tree.root
        source = self._begin()
        output = [(field.name, self._field(field, "t")) for field in tree.fields]
        fields = tuple(name for name, _ in output)
        if tree.key_fields:
            key = tuple(quote(name) for name in tree.key_fields)
        else:
            output.append((KEY, struct((name, quote("t", name)) for name in tree.key)))
            key = tuple(quote(KEY, name) for name in tree.key)
        columns = tuple(name for name, _ in output)
        flags = raised(tree.children)
        output += [(flag_column(flag), flagged(tree.children, flag)) for flag in flags]
        selected = [f"{expression} AS {quote(name)}" for name, expression in output]
        conditions = [] if root.where is None else [root.where.sql("t")]
        final = select(selected, f"{source} AS t", self._joins(tree.children, "t"), conditions)
        rows = tuple(self._rows.values())
        types_of_key = tuple(root.table.column(name).spark_type for name in tree.key)
        return Compiled(rows, tuple(self._nodes), final, columns, fields, key, types_of_key, flags)

    def _begin(self) -> str:
        """Add the steps of all nodes; return the root's rows."""
        tree, root = self._tree, self._tree.root
        source = self._relation(root.table.table)
        if self._roots is not None:
            pairs = tuple((name, f"k{i}") for i, name in enumerate(tree.key))
            source = self._root = self._belonging(root, self._roots, pairs)
        for node in tree.children:
            self._node(node, source)
        return source

    def _node(self, node: Node, parent_source: str) -> None:
        """Add the steps of a node: first of its children, then its own step."""
        if isinstance(node, One | Many) and node.recursion is not None:
            self._recursive(node, node.recursion, parent_source)
            return
        source, last_alias = parent_source, ""
        rows = ""
        for scope, on, alias in join_path(node):
            place = self._relation(scope.table.table)
            if self._roots is not None:
                place = self._belonging(scope, source, on)
            pairs = tuple((theirs, this) for this, theirs in on)
            rows += (
                f"\nJOIN {place} AS {alias} ON {equal(pairs, last_alias, alias)}"
                if rows
                else f"{place} AS {alias}"
            )
            source, last_alias = place, alias
        far = source
        _, on, first = join_path(node)[0]
        keys = [quote(first, this) for this, _ in on]
        for child in node.children:
            self._node(child, far)
        conditions = _not_null(node)
        conditions += [
            scope.where.sql(alias) for scope, _, alias in join_path(node) if scope.where is not None
        ]
        comment = f"{node.scope.label}: {node.scope.table.table}"
        self._nodes.append(CommonTable(node.name, comment, self._grouped(node, rows, keys, conditions)))

    def _grouped(self, node: Node, rows: str, keys: Sequence[str], where: Sequence[str]) -> str:
        """Return a node's rows as one row per parent: ``k0, k1 …``, then ``item`` or ``m0, m1 …``."""
        match node:
            case One():
                return self._one(node, rows, keys, where)
            case Many() | Collect():
                return self._many(node, rows, keys, where)
            case Pick():
                return self._pick(node, rows, keys, where)
            case Aggregate():
                return self._aggregate(node, rows, keys, where)
            case _:
                raise TypeError(type(node).__name__)

    def _recursive(self, node: One | Many, recursion: Recursion, parent_source: str) -> None:
        """Add the steps of a node whose rows lead to further rows of the table (`gold.compile.recursion`)."""
        source = self._recurring(node, recursion, parent_source)
        for child in node.children:
            self._node(child, source)
        self._nodes += RecursionSteps(
            node,
            recursion,
            rows=source,
            parent=parent_source,
            fields=[(field.name, self._field(field, "t")) for field in node.fields],
            joins=self._joins(node.children, "t"),
            below=self._below(node),
        ).steps()

    def _recurring(self, node: Node, recursion: Recursion, parent_source: str) -> str:
        """Return the rows of all levels of a recursion."""
        scope = node.scope
        if self._roots is None:
            return self._relation(scope.table.table)
        levels = [self._belonging(scope, parent_source, node.on)]
        for _ in range(recursion.depth - 1):
            levels.append(self._belonging(scope, levels[-1], recursion.on))
        return self._each_once(scope, levels)

    def _each_once(self, scope: Scope, levels: Sequence[str]) -> str:
        """Return, as a step, the rows of several levels, each row once even if on several levels."""
        key = [quote(name) for name in scope.table.key]
        columns_read = self._tree.reads(scope.table.table) - set(scope.table.key)
        others = [quote(column.name) for column in scope.table.columns if column.name in columns_read]
        union = "\nUNION ALL\n".join(f"SELECT * FROM {level}" for level in levels)
        columns = [*key, *(f"any_value({name}) AS {name}" for name in others)]
        sql = select(columns, subquery(union)) + f"\nGROUP BY {', '.join(key)}"
        name = f"r{len(self._rows)}_{ascii_word(scope.table.name)}"
        self._rows[scope.table.table, name, ()] = CommonTable(name, f"rows of {', '.join(levels)}", sql)
        return name

    def _belonging(self, scope: Scope, parent: str, on: Pairs) -> str:
        """Return, as a step, a table's rows that belong to rows of `parent`."""
        table = scope.table
        if parent == self._root and {theirs for _, theirs in on} <= set(self._tree.key):
            # The given keys find these rows too, so the query need not read the root's own rows first.
            parent = self._roots or ""
            on = tuple((this, f"k{self._tree.key.index(theirs)}") for this, theirs in on)
        place = (table.table, parent, on)
        # Several nodes read these rows: the table's own node and the nodes below.
        if place not in self._rows:
            columns_read = self._tree.reads(table.table) | set(table.key)
            columns = ", ".join(
                quote("t", column.name) for column in table.columns if column.name in columns_read
            )
            condition = f"LEFT SEMI JOIN {parent} AS r ON {equal(on, 't', 'r')}"
            if parent == self._roots and table.table in self.by_value:
                values = {f"k{i}": value for i, value in enumerate(self.key_values)}
                condition = "WHERE " + " AND ".join(f"{quote('t', this)} = {values[key]}" for this, key in on)
            elif parent == self._roots:
                condition += self._among(scope, on)
            sql = f"SELECT {self._hint}{columns}\nFROM {self._relation(table.table)} AS t\n{condition}"
            name = f"r{len(self._rows)}_{ascii_word(table.name)}"
            owner = "the roots" if parent == self._roots else parent
            self._rows[place] = CommonTable(name, f"rows of {table.table} that belong to {owner}", sql)
        return self._rows[place].name

    def _among(self, scope: Scope, on: Pairs) -> str:
        """Return a condition on the table alone, in addition to the join with the roots, that skips pages."""
        types = {
            f"k{i}": self._tree.root.table.column(name).spark_type for i, name in enumerate(self._tree.key)
        }
        conditions = [
            f"{quote('t', this)} IN ({self.listed[key]})"
            for this, key in on
            # Spark would compare a column of another type than the key's after a cast, and skip nothing.
            if key in self.listed and scope.table.column(this).spark_type == types[key]
        ]
        return f"\nWHERE {' AND '.join(conditions)}" if conditions else ""

    def _below(self, node: Node) -> dict[str, str]:
        """Return the flags that the children of a node can raise, each with its condition."""
        return {flag: flagged(node.children, flag) for flag in raised(node.children)}

    def _one(self, node: One, rows: str, keys: Sequence[str], where: Sequence[str]) -> str:
        item = self._item(node)
        below = self._below(node)
        if node.unique:
            output = [
                *numbered(keys),
                f"{item} AS item",
                *(f"{condition} AS {flag}" for flag, condition in below.items()),
            ]
            return select(output, rows, self._joins(node.children, "t"), where)
        names = [f"k{i}" for i in range(len(keys))]
        order = ordering(node)
        output = [
            *numbered(keys),
            *named(order),
            f"{item} AS item",
            *(f"{condition} AS {flag}" for flag, condition in below.items()),
        ]
        inner = select(output, rows, self._joins(node.children, "t"), where)
        flags = {flag: flag for flag in below}
        several = f"count(*) OVER (PARTITION BY {', '.join(names)}) > 1"
        flags["several"] = either(several, flags.get("several", ""))
        listed = [*names, "item", f"{place_of(names, order)} AS n"]
        listed += [f"{condition} AS {flag}" for flag, condition in flags.items()]
        ranked = select(listed, subquery(inner))
        return select([", ".join([*names, "item", *flags])], subquery(ranked), [], ["n = 1"])

    def _pick(self, node: Pick, rows: str, keys: Sequence[str], where: Sequence[str]) -> str:
        order = ordering(node)
        output = [*numbered(keys), *named(order), f"{self._item(node)} AS item"]
        inner = select(output, rows, [], where)
        names = [f"k{i}" for i in range(len(keys))]
        ranked = select([*names, "item", f"{place_of(names, order)} AS n"], subquery(inner))
        return select([", ".join([*names, "item"])], subquery(ranked), [], ["n = 1"])

    def _many(self, node: Many | Collect, rows: str, keys: Sequence[str], where: Sequence[str]) -> str:
        below = raised(node.children)
        if isinstance(node, Collect):
            where = [*where, f"{self._field(node.fields[0], 't')} IS NOT NULL"]
        order, by_key = ordering(node), is_by_key(node)
        output = [*numbered(keys), *named(order), f"{self._item(node)} AS item"]
        map_by = node.map_by if isinstance(node, Many) else None
        if map_by is not None:
            name = quote("t", map_by)
            where = [*where, f"{name} IS NOT NULL"]
            output.append(f"{name} AS name")
        output += [f"{flagged(node.children, flag)} AS {flag}" for flag in below]
        names = [f"k{i}" for i in range(len(keys))]
        grouping = ", ".join(names)
        # Repartitioned before the aggregation, rows are sorted once. Without the hint Spark would collect
        # rows in the reading task, where few rows have the same parent.
        hint = f"REPARTITION({grouping})" if by_key and self._roots is None else ""
        query = select(output, rows, self._joins(node.children, "t"), where, hint=hint)
        conditions: list[str] = []
        if not by_key:
            listed = [*names, "item", f"{place_of(names, order)} AS n"]
            conditions = [] if node.limit is None else [f"n <= {node.limit}"]
            if map_by is not None:
                listed += ["name", f"{place_of([*names, 'name'], order)} AS same"]
                conditions = ["same = 1"]
            query = select([*listed, *below], subquery(query))
        items = collected_by_key(len(order)) if by_key else collected(node)
        gathered = [grouping, f"{items} AS item", *(f"bool_or({flag}) AS {flag}" for flag in below)]
        return select(gathered, subquery(query), [], conditions) + f"\nGROUP BY {grouping}"

    def _aggregate(self, node: Aggregate, rows: str, keys: Sequence[str], where: Sequence[str]) -> str:
        wheres = {measure.where for measure in node.measures}
        common = wheres.pop() if len(wheres) == 1 else None
        if common is not None:
            where = [*where, common.sql("t")]
        output = [*numbered(keys), *measured(node, common=common is not None)]
        return select(output, rows, [], where) + f"\nGROUP BY {', '.join(keys)}"

    def _item(self, node: Node) -> str:
        if not node.fields:
            return "true"  # the rows are only counted
        if isinstance(node, Collect | Pick) or (isinstance(node, Many) and node.plain):
            return self._field(node.fields[0], "t")
        pairs = [(field.name, self._field(field, "t")) for field in node.fields]
        for link, (_, _, alias) in zip(node.links, join_path(node), strict=False):
            pairs += [(field.name, self._field(field, alias)) for field in link.fields]
        return struct(pairs)

    def _field(self, field: TreeField, alias: str) -> str:
        if isinstance(field, Value):
            return field.expression.sql(alias)
        if isinstance(field, Nested):
            return struct((inner.name, self._field(inner, alias)) for inner in field.fields)
        if isinstance(field, Flattened):
            return _or_empty(field, quote(field.node.name, "item", field.field.name))
        item = f"m{field.measure}" if isinstance(field.node, Aggregate) else "item"
        return _or_empty(field, f"{field.node.name}.{item}")

    def _joins(self, children: Sequence[Node], alias: str) -> list[str]:
        joins = []
        for child in children:
            matched = (f"{child.name}.k{i} = {quote(alias, name)}" for i, name in enumerate(child.found_by))
            joins.append(f"LEFT JOIN {child.name} ON {' AND '.join(matched)}")
        return joins


def _or_empty(field: TreeField, value: str) -> str:
    """Return a field's value, or its default without a row: a missing partner of a LEFT JOIN is NULL."""
    if isinstance(field, Flattened):
        return _or_empty(field.field, value)
    if not isinstance(field, Child):
        return value
    node = field.node
    if isinstance(node, Aggregate):
        counts = node.measures[field.measure].function in {"count", "count_distinct"}
        return f"coalesce({value}, 0L)" if counts else value
    if not isinstance(node, Many | Collect):
        return value
    nothing = "array()"
    if isinstance(node, Many) and node.map_by is not None:
        nothing = "map()"
    elif node.cap is not None:
        nothing = struct([("items", "array()"), ("count", "0L"), ("truncated", "false")])
    return f"coalesce({value}, {nothing})"


def _not_null(node: Node) -> list[str]:
    """Return conditions that drop NULL join keys."""
    # NULL joins no row, so grouping such rows would be wasted.
    scope, on, alias = join_path(node)[0]
    return [f"{quote(alias, this)} IS NOT NULL" for this, _ in on if this not in scope.table.key]
