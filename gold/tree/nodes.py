"""A document resolved: the tree of tables, their join paths and their fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.gold.expressions.expressions import Expression
    from deltasmelt.gold.language.notation import OrderedColumn
    from deltasmelt.silver.schema.catalog import SilverTable

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
class Flattened:
    """A field of a `one`'s row that is put into the object around it (`flatten` in the file)."""

    name: str
    node: Node
    field: TreeField


TreeField: TypeAlias = Value | Nested | Child | Flattened


@dataclass(frozen=True, slots=True)
class Link:
    """A table between the parent and a node's rows.

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
    """One aggregate of a node.

    Attributes:
        label: path of its field.
        column: what is aggregated; None for a count of rows.
        where: of its rows.
        order: of a least or greatest value: the column that orders the values, where another one does.
    """

    label: str
    function: str
    column: str | None
    where: Expression | None
    order: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """Rows of another table that belong to a row of `parent`; one of the five classes below.

    Attributes:
        id: number in the document, from 1, in the order of the file.
        parent: whose rows they belong to.
        scope: their own table.
        on: (this table's column, column of the last link, or of the parent).
        links: tables between, from the parent's side.
        fields: what is taken of each row.
        children: nodes below each row.
        recursion: what follows below each row, level by level.
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
        return isinstance(self, One) and not self.unique

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

    @property
    def most_elements(self) -> int | None:
        """Elements that a parent has at most, where the document says so."""
        return (self.limit or self.cap) if isinstance(self, Many | Collect) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class One(Node):
    """One row, as an object.

    Attributes:
        order: complete: what `order_by` says, then the key. The first row is taken.
        unique: at most one row can match, by the table's key.
    """

    order: tuple[OrderedColumn, ...]
    unique: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Many(Node):
    """All rows, as the elements of an array or a map.

    Attributes:
        order: complete: what `order_by` says, then the key.
        plain: elements are the one field's value, not an object.
        limit: elements at most.
        cap: elements at most, with the number of all.
        map_by: the column whose value each element is found by; elements are then a map.
    """

    order: tuple[OrderedColumn, ...]
    plain: bool
    limit: int | None
    cap: int | None
    map_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect(Node):
    """The values of one column that are not NULL, as an array; `fields` holds the column alone.

    Attributes:
        order: complete, as of `Many`.
        limit: elements at most.
        cap: elements at most, with the number of all.
    """

    order: tuple[OrderedColumn, ...]
    limit: int | None
    cap: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick(Node):
    """The value of one column in the first row, or in the last; `fields` holds the column alone.

    Attributes:
        order: complete, as of `Many`.
        last: the row is taken from the end of the order.
    """

    order: tuple[OrderedColumn, ...]
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate(Node):
    """Counts, sums and the like over one set of rows.

    Attributes:
        measures: each is a field of the document; those over the same rows share the node.
    """

    measures: list[Measure]

    def has_rows_of(self, other: Aggregate) -> bool:
        """Check whether two aggregates speak of the same rows, their own `where` apart."""
        if self.scope.table.table != other.scope.table.table or self.on != other.on:
            return False
        mine = [(link.scope.table.table, link.on, link.scope.where) for link in self.links]
        return mine == [(link.scope.table.table, link.on, link.scope.where) for link in other.links]


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
