"""Define a resolved document: the tree of tables, with join paths and fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.gold.expressions.expressions import Expression
    from deltasmelt.gold.language.notation import OrderedColumn
    from deltasmelt.silver.schema.catalog import SilverTable

Pairs: TypeAlias = tuple[tuple[str, str], ...]
"""Join conditions: (left column, right column)."""


@dataclass(slots=True)
class Scope:
    """An occurrence of a table in a document.

    Attributes:
        label: path of field names, for people: ``orders.items``; the root's is empty.
        where: filter of the table's rows.
        reads: columns that the document reads; a change of any other column changes no document.
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
    """An object with values of the scope's own row."""

    name: str
    fields: tuple[TreeField, ...]


@dataclass(frozen=True, slots=True)
class Child:
    """A field with values of rows below; `measure` is the index of an aggregate node's measure."""

    name: str
    node: Node
    measure: int = 0


@dataclass(frozen=True, slots=True)
class Flattened:
    """A field of a `one`'s row, placed in the enclosing object (`flatten` in the file)."""

    name: str
    node: Node
    field: TreeField


TreeField: TypeAlias = Value | Nested | Child | Flattened


@dataclass(frozen=True, slots=True)
class Link:
    """A table between the parent and a node's rows.

    Attributes:
        on: (column of the link, column of the previous link or of the parent).
        fields: flat in each element, after the far table's fields.
    """

    scope: Scope
    on: Pairs
    fields: tuple[TreeField, ...]


@dataclass(frozen=True, slots=True)
class Recursion:
    """The path from the rows of a node to further rows of their table.

    Attributes:
        name: the field in which a row holds the rows below.
        on: (column of the row below, column of the row above).
        depth: maximum number of levels; the node's own rows are the first level.
    """

    name: str
    on: Pairs
    depth: int


@dataclass(frozen=True, slots=True)
class Measure:
    """An aggregate of a node.

    Attributes:
        label: path of the measure's field.
        column: the aggregated column; None for a count of rows.
        order: for a least or greatest value: the column that orders the values, if not `column` itself.
    """

    label: str
    function: str
    column: str | None
    where: Expression | None
    order: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """Rows of another table that belong to a row of `parent`; an instance of a class below.

    Attributes:
        id: number in the document, from 1, in the order of the file.
        parent: the scope whose rows own the node's rows.
        scope: the occurrence of the node's own table.
        on: (column of the node's table, column of the last link or of the parent).
        links: tables between, from the parent's side.
        fields: values that the document takes from each row.
        children: nodes with rows below each row.
        recursion: further rows below each row, level by level.
    """

    id: int
    parent: Scope
    scope: Scope
    on: Pairs
    links: tuple[Link, ...]
    fields: tuple[TreeField, ...] = ()
    children: tuple[Node, ...] = ()
    recursion: Recursion | None = None

    @property
    def name(self) -> str:
        """Short name, unique in the document, that shows the node's place: ``n2_items``."""
        return f"n{self.id}_{ascii_word(self.scope.label.rpartition('.')[2])}"

    @property
    def parent_columns(self) -> tuple[str, ...]:
        """The parent's columns by which the node's rows are found."""
        return tuple(parent for _, parent in (self.links[0].on if self.links else self.on))

    def on_at(self, place: int) -> Pairs:
        """Return the pairs that find the rows of the scope at `place` from the scope or parent before."""
        return self.on if place == len(self.links) else self.links[place].on

    @property
    def may_match_several(self) -> bool:
        """Whether the node wants one row and no key guarantees a single match."""
        return isinstance(self, One) and not self.unique

    @property
    def from_own_table(self) -> bool:
        """Whether a recursion begins at a row of the node's table; the row may not recur below itself."""
        return self.recursion is not None and self.parent.table.table == self.scope.table.table

    @property
    def found_by(self) -> tuple[str, ...]:
        """The parent's columns by which the node's finished rows are joined."""
        # The rows of a recursion from its own table depend on the parent's own identity.
        return self.parent.table.key if self.from_own_table else self.parent_columns

    @property
    def scopes(self) -> list[Scope]:
        """The scopes of the links, then the node's own scope."""
        return [*(link.scope for link in self.links), self.scope]

    @property
    def most_elements(self) -> int | None:
        """Maximum number of elements per parent, if the document sets a maximum."""
        return (self.limit or self.cap) if isinstance(self, Many | Collect) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class One(Node):
    """A single row, as an object.

    Attributes:
        order: complete: the file's `order_by`, then the key. Gold takes the first row.
        unique: at most one row can match, by the table's key.
    """

    order: tuple[OrderedColumn, ...]
    unique: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Many(Node):
    """All rows, as the elements of an array or a map.

    Attributes:
        order: complete: the file's `order_by`, then the key.
        plain: elements are the single field's value, not an object.
        limit, cap: maximum number of elements; with `cap` also the number of all elements.
        map_by: the column whose value is the key of each element; elements then form a map.
    """

    order: tuple[OrderedColumn, ...]
    plain: bool
    limit: int | None
    cap: int | None
    map_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect(Node):
    """The values of a column that are not NULL, as an array; `fields` holds only this column.

    `order`, `limit` and `cap` are as in `Many`.
    """

    order: tuple[OrderedColumn, ...]
    limit: int | None
    cap: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick(Node):
    """The value of a column in the first row, or in the `last`, of an order as in `Many`."""

    order: tuple[OrderedColumn, ...]
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate(Node):
    """Counts, sums and similar values over a set of rows; each measure is a field of the document."""

    measures: list[Measure]

    def has_rows_of(self, aggregate: Aggregate) -> bool:
        """Check whether two aggregates use the same rows, apart from the measures' own `where`."""
        if self.scope.table.table != aggregate.scope.table.table or self.on != aggregate.on:
            return False
        own_links = [(link.scope.table.table, link.on, link.scope.where) for link in self.links]
        return own_links == [(link.scope.table.table, link.on, link.scope.where) for link in aggregate.links]


@dataclass(frozen=True, slots=True)
class Tree:
    """A whole document, resolved.

    `key_fields` has, for each column of the root's key, the top-level field that holds it; it is empty if a
    column has no such field. The gold table then carries the key in its own column `_key`.
    """

    name: str
    root: Scope
    fields: tuple[TreeField, ...]
    children: tuple[Node, ...]
    key: tuple[str, ...]
    key_fields: tuple[str, ...]

    def nodes(self) -> list[Node]:
        """Return all nodes, parents before children."""
        nodes: list[Node] = []
        waiting = list(self.children)
        while waiting:
            node = waiting.pop(0)
            nodes.append(node)
            waiting[:0] = node.children
        return nodes

    def scopes(self) -> list[Scope]:
        """Return every occurrence of a table."""
        return [self.root, *(scope for node in self.nodes() for scope in node.scopes)]

    def tables(self) -> dict[TableName, SilverTable]:
        """Return every silver table that the document reads."""
        return {scope.table.table: scope.table for scope in self.scopes()}

    def reads(self, table: TableName) -> set[str]:
        """Return the columns of a table that any scope of the document reads."""
        return set().union(*(scope.reads for scope in self.scopes() if scope.table.table == table))

    def expressions(self) -> Iterator[tuple[TableName, Expression]]:
        """Yield every expression, with the table of the expression's rows."""
        yield from _of_fields(self.root, self.fields)
        for scope in self.scopes():
            if scope.where is not None:
                yield scope.table.table, scope.where
        for node in self.nodes():
            yield from _of_fields(node.scope, node.fields)
            for link in node.links:
                yield from _of_fields(link.scope, link.fields)
            for measure in node.measures if isinstance(node, Aggregate) else ():
                if measure.where is not None:
                    yield node.scope.table.table, measure.where


def _of_fields(scope: Scope, fields: Sequence[TreeField]) -> Iterator[tuple[TableName, Expression]]:
    for present in fields:
        if isinstance(present, Nested):
            yield from _of_fields(scope, present.fields)
        elif isinstance(present, Value):
            yield scope.table.table, present.expression


def ascii_word(text: str) -> str:
    """Return a name as part of an identifier that needs no quotes."""
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in text).lower()
