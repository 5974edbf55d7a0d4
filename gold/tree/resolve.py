"""Resolve a document against silver's catalog: the tree that gold checks, compiles and walks.

Every name of the definition becomes a table, a column or an expression. The resolver reports every wrong name
and type, with the line of the file. The later stages (`gold.compile.compiler`, `gold.incremental.affected`)
read the tree and cannot fail.

A *scope* is an occurrence of a table in the document: the root, or the rows of a `one`, `many` or aggregate.
A table at two places has two scopes, each with its own set of columns that the scope reads. Pruning of
changes depends on these sets. So the resolver alone adds the columns of every expression to its scope.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from deltasmelt.bronze.config.problems import Problem
from deltasmelt.bronze.config.suggestions import suggestion
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.gold.expressions.expressions import Expression, column, parse_expression
from deltasmelt.gold.language import types
from deltasmelt.gold.language.model import (
    AggregateField,
    ColumnField,
    ManyField,
    ObjectField,
    OneField,
    Recurse,
    SqlField,
    Through,
    entry_name,
    through_paths,
)
from deltasmelt.gold.language.notation import OrderedColumn, parse_ordering
from deltasmelt.gold.tree.comparisons import Comparisons, undecided, unmeasured, unordered
from deltasmelt.gold.tree.nodes import (
    Aggregate,
    Child,
    Collect,
    Flattened,
    Link,
    Many,
    Measure,
    Nested,
    Node,
    One,
    Pairs,
    Pick,
    Recursion,
    Scope,
    Tree,
    TreeField,
    Value,
)
from deltasmelt.silver.sql import literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltasmelt.bronze.config.yaml_file import YamlPath
    from deltasmelt.gold.language.document import Document
    from deltasmelt.silver.schema.catalog import SilverTable

Catalog: TypeAlias = "Mapping[TableName, SilverTable]"

_Rows: TypeAlias = "tuple[int, Scope, Scope, Pairs, tuple[Link, ...]]"
"""The common parts of every node: number, parent, own scope, join pairs, tables between."""


def resolve(document: Document, catalog: Catalog) -> tuple[Tree | None, list[Problem]]:
    """Find every table, column and expression of a document; return the tree, or None, and the problems."""
    resolver = _Resolver(document, catalog)
    tree = resolver.tree()
    return (None if resolver.problems else tree), resolver.problems


class _Resolver:
    """A walk over the definition in parallel with the file's paths, so that each problem has its line."""

    def __init__(self, document: Document, catalog: Catalog) -> None:
        self._document = document
        self._catalog = catalog
        self._nodes = 0
        self._comparisons = Comparisons()
        self.problems: list[Problem] = []

    def tree(self) -> Tree | None:
        definition = self._document.definition
        table = self._table(definition.root_table, ("root",))
        if table is None:
            return None
        if not table.key:
            self._problem(("root",), f"{table.table} has no key, so its rows cannot have documents")
        root = Scope("", table)
        root.where = self._expression(definition.where, root, ("where",))
        root.reads.update(table.key)
        children: list[Node] = []
        fields = self._fields(definition.fields, ("fields",), root, children)
        key_fields = _key_fields(table.key, fields)
        tree = Tree(definition.document, root, fields, tuple(children), table.key, key_fields)
        self._comparisons.extend(tree.scopes())
        return tree

    def _problem(self, path: YamlPath, message: str, *, key: bool = False) -> None:
        self.problems.append(Problem(self._document.file.line(path, key=key), message))

    def _table(self, name: TableName, path: YamlPath) -> SilverTable | None:
        table = self._catalog.get(name)
        if table is None:
            hint = suggestion(str(name), [str(table_name) for table_name in self._catalog])
            self._problem(path, f"unknown table {name}{hint}")
        return table

    def _column(self, scope: Scope, name: str, path: YamlPath, *, key: bool = False) -> str | None:
        """Return the type of a column, and add the column to the columns that the scope reads."""
        for column_read in scope.table.columns:
            if column_read.name == name:
                scope.reads.add(name)
                return column_read.spark_type
        hint = suggestion(name, [column_of_table.name for column_of_table in scope.table.columns])
        self._problem(path, f"{scope.table.table} has no column {name!r}{hint}", key=key)
        return None

    def _expression(self, text: str | None, scope: Scope, path: YamlPath) -> Expression | None:
        if text is None:
            return None
        try:
            expression = parse_expression(text, self._comparisons.columns(scope), str(scope.table.table))
        except ValueError as error:
            self._problem(path, str(error))
            return None
        self._comparisons.read(scope, expression)
        return expression

    def _fields(
        self,
        entries: Sequence[Any],
        path: YamlPath,
        scope: Scope,
        children: list[Node],
        *,
        within: str | None = None,
    ) -> tuple[TreeField, ...]:
        """Return the fields of a scope. `within` is the path of the enclosing object, for labels."""
        fields: list[TreeField] = []
        within = scope.label if within is None else within
        for index, entry in enumerate(entries):
            name = entry_name(entry)
            place: YamlPath = (*path, index)
            if isinstance(entry, str):
                if self._column(scope, name, place) is not None:
                    fields.append(Value(name, column(name)))
                continue
            spec = entry[name]
            field = self._field(name, spec, (*place, name), scope, children, within=within)
            if isinstance(spec, OneField) and spec.flatten and isinstance(field, Child):
                fields += [
                    Flattened(spec.prefix + inner.name, field.node, inner) for inner in field.node.fields
                ]
            elif field is not None:
                fields.append(field)
        return tuple(fields)

    def _field(
        self, name: str, spec: Any, path: YamlPath, scope: Scope, children: list[Node], *, within: str
    ) -> TreeField | None:
        if isinstance(spec, ColumnField):
            return self._column_field(name, spec, path, scope)
        if isinstance(spec, SqlField):
            expression = self._expression(spec.sql, scope, (*path, "sql"))
            return None if expression is None else Value(name, expression)
        label = f"{within}.{name}" if within else name
        if isinstance(spec, ObjectField):
            return Nested(name, self._fields(spec.object, (*path, "object"), scope, children, within=label))
        if isinstance(spec, AggregateField):
            return self._aggregate(name, spec, path, scope, children, label=label)
        node = (
            self._one(spec, path, scope, label)
            if isinstance(spec, OneField)
            else self._many(spec, path, scope, label)
        )
        if node is None:
            return None
        children.append(node)
        return Child(name, node)

    def _column_field(self, name: str, spec: ColumnField, path: YamlPath, scope: Scope) -> Value | None:
        ddl = self._column(scope, spec.column, (*path, "column"))
        if ddl is None:
            return None
        if spec.default is None:
            return Value(name, column(spec.column))
        if not types.holds(ddl, spec.default):
            message = f"default {spec.default!r} does not fit {spec.column!r}, which is {ddl}"
            self._problem((*path, "default"), message)
        expression = column(spec.column)
        return Value(
            name, Expression(("coalesce(", *expression.parts, f", CAST({literal(spec.default)} AS {ddl}))"))
        )

    def _one(self, spec: OneField, path: YamlPath, parent: Scope, label: str) -> One | None:
        rows = self._rows(TableName.parse(spec.one), spec, (*path, "one"), parent, label=label)
        if rows is None:
            return None
        _, _, scope, on, _ = rows
        children: list[Node] = []
        scope.where = self._expression(spec.where, scope, (*path, "where"))
        fields = self._fields(spec.fields, (*path, "fields"), scope, children)
        recursion = self._recursion(spec.recurse, path, scope, label)
        once = [on] if recursion is None else [on, recursion.on]
        names = [{self._comparisons.origin(scope, this) for this, _ in pairs} for pairs in once]
        unique = all(set(scope.table.key) <= columns for columns in names)
        order = self._order(scope, spec.order_by, path, takes=not unique)
        return One(*rows, fields, tuple(children), recursion, order=order, unique=unique)

    def _many(self, spec: ManyField, path: YamlPath, parent: Scope, label: str) -> Many | None:
        rows = self._rows(TableName.parse(spec.many), spec, (*path, "many"), parent, label=label)
        if rows is None:
            return None
        scope = rows[2]
        children: list[Node] = []
        scope.where = self._expression(spec.where, scope, (*path, "where"))
        fields: tuple[TreeField, ...] = ()
        if spec.values is None:
            fields = self._fields(spec.fields or (), (*path, "fields"), scope, children)
        elif self._column(scope, spec.values, (*path, "values")) is not None:
            fields = (Value(spec.values, column(spec.values)),)
        ddl = None if spec.key_by is None else self._column(scope, spec.key_by, (*path, "key_by"))
        if ddl is not None and not types.map_key(ddl):
            self._problem((*path, "key_by"), f"{spec.key_by!r} is {ddl}, which cannot be the key of a map")
        alone = {spec.key_by, *(self._comparisons.origin(scope, mine) for mine, _ in rows[3])}
        twice = spec.key_by is not None and not set(scope.table.key) <= alone
        takes = twice or (spec.limit or spec.cap) is not None
        return Many(
            *rows,
            fields,
            tuple(children),
            recursion=self._recursion(spec.recurse, path, scope, label),
            order=self._order(scope, spec.order_by, path, takes=takes),
            plain=spec.values is not None,
            limit=spec.limit,
            cap=spec.cap,
            map_by=spec.key_by,
        )

    def _recursion(self, spec: Recurse | None, path: YamlPath, scope: Scope, label: str) -> Recursion | None:
        if spec is None:
            return None
        on = self._pairs(spec.on, (*path, "recurse", "on"), scope, scope)
        return Recursion(label.rpartition(".")[2], on, spec.max_depth)

    def _aggregate(
        self,
        name: str,
        spec: AggregateField,
        path: YamlPath,
        parent: Scope,
        children: list[Node],
        *,
        label: str,
    ) -> Child | None:
        table, column_name = spec.target
        function = spec.function
        rows = self._rows(table, spec, (*path, function), parent, label=label)
        if rows is None:
            return None
        scope = rows[2]
        condition = self._expression(spec.where, scope, (*path, "where"))
        order = None
        if column_name is not None and self._column(scope, column_name, (*path, function)) is not None:
            fault = unmeasured(function, scope, column_name)
            if fault is not None:
                self._problem((*path, function), fault)
            else:
                column_name, order = self._comparisons.measured(function, scope, column_name)
        if function not in {"collect", "first", "last"}:
            return self._measure(
                name, Measure(label, function, column_name, condition, order), rows, children
            )
        scope.where = condition
        value = (Value(name, column(column_name or "")),)
        takes = function != "collect" or (spec.limit or spec.cap) is not None
        ordered = self._order(scope, spec.order_by, path, takes=takes)
        node: Node = (
            Collect(*rows, value, order=ordered, limit=spec.limit, cap=spec.cap)
            if function == "collect"
            else Pick(*rows, value, order=ordered, last=function == "last")
        )
        children.append(node)
        return Child(name, node)

    def _measure(self, name: str, measure: Measure, rows: _Rows, children: list[Node]) -> Child:
        """Return a field of an aggregate; reuse the node of an earlier aggregate over the same rows."""
        node = Aggregate(*rows, measures=[measure])
        # One pass serves all aggregates over the same rows (table, `on`, `through`).
        for earlier in children:
            if isinstance(earlier, Aggregate) and earlier.has_rows_of(node):
                self._nodes -= 1
                for scope, also in zip(earlier.scopes, node.scopes, strict=True):
                    scope.reads |= also.reads
                earlier.measures.append(measure)
                return Child(name, earlier, len(earlier.measures) - 1)
        children.append(node)
        return Child(name, node)

    def _rows(
        self,
        name: TableName,
        spec: OneField | ManyField | AggregateField,
        path: YamlPath,
        parent: Scope,
        *,
        label: str,
    ) -> _Rows | None:
        """Return the common parts of a node. `path` leads to the table's name in the file."""
        table = self._table(name, path)
        self._nodes += 1
        node_id = self._nodes
        if table is None:
            return None
        field = path[:-1]
        scope, scope_before = Scope(label, table), parent
        links = []
        steps = through_paths(spec) if isinstance(spec, ManyField | AggregateField) else []
        for place, step in steps:
            link = self._link(step, (*field, *place), scope, scope_before)
            if link is None:
                return None
            links.append(link)
            scope_before = link.scope
        if not steps:
            return node_id, parent, scope, self._pairs(spec.on or {}, (*field, "on"), scope, parent), ()
        place, last = steps[-1]
        to = self._pairs(last.to or {}, (*field, *place, "to"), scope_before, scope)
        return node_id, parent, scope, tuple((far, this) for this, far in to), tuple(links)

    def _link(self, through: Through, path: YamlPath, far: Scope, before: Scope) -> Link | None:
        table = self._table(TableName.parse(through.table), (*path, "table"))
        if table is None:
            return None
        scope = Scope(far.label, table)
        for name in table.key:
            self._comparisons.ordering(scope, name)
        on = self._pairs(through.on, (*path, "on"), scope, before)
        scope.where = self._expression(through.where, scope, (*path, "where"))
        nowhere: list[Node] = []
        fields = self._fields(through.fields or (), (*path, "fields"), scope, nowhere)
        if nowhere:
            self._problem((*path, "fields"), "fields of a link are its own columns, objects and sql only")
        return Link(scope, on, fields)

    def _pairs(
        self, conditions: Mapping[str, str], path: YamlPath, scope: Scope, other_scope: Scope
    ) -> Pairs:
        pairs: list[tuple[str, str]] = []
        for near, far in conditions.items():
            place = (*path, near)
            left = self._column(scope, near, place, key=True)
            right = self._column(other_scope, far, place)
            if left is None or right is None:
                continue
            try:
                pairs.append(
                    self._comparisons.pair(
                        scope, scope.table.column(near), other_scope, other_scope.table.column(far)
                    )
                )
            except ValueError as error:
                self._problem(place, str(error))
        return tuple(pairs)

    def _order(
        self, scope: Scope, texts: Sequence[str] | None, path: YamlPath, *, takes: bool
    ) -> tuple[OrderedColumn, ...]:
        """Return the order of rows, which may decide the rows taken: the file's order, then the key."""
        order: list[OrderedColumn] = []
        for index, text in enumerate(texts or ()):
            ordered = parse_ordering(text)
            place = (*path, "order_by", index)
            if self._column(scope, ordered.column, place) is None:
                continue
            fault = unordered(scope.table.column(ordered.column))
            if fault is not None:
                self._problem(place, fault)
            order.append(ordered)
        ordered_names = {ordered_column.column for ordered_column in order}
        # The key comes last. A key without an order in Spark orders rows by its text, but decides nothing.
        fault = undecided(scope.table, ordered_names) if takes else None
        if fault is not None:
            self._problem(path, fault)
        order += [OrderedColumn(name) for name in scope.table.key if name not in ordered_names]
        return tuple(
            replace(ordered_column, column=self._comparisons.ordering(scope, ordered_column.column))
            for ordered_column in order
        )


def _key_fields(key: Sequence[str], fields: Sequence[TreeField]) -> tuple[str, ...]:
    plain = {field.expression: field.name for field in reversed(fields) if isinstance(field, Value)}
    names = tuple(plain.get(column(name), "") for name in key)
    return names if all(names) else ()
