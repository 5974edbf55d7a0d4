"""A table of the source in the catalog: values that queries fill and rules judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltasmelt.bronze.catalog.keys import Identity, UniqueIndex
    from deltasmelt.bronze.catalog.publication import Member, Wanted
    from deltasmelt.bronze.comments import Comments
    from deltasmelt.bronze.drift.storage import Storage
    from deltasmelt.bronze.errors import TableError
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.shapes import Relation


@dataclass(frozen=True, slots=True)
class Partition:
    """A leaf partition."""

    oid: int
    table: TableName
    kind: str
    persistence: str
    row_security: bool
    identity: Identity
    # Whether our role has SELECT on the partition; `schema_usable`: USAGE on its schema. A copy reads each
    # leaf by its own name, and grants on the root do not extend to leaves.
    selectable: bool = True
    schema_usable: bool = True


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The catalog's facts about one selected table."""

    relation: Relation
    # our role, the role of the connection
    role: str
    # the role that owns the table; `owned`: whether our role may act as the owner
    owner: str
    owned: bool
    # whether the pipeline may change the publication
    manage: bool
    publication: str
    # whether our role has SELECT on the table; `schema_usable`: USAGE on its schema
    selectable: bool
    schema_usable: bool
    # whether row-level security policies apply to our role
    row_security: bool
    identity: Identity
    # ordinary columns that the publication's column list leaves out
    unpublished: tuple[str, ...]
    # the table's membership in the publication; None if not (yet) published
    member: Member | None
    partitions: tuple[Partition, ...]
    partitioned: bool = False
    # whether PostgreSQL refuses UPDATEs and DELETEs while a publication carries them
    refuses_updates: bool = False


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A selected table."""

    table: TableName
    # the present shape of the table; `from_lsn` is ZERO
    relation: Relation
    # pg_class.relkind: `r` table, `p` partitioned root
    kind: str
    # rows by the last ANALYZE; 0 without an ANALYZE
    rows_estimate: int = 0
    # bytes on disk, with out-of-line values, all partitions together
    bytes: int = 0
    # pages of the main fork, all partitions together
    pages: int = 0
    # all reasons why the table cannot be carried
    problems: tuple[TableError, ...] = ()
    # leaf partitions of a root, in name order
    partitions: tuple[TableName, ...] = ()
    # unique indexes of the table
    indexes: tuple[UniqueIndex, ...] = ()
    # the role that owns the table; `owned`: whether our role may act as the owner
    owner: str = ""
    owned: bool = True
    # ordinary columns that the publication's column list leaves out
    unpublished: tuple[str, ...] = ()
    # the membership that rules of the pipeline file demand; None without rules (`bronze.rules`)
    wanted: Wanted | None = None
    # patterns of `source.columns` that match no column
    unmatched: tuple[str, ...] = ()
    # replica identities that decide the contents of old rows: the table's, or each leaf partition's
    identities: tuple[Identity, ...] = ()
    # whether the publication makes UPDATEs and DELETEs of the table fail now
    blocked: bool = False
    # traces of changes that the log does not carry; None if not requested
    storage: Storage | None = None
    # comments of the table and its replicated columns; None if not requested or refused
    comments: Comments | None = None

    @property
    def problem(self) -> TableError | None:
        """The first problem; None for a table that can be carried."""
        return self.problems[0] if self.problems else None


@dataclass(frozen=True, slots=True)
class SkippedRelation:
    """A relation that a pattern matches, but not a separate table to carry."""

    table: TableName
    reason: str
