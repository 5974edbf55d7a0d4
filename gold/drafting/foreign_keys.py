"""Foreign keys between tables: which are links, which are lookups, which deserve a document. Pure.

A table deserves a document if rows of others belong to its rows: orders to a customer, items to an order. A
*link* table, which has two foreign keys and little else, deserves none. Nor does a *lookup*: it is small, it
references nothing and is only referenced (countries, kinds, states). What a catalog says of that is a hint,
not a proof. So the choice is a ranking, and each table that is left out is reported with the reason.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.gold.drafting.secrets import is_secret
from deltasmelt.gold.language import types
from deltasmelt.gold.tree.comparisons import unjoined

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.silver.schema.catalog import SilverColumn, SilverTable

_LINK_COLUMNS: Final = 4
_LOOKUP_COLUMNS: Final = 4
_LOOKUP_ROWS: Final = 1000
_LOOKUP_SHARE: Final = 10


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key of a table.

    Attributes:
        columns: of the table that has it.
        target: the table it points at, and `referenced` the columns there, in the same order.
        owning: rows go when the row they point at goes (ON DELETE CASCADE).
    """

    columns: tuple[str, ...]
    target: TableName
    referenced: tuple[str, ...]
    owning: bool = False


@dataclass(frozen=True, slots=True)
class Described:
    """A table with what its columns alone do not say.

    Attributes:
        unique: columns of each unique index, the primary key's among them.
        rows: about how many it has; 0 where that is not known.
    """

    table: SilverTable
    foreign_keys: tuple[ForeignKey, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    rows: int = 0

    @property
    def name(self) -> TableName:
        """Its name."""
        return self.table.table


@dataclass(frozen=True, slots=True)
class Unfollowed:
    """A foreign key that documents cannot follow.

    Attributes:
        ends: the table that has the foreign key, and the table that the foreign key references.
        columns: of the foreign key.
        why: what `smelt check` would say of the join.
    """

    ends: tuple[TableName, TableName]
    columns: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        """The foreign key and the reason, on one line."""
        return f"{self.ends[0]} ({', '.join(self.columns)}) -> {self.ends[1]}: {self.why}"


class Schema:
    """Tables by name, the foreign keys that can be joined, from both ends, and the link tables.

    Attributes:
        unfollowed: the foreign keys between carried tables that `smelt check` would refuse to join by.
    """

    def __init__(self, tables: Iterable[Described]) -> None:
        self.tables = {each.name: each for each in sorted(tables, key=lambda each: each.name)}
        self.keys: dict[TableName, list[ForeignKey]] = {}
        self.incoming: dict[TableName, list[tuple[Described, ForeignKey]]] = {
            name: [] for name in self.tables
        }
        self.unfollowed: list[Unfollowed] = []
        for name, each in self.tables.items():
            self.keys[name] = [key for key in dict.fromkeys(each.foreign_keys) if self._joins(each, key)]
            for key in self.keys[name]:
                self.incoming[key.target].append((each, key))
        self.links = {name for name, each in self.tables.items() if self._is_link(each)}

    def _joins(self, child: Described, key: ForeignKey) -> bool:
        """Check whether both tables are carried, in types that documents can join by."""
        parent = self.tables.get(key.target)
        if parent is None:
            return False
        ends = [
            (_column(child.table, mine), _column(parent.table, theirs))
            for mine, theirs in zip(key.columns, key.referenced, strict=True)
        ]
        found = [(mine, theirs) for mine, theirs in ends if mine is not None and theirs is not None]
        said = (unjoined((child.name, mine), (parent.name, theirs)) for mine, theirs in found)
        wrong = next(filter(None, said), None)
        if wrong is not None:
            self.unfollowed.append(Unfollowed((child.name, parent.name), key.columns, wrong))
        return wrong is None and len(found) == len(ends)

    def _is_link(self, table: Described) -> bool:
        """Two foreign keys are its key, a unique index or all that is never NULL, and little is beside."""
        keys = self.keys[table.name]
        if len(keys) != 2 or self.incoming[table.name] or set(keys[0].columns) == set(keys[1].columns):
            return False
        both = {*keys[0].columns, *keys[1].columns}
        filled = {column.name for column in table.table.columns if column.not_null}
        if both not in (set(table.table.key), filled, *map(set, table.unique)):
            return False
        return sum(not left_out(column) for column in self.link_columns(table)) <= _LINK_COLUMNS

    def leading(self, link: Described) -> ForeignKey:
        """The side that a link belongs to: its key names it first, as in ``(order_id, product_id)``.

        Where a link has neither key nor unique index of its two ends, its first column tells.
        """
        first, second = self.keys[link.name]
        ends = {*first.columns, *second.columns}
        orders = [columns for columns in (link.table.key, *link.unique) if set(columns) == ends]
        order = [*(orders[0] if orders else ()), *(column.name for column in link.table.columns)]
        own = next(name for name in order if (name in first.columns) != (name in second.columns))
        return first if own in first.columns else second

    def link_columns(self, link: Described) -> list[SilverColumn]:
        """What a link has beside its ends, and a key that was made up for it."""
        ends = {column for key in self.keys[link.name] for column in key.columns}
        return [
            column
            for column in link.table.columns
            if column.name not in ends and column.name not in link.table.key
        ]

    def is_lookup(self, table: Described) -> bool:
        """Only pointed at, pointing nowhere, small, and owning nothing: countries, kinds, states."""
        if any(key.target != table.name for key in self.keys[table.name]):
            return False
        users = [(child, key) for child, key in self.incoming[table.name] if child is not table]
        if any(key.owning and child.name not in self.links for child, key in users):
            return False
        if table.rows > _LOOKUP_ROWS:
            return False
        narrow = len(table.table.columns) <= _LOOKUP_COLUMNS
        largest = max((child.rows for child, _ in users), default=0)
        return narrow or 0 < table.rows * _LOOKUP_SHARE <= largest

    def score(self, table: Described) -> tuple[int, int]:
        """How much depends on a table: its children, counted higher if owned or with children."""
        points = 0
        for child, key in self.children(table):
            deep = any(other is not child for other, _ in self.incoming[child.name])
            points += 1 + _required(child.table, key) + 2 * key.owning + deep
        return points, table.rows

    def children(self, table: Described) -> list[tuple[Described, ForeignKey]]:
        """Tables whose rows belong to rows of this one.

        A table that points here several times, as at a billing and a shipping address, uses rows of this one
        instead; and a link belongs to one of its two sides.
        """
        times = Counter(child.name for child, _ in self.incoming[table.name])
        return [
            (child, key)
            for child, key in self.incoming[table.name]
            if child is not table
            and times[child.name] == 1
            and (child.name not in self.links or key is self.leading(child))
        ]

    def roots(self) -> list[Described]:
        """Tables that deserve a document, best first; where none seems to, those that others reference."""
        able = [each for each in self.tables.values() if each.table.key and each.name not in self.links]
        able = [each for each in able if self.children(each)] or [
            each for each in able if any(child is not each for child, _ in self.incoming[each.name])
        ]
        wanted = [each for each in able if not self.is_lookup(each)] or able
        return sorted(wanted, key=lambda each: (*(-number for number in self.score(each)), each.name))


def _column(table: SilverTable, name: str) -> SilverColumn | None:
    return next((column for column in table.columns if column.name == name), None)


def left_out(column: SilverColumn) -> str:
    """Why a draft does not show a column; empty where it does."""
    if types.base(column.spark_type) == "BINARY":
        return "bytea"
    return "a secret by its name" if is_secret(column) else ""


def _required(table: SilverTable, key: ForeignKey) -> bool:
    """Whether every row has this foreign key."""
    return all(column.not_null for column in table.columns if column.name in key.columns)
