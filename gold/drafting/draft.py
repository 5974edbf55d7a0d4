"""Hold drafted documents as values: fields, joins, omissions. `gold.drafting.files` writes the values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from deltasmelt.gold.drafting.secrets import table_speaks_of_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from deltasmelt.bronze.identifiers import TableName

ColumnPairs: TypeAlias = tuple[tuple[str, str], ...]
Omitted: TypeAlias = tuple[str, str]


@dataclass(slots=True)
class DraftField:
    """A field of a draft: a column, or a join; `note` is a comment for the file, or empty."""

    name: str
    column: str = ""
    join: Join | None = None
    note: str = ""


@dataclass(slots=True)
class Join:
    """Rows of another table.

    Attributes:
        verb: ``one`` or ``many``, as in the file.
        on: (column of the table, column of the parent); for a join through a link: (column of the link,
            column of the parent).
        to: (column of the link, column of the table).
        omitted, through_omitted: omitted columns of the table and of the link, each with the reason.
        counted: if too many rows are only counted: the name that an array of the rows would have.
    """

    verb: str
    table: TableName
    on: ColumnPairs
    through: TableName | None = None
    to: ColumnPairs = ()
    fields: list[DraftField] = field(default_factory=list)
    through_fields: list[DraftField] = field(default_factory=list)
    omitted: list[Omitted] = field(default_factory=list)
    through_omitted: list[Omitted] = field(default_factory=list)
    counted: str = ""

    @property
    def speaks_of_secrets(self) -> bool:
        """True if the rows, or those of the link, are secrets by their table's name."""
        return any(table_speaks_of_secrets(table.name) for table in (self.table, self.through) if table)


@dataclass(slots=True)
class Draft:
    """A document to write.

    Attributes:
        omitted: omitted columns of the root, each with the reason.
        not_followed: joins beyond the limit, as text.
        unfollowed: foreign keys that no document can follow, each with the reason.
        deleted_at: the column that looks like a mark of deletion.
    """

    name: str
    root: TableName
    fields: list[DraftField]
    omitted: list[Omitted] = field(default_factory=list)
    not_followed: list[str] = field(default_factory=list)
    unfollowed: list[str] = field(default_factory=list)
    deleted_at: str | None = None

    @property
    def joins(self) -> list[DraftField]:
        """The fields with rows of further tables."""
        return [entry for entry in self.fields if entry.join is not None]

    @property
    def depth(self) -> int:
        """Number of joins on the longest join path."""
        return _depth(self.fields)

    @property
    def tables(self) -> set[TableName]:
        """Every table that the draft reads."""
        return {self.root, *_tables(self.fields)}


@dataclass(frozen=True, slots=True)
class UndraftedTable:
    """A table without a document; `inside` names documents that nevertheless read the table."""

    table: TableName
    reason: str
    inside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Proposal:
    """All drafts, best first, and the tables without a document."""

    drafts: tuple[Draft, ...]
    left_out: tuple[UndraftedTable, ...]


def filled(fields: list[DraftField], omitted: list[Omitted]) -> list[DraftField]:
    """Return fields without empty joins: drop a child without columns except the join columns."""
    complete = []
    for entry in fields:
        join = entry.join
        if join is not None:
            join.fields[:] = filled(join.fields, join.omitted)
            if not join.fields and not join.counted:
                names = ", ".join(name for name, _ in (*join.omitted, *join.through_omitted))
                # The child has further columns, and all are omitted: the parent's omissions list the child.
                if names:
                    omitted.append((f"{entry.name} ({join.table})", f"its only columns are: {names}"))
                continue
        complete.append(entry)
    return complete


def _depth(fields: Iterable[DraftField]) -> int:
    return max((1 + _depth(entry.join.fields) for entry in fields if entry.join is not None), default=0)


def _tables(fields: Iterable[DraftField]) -> Iterator[TableName]:
    for entry in fields:
        if entry.join is not None:
            yield entry.join.table
            if entry.join.through is not None:
                yield entry.join.through
            yield from _tables(entry.join.fields)
