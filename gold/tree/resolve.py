"""A document resolved against silver's catalog: the tree that is checked, compiled and walked.

Every name of the definition has become a table, a column or an expression here, and everything that can be
wrong with a name or a type has been said, with the line of the file that says it. What follows
(`gold.compile.compiler`, `gold.incremental.affected`) takes the tree and cannot fail.

A *scope* is one occurrence of a table in the document: the root, or the rows of one `one`, `many` or
aggregate. The same table at two places is two scopes, each with its own set of columns that it reads;
pruning of changes rests on these sets, so every expression of a scope adds its columns to them here, in one
place.

Aggregates over the same rows (table, `on`, `through`) are one node with several measures, so that they cost
one pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from bronze.config.yaml_file import Problem, suggestion
from bronze.identifiers import TableName
from gold.expressions.expressions import Expression, column, parse_expression
from gold.language import types
from gold.language.model import (
    AggregateField,
    ColumnField,
    Document,
    ManyField,
    ObjectField,
    OneField,
    OrderedColumn,
    SqlField,
    Through,
    entry_name,
    parse_ordering,
    through_paths,
)
from silver.sql import literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bronze.config.yaml_file import YamlPath
    from silver.schema.catalog import SilverTable

Catalog: TypeAlias = "Mapping[TableName, SilverTable]"
Pairs: TypeAlias = tuple[tuple[str, str], ...]
"""Join conditions: (this side's column, the other side's column)."""


@dataclass(slots=True)
class Scope:
    """One occurrence of a table in a document.

    Attributes:
        label: path of field names, for people: ``orders.items``; the root's is empty.
        table: the silver table.
        where: filter of its rows.
        reads: columns that the document takes from it; a change of any other column changes no document.
    """

    label: str
    table: SilverTable
    where: Expression | None = None
    reads: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Value:
    """A field that is an expression over a scope's own row."""

    name: str
    expression: Expression


@dataclass(frozen=True, slots=True)
class Nested:
    """An object of the same row."""

    name: str
    fields: tuple[TreeField, ...]


@dataclass(frozen=True, slots=True)
class Child:
    """A field that comes from other rows.

    Attributes:
        measure: of an aggregate node: which of its measures.
    """

    name: str
    node: Node
    measure: int = 0


@dataclass(frozen=True, slots=True)
class Lifted:
    """A field of a `one`'s row that stands in the object around it."""

    name: str
    node: Node
    field: TreeField


TreeField: TypeAlias = Value | Nested | Child | Lifted


@dataclass(frozen=True, slots=True)
class Link:
    """A table on the way from the parent to a node's rows.

    Attributes:
        on: (its column, column of the link before, or of the parent).
        fields: flat in each element, after the far table's.
    """

    scope: Scope
    on: Pairs
    fields: tuple[TreeField, ...]


@dataclass(frozen=True, slots=True)
class Recursion:
    """How the rows of a node lead to more rows of their table.

    Attributes:
        name: the field in which a row holds those below it.
        on: (column of the row below, column of the row above).
        depth: levels at most, the node's own rows being the first.
    """

    name: str
    on: Pairs
    depth: int


@dataclass(frozen=True, slots=True)
class Measure:
    """One aggregate of a node, at the path `label`. `column` is None for a count of rows."""

    label: str
    function: str
    column: str | None
    where: Expression | None


@dataclass(slots=True)
class Node:
    """Rows of another table that belong to a row of `parent`.

    Attributes:
        kind: ``one``, ``many``, ``collect``, ``first`` or ``aggregate``.
        id: number in the document, from 1, in the order of the file.
        on: (this table's column, column of the last link, or of the parent).
        links: tables on the way, from the parent's side.
        fields: of ``one`` and ``many``.
        plain: elements are the one field's value, not an object.
        order: complete: what `order_by` says, then what breaks ties.
        backwards: rows are taken from the end of the order.
        limit: elements at most.
        cap: elements at most, with the number of all.
        map_by: the column whose value each element is found by; elements are then a map.
        unique: at most one row can match, by the table's key.
        recursion: what follows below each row, level by level.
    """

    kind: str
    id: int
    parent: Scope
    scope: Scope
    on: Pairs
    links: tuple[Link, ...] = ()
    fields: tuple[TreeField, ...] = ()
    plain: bool = False
    order: tuple[OrderedColumn, ...] = ()
    backwards: bool = False
    limit: int | None = None
    cap: int | None = None
    map_by: str | None = None
    unique: bool = False
    recursion: Recursion | None = None
    measures: list[Measure] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Short name that is unique in the document and says where: ``n2_items``."""
        return f"n{self.id}_{ascii_word(self.scope.label.rpartition('.')[2])}"

    @property
    def parent_columns(self) -> tuple[str, ...]:
        """The parent's columns that its rows are found by."""
        return tuple(parent for _, parent in (self.links[0].on if self.links else self.on))

    def on_at(self, place: int) -> Pairs:
        """By what the rows of one of its `scopes` are found from the scope before, or from the parent."""
        return self.on if place == len(self.links) else self.links[place].on

    @property
    def may_match_several(self) -> bool:
        """Whether it wants one row and is not found by a key."""
        return self.kind == "one" and not self.unique

    @property
    def from_own_table(self) -> bool:
        """Whether a recursion begins at a row of its own table, which may not recur below itself either."""
        return self.recursion is not None and self.parent.table.table == self.scope.table.table

    @property
    def found_by(self) -> tuple[str, ...]:
        """The parent's columns that its finished rows are joined by.

        Where they depend on the parent's own identity (`from_own_table`), that is the parent's key.
        """
        return self.parent.table.key if self.from_own_table else self.parent_columns

    @property
    def scopes(self) -> list[Scope]:
        """The links' and its own."""
        return [*(link.scope for link in self.links), self.scope]


@dataclass(frozen=True, slots=True)
class Tree:
    """A whole document, resolved.

    Attributes:
        key: the root table's key columns.
        key_fields: for each key column, the top-level field that holds it; empty when one is missing. Then
            the gold table carries the key in a column `_key` of its own.
    """

    name: str
    root: Scope
    fields: tuple[TreeField, ...]
    children: tuple[Node, ...]
    key: tuple[str, ...]
    key_fields: tuple[str, ...]

    def nodes(self) -> list[Node]:
        """All nodes, parents before children."""
        found: list[Node] = []
        waiting = list(self.children)
        while waiting:
            node = waiting.pop(0)
            found.append(node)
            waiting[:0] = node.children
        return found

    def scopes(self) -> list[Scope]:
        """Every occurrence of a table."""
        return [self.root, *(scope for node in self.nodes() for scope in node.scopes)]

    def tables(self) -> dict[TableName, SilverTable]:
        """Every silver table that the document reads."""
        return {scope.table.table: scope.table for scope in self.scopes()}

    def reads(self, table: TableName) -> set[str]:
        """Columns of a table that some scope of the document takes."""
        return set().union(*(scope.reads for scope in self.scopes() if scope.table.table == table))


def ascii_word(text: str) -> str:
    """A name as part of an identifier that needs no quotes."""
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in text).lower()


def resolve(document: Document, catalog: Catalog) -> tuple[Tree | None, list[Problem]]:
    """Find every table, column and expression of a document.

    Returns:
        the tree, or None where there are problems; and the problems.
    """
    resolver = _Resolver(document, catalog)
    tree = resolver.tree()
    return (None if resolver.problems else tree), resolver.problems


class _Resolver:
    """Walks the definition beside the file's paths, so that each problem has its line."""

    def __init__(self, document: Document, catalog: Catalog) -> None:
        self._document = document
        self._catalog = catalog
        self._nodes = 0
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
        return Tree(
            definition.document, root, fields, tuple(children), table.key, _key_fields(table.key, fields)
        )

    def _problem(self, path: YamlPath, message: str, *, key: bool = False) -> None:
        self.problems.append(Problem(self._document.file.line(path, key=key), message))

    def _table(self, name: TableName, path: YamlPath) -> SilverTable | None:
        table = self._catalog.get(name)
        if table is None:
            known = suggestion(str(name), [str(other) for other in self._catalog])
            self._problem(path, f"unknown table {name}{known}")
        return table

    def _column(self, scope: Scope, name: str, path: YamlPath, *, key: bool = False) -> str | None:
        """The type of a column, which the scope reads from now on."""
        for found in scope.table.columns:
            if found.name == name:
                scope.reads.add(name)
                return found.spark_type
        known = suggestion(name, [found.name for found in scope.table.columns])
        self._problem(path, f"{scope.table.table} has no column {name!r}{known}", key=key)
        return None

    def _expression(self, text: str | None, scope: Scope, path: YamlPath) -> Expression | None:
        if text is None:
            return None
        columns = {found.name: found.spark_type for found in scope.table.columns}
        try:
            expression = parse_expression(text, columns, str(scope.table.table))
        except ValueError as error:
            self._problem(path, str(error))
            return None
        scope.reads.update(expression.columns)
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
        """Fields of a scope. `within` is the path of the object that they stand in, for labels."""
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
            found = self._field(name, spec, (*place, name), scope, children, within=within)
            if isinstance(spec, OneField) and spec.flatten and isinstance(found, Child):
                fields += [Lifted(spec.prefix + one.name, found.node, one) for one in found.node.fields]
            elif found is not None:
                fields.append(found)
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
        node = self._one_or_many(spec, path, scope, label)
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
            said = f"default {spec.default!r} does not fit {spec.column!r}, which is {ddl}"
            self._problem((*path, "default"), said)
        found = column(spec.column)
        return Value(
            name, Expression(("coalesce(", *found.parts, f", CAST({literal(spec.default)} AS {ddl}))"))
        )

    def _one_or_many(
        self, spec: OneField | ManyField, path: YamlPath, parent: Scope, label: str
    ) -> Node | None:
        kind = "one" if isinstance(spec, OneField) else "many"
        text = spec.one if isinstance(spec, OneField) else spec.many
        node = self._node(kind, TableName.parse(text), spec, path, parent, label=label)
        if node is None:
            return None
        scope = node.scope
        scope.where = self._expression(spec.where, scope, (*path, "where"))
        if isinstance(spec, ManyField) and spec.values is not None:
            node.plain = True
            if self._column(scope, spec.values, (*path, "values")) is not None:
                node.fields = (Value(spec.values, column(spec.values)),)
        elif spec.fields is not None:
            node.fields = self._fields(spec.fields, (*path, "fields"), scope, node.children)
        if isinstance(spec, ManyField):
            node.limit, node.cap, node.map_by = spec.limit, spec.cap, spec.key_by
            ddl = None if spec.key_by is None else self._column(scope, spec.key_by, (*path, "key_by"))
            if ddl is not None and not types.map_key(ddl):
                self._problem(
                    (*path, "key_by"), f"{spec.key_by!r} is {ddl}, which cannot be the key of a map"
                )
        node.unique = kind == "one" and set(scope.table.key) <= {this for this, _ in node.on}
        self._order(node, spec.order_by, path)
        if spec.recurse is not None:
            on = self._pairs(spec.recurse.on, (*path, "recurse", "on"), scope, scope)
            node.recursion = Recursion(label.rpartition(".")[2], on, spec.recurse.max_depth)
            node.unique = node.unique and set(scope.table.key) <= {this for this, _ in on}
        return node

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
        table, of = spec.target
        function = spec.function
        kind = {"collect": "collect", "first": "first", "last": "first"}.get(function, "aggregate")
        node = self._node(kind, table, spec, path, parent, label=label)
        if node is None:
            return None
        scope = node.scope
        where = self._expression(spec.where, scope, (*path, "where"))
        if of is not None:
            ddl = self._column(scope, of, (*path, function))
            wanted = None if ddl is None else types.unfit(function, ddl)
            if wanted is not None:
                self._problem((*path, function), f"{function} of {table}.{of}, which is {ddl}: {wanted}")
        if kind != "aggregate":
            scope.where, node.plain = where, True
            node.limit, node.cap, node.backwards = spec.limit, spec.cap, function == "last"
            node.fields = (Value(name, column(of or "")),)
            self._order(node, spec.order_by, path)
        else:
            same = next((other for other in children if _same_rows(other, node)), None)
            if same is not None:
                self._nodes -= 1
                for kept, other in zip(same.scopes, node.scopes, strict=True):
                    kept.reads |= other.reads
                node = same
            node.measures.append(Measure(label, function, of, where))
            if same is not None:
                return Child(name, node, len(node.measures) - 1)
        children.append(node)
        return Child(name, node, 0)

    def _node(
        self, kind: str, name: TableName, spec: Any, path: YamlPath, parent: Scope, *, label: str
    ) -> Node | None:
        """A node without its fields. `path` is the field's; its own key there names the table."""
        table = self._table(name, (*path, kind if isinstance(spec, OneField | ManyField) else spec.function))
        self._nodes += 1
        node_id = self._nodes
        if table is None:
            return None
        scope, before = Scope(label, table), parent
        links = []
        steps = through_paths(spec) if isinstance(spec, ManyField | AggregateField) else []
        for place, step in steps:
            link = self._link(step, (*path, *place), scope, before)
            if link is None:
                return None
            links.append(link)
            before = link.scope
        if not steps:
            return Node(kind, node_id, parent, scope, self._pairs(spec.on, (*path, "on"), scope, parent))
        place, last = steps[-1]
        to = self._pairs(last.to or {}, (*path, *place, "to"), before, scope)
        return Node(kind, node_id, parent, scope, tuple((far, this) for this, far in to), tuple(links))

    def _link(self, through: Through, path: YamlPath, far: Scope, before: Scope) -> Link | None:
        table = self._table(TableName.parse(through.table), (*path, "table"))
        if table is None:
            return None
        scope = Scope(far.label, table)
        on = self._pairs(through.on, (*path, "on"), scope, before)
        scope.where = self._expression(through.where, scope, (*path, "where"))
        nowhere: list[Node] = []
        fields = self._fields(through.fields or (), (*path, "fields"), scope, nowhere)
        if nowhere:
            self._problem((*path, "fields"), "fields of a link are its own columns, objects and sql only")
        return Link(scope, on, fields)

    def _pairs(self, conditions: Mapping[str, str], path: YamlPath, this: Scope, other: Scope) -> Pairs:
        for mine, theirs in conditions.items():
            place = (*path, mine)
            left = self._column(this, mine, place, key=True)
            right = self._column(other, theirs, place)
            if left is not None and right is not None and not types.comparable(left, right):
                self._problem(
                    place,
                    f"{this.table.table}.{mine} is {left} and {other.table.table}.{theirs} is {right}: "
                    "they cannot be equal",
                )
        return tuple(conditions.items())

    def _order(self, node: Node, texts: Sequence[str] | None, path: YamlPath) -> None:
        order: list[OrderedColumn] = []
        for index, text in enumerate(texts or ()):
            wanted = parse_ordering(text)
            place = (*path, "order_by", index)
            ddl = self._column(node.scope, wanted.column, place)
            if ddl is not None and not types.orderable(ddl):
                self._problem(place, f"{wanted.column!r} is {ddl}, which has no order")
            order.append(wanted)
        taken = {wanted.column for wanted in order}
        order += [OrderedColumn(name) for name in node.scope.table.key if name not in taken]
        node.order = tuple(order)


def _same_rows(one: Node, other: Node) -> bool:
    """Whether two aggregates speak of the same rows, their own `where` apart."""
    if one.kind != "aggregate" or one.scope.table.table != other.scope.table.table or one.on != other.on:
        return False
    left = [(link.scope.table.table, link.on, link.scope.where) for link in one.links]
    return left == [(link.scope.table.table, link.on, link.scope.where) for link in other.links]


def _key_fields(key: Sequence[str], fields: Sequence[TreeField]) -> tuple[str, ...]:
    plain = {field.expression: field.name for field in reversed(fields) if isinstance(field, Value)}
    names = tuple(plain.get(column(name), "") for name in key)
    return names if all(names) else ()
