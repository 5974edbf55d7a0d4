"""Analyse foreign keys between tables: links, lookups, and tables that deserve a document. Pure.

A table deserves a document if rows of other tables belong to its rows: orders to a customer, items to an
order. A *link* table, with two foreign keys and few further columns, deserves none, nor does a *lookup*. The
catalog gives hints, not proofs. So the choice is a ranking, and gold reports each table without a document,
with the reason.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.gold.drafting.secrets import is_secret, table_speaks_of_secrets
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
_SEVERAL: Final = 1.5
"""Average number of rows per parent from which rows belong to the parent: a customer's orders. With fewer,
the parent is rather a property of the row: a customer's address."""


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key of a table.

    Attributes:
        target: the referenced table, with the columns `referenced` in the order of `columns`.
        owning: PostgreSQL deletes rows with the row that they reference (ON DELETE CASCADE).
    """

    columns: tuple[str, ...]
    target: TableName
    referenced: tuple[str, ...]
    owning: bool = False


@dataclass(frozen=True, slots=True)
class Described:
    """A table with properties beyond its columns.

    `unique` has the columns of each unique index, including the primary key; `rows` is approximate, 0 if
    unknown.
    """

    table: SilverTable
    foreign_keys: tuple[ForeignKey, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    rows: int = 0

    @property
    def name(self) -> TableName:
        """The name of the table."""
        return self.table.table


@dataclass(frozen=True, slots=True)
class Unfollowed:
    """A foreign key that documents cannot follow.

    `ends` are the table with the foreign key and the referenced table, `why` is the message of `smelt check`
    for the join.
    """

    ends: tuple[TableName, TableName]
    columns: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        """Return the foreign key and the reason, on one line."""
        return f"{self.ends[0]} ({', '.join(self.columns)}) -> {self.ends[1]}: {self.why}"


class Schema:
    """Tables by name, the foreign keys that documents can join by, from both ends, and the link tables.

    Attributes:
        unfollowed: foreign keys between carried tables that `smelt check` would refuse in a join.
    """

    def __init__(self, tables: Iterable[Described]) -> None:
        self.tables = {table.name: table for table in sorted(tables, key=lambda table: table.name)}
        self.keys: dict[TableName, list[ForeignKey]] = {}
        self.incoming: dict[TableName, list[tuple[Described, ForeignKey]]] = {
            name: [] for name in self.tables
        }
        self.unfollowed: list[Unfollowed] = []
        for name, described in self.tables.items():
            self.keys[name] = [
                key for key in dict.fromkeys(described.foreign_keys) if self._joins(described, key)
            ]
            for key in self.keys[name]:
                self.incoming[key.target].append((described, key))
        self.links = {name for name, table in self.tables.items() if self._is_link(table)}

    def _joins(self, child: Described, key: ForeignKey) -> bool:
        """Check whether the pipeline carries both tables, in types that documents can join by."""
        parent = self.tables.get(key.target)
        if parent is None:
            return False
        ends = [
            (_column(child.table, mine), _column(parent.table, theirs))
            for mine, theirs in zip(key.columns, key.referenced, strict=True)
        ]
        columns = [(mine, theirs) for mine, theirs in ends if mine is not None and theirs is not None]
        objections = (unjoined((child.name, mine), (parent.name, theirs)) for mine, theirs in columns)
        objection = next(filter(None, objections), None)
        if objection is not None:
            self.unfollowed.append(Unfollowed((child.name, parent.name), key.columns, objection))
        return objection is None and len(columns) == len(ends)

    def _is_link(self, table: Described) -> bool:
        """Check whether a table has two foreign keys and few further columns."""
        keys = self.keys[table.name]
        if len(keys) != 2 or self.incoming[table.name] or set(keys[0].columns) == set(keys[1].columns):
            return False
        columns = {*keys[0].columns, *keys[1].columns}
        filled = {column.name for column in table.table.columns if column.not_null}
        # The two foreign keys are the table's key, a unique index, or all columns that are never NULL.
        if columns not in (set(table.table.key), filled, *map(set, table.unique)):
            return False
        return sum(not left_out(column) for column in self.link_columns(table)) <= _LINK_COLUMNS

    def leading(self, link: Described) -> ForeignKey:
        """Return the side that owns a link, as named first by the link's key ``(order_id, product_id)``."""
        first, second = self.keys[link.name]
        ends = {*first.columns, *second.columns}
        orders = [columns for columns in (link.table.key, *link.unique) if set(columns) == ends]
        # If neither key nor unique index of the link consists of the two ends, the link's first column
        # decides.
        order = [*(orders[0] if orders else ()), *(column.name for column in link.table.columns)]
        distinct = next(name for name in order if (name in first.columns) != (name in second.columns))
        return first if distinct in first.columns else second

    def link_columns(self, link: Described) -> list[SilverColumn]:
        """Return the columns of a link except the ends and a surrogate key."""
        ends = {column for key in self.keys[link.name] for column in key.columns}
        return [
            column
            for column in link.table.columns
            if column.name not in ends and column.name not in link.table.key
        ]

    def is_lookup(self, table: Described) -> bool:
        """Check whether a table, like countries, is small and only referenced, and owns nothing."""
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
        """Return how much depends on a table: the children, with more points if owned or with children.

        Children that are hardly more than the table's rows count half, unless they are owned.
        """
        points = 0
        for child, key in self.children(table):
            deep = any(referrer is not child for referrer, _ in self.incoming[child.name])
            worth = 1 + _required(child.table, key) + 2 * key.owning + deep
            sparse = 0 < child.rows < _SEVERAL * table.rows and not key.owning
            points += worth // 2 if sparse else worth
        return points, table.rows

    def children(self, table: Described) -> list[tuple[Described, ForeignKey]]:
        """Return tables whose rows belong to rows of a table."""
        times = Counter(child.name for child, _ in self.incoming[table.name])
        return [
            (child, key)
            for child, key in self.incoming[table.name]
            if child is not table
            and not table_speaks_of_secrets(child.name.name)
            # A table with several references, as to a billing and a shipping address, only uses the
            # referenced rows.
            and times[child.name] == 1
            # A link belongs to only one side.
            and (child.name not in self.links or key is self.leading(child))
        ]

    def roots(self) -> list[Described]:
        """Return tables that deserve a document, best first; without any, the referenced tables."""
        able = [
            table
            for name, table in self.tables.items()
            if table.table.key and name not in self.links and not table_speaks_of_secrets(name.name)
        ]
        able = [table for table in able if self.children(table)] or [
            table for table in able if any(child is not table for child, _ in self.incoming[table.name])
        ]
        candidates = [table for table in able if not self.is_lookup(table)] or able
        return sorted(candidates, key=lambda table: (*(-number for number in self.score(table)), table.name))


def _column(table: SilverTable, name: str) -> SilverColumn | None:
    return next((column for column in table.columns if column.name == name), None)


def left_out(column: SilverColumn) -> str:
    """Return why a draft does not show a column; empty if the draft does."""
    if types.base(column.spark_type) == "BINARY":
        return "bytea"
    return "a secret by its name" if is_secret(column) else ""


def _required(table: SilverTable, key: ForeignKey) -> bool:
    """Check whether every row has this foreign key."""
    return all(column.not_null for column in table.columns if column.name in key.columns)
