"""A table of the source in the catalog: values that queries fill and rules judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltasmelt.bronze.catalog.keys import Identity, UniqueIndex
    from deltasmelt.bronze.catalog.publication import Member
    from deltasmelt.bronze.comments import Comments
    from deltasmelt.bronze.drift.storage import Storage
    from deltasmelt.bronze.errors import TableError
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.shapes import Relation


@dataclass(frozen=True, slots=True)
class Partition:
    """A leaf partition.

    Attributes:
        selectable: whether our role has SELECT on the partition; `schema_usable`: USAGE on its schema. A copy
            reads each leaf by its own name, and grants on the root do not extend to leaves.
    """

    oid: int
    table: TableName
    kind: str
    persistence: str
    row_security: bool
    identity: Identity
    selectable: bool = True
    schema_usable: bool = True


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The catalog's facts about one selected table.

    Attributes:
        role: our role, the role of the connection.
        owner: the role that owns the table; `owned`: whether our role may act as the owner.
        manage: whether the pipeline may change the publication.
        publication: the name of the publication.
        selectable: whether our role has SELECT on the table; `schema_usable`: USAGE on its schema.
        row_security: whether row-level security policies apply to our role.
        unpublished: ordinary columns that the publication's column list leaves out.
        member: the table's membership in the publication; None if not (yet) published.
        partitioned: whether the table is a partitioned root.
        refuses_updates: whether PostgreSQL refuses UPDATEs and DELETEs while a publication carries them.
    """

    relation: Relation
    role: str
    owner: str
    owned: bool
    manage: bool
    publication: str
    selectable: bool
    schema_usable: bool
    row_security: bool
    identity: Identity
    unpublished: tuple[str, ...]
    member: Member | None
    partitions: tuple[Partition, ...]
    partitioned: bool = False
    refuses_updates: bool = False


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A selected table.

    Attributes:
        relation: the present shape of the table; `from_lsn` is ZERO.
        kind: pg_class.relkind: ``r`` table, ``p`` partitioned root.
        rows_estimate: rows by the last ANALYZE; 0 without an ANALYZE.
        bytes: bytes on disk, with out-of-line values, all partitions together.
        pages: pages of the main fork, all partitions together.
        problems: all reasons why the table cannot be carried.
        partitions: leaf partitions of a root, in name order.
        indexes: unique indexes of the table.
        owner: the role that owns the table; `owned`: whether our role may act as the owner.
        unpublished: ordinary columns that the publication's column list leaves out.
        blocked: whether the publication makes UPDATEs and DELETEs of the table fail now.
        storage: traces of changes that the log does not carry; None if not requested.
        comments: comments of the table and its replicated columns; None if not requested or refused.
    """

    table: TableName
    relation: Relation
    kind: str
    rows_estimate: int = 0
    bytes: int = 0
    pages: int = 0
    problems: tuple[TableError, ...] = ()
    partitions: tuple[TableName, ...] = ()
    indexes: tuple[UniqueIndex, ...] = ()
    owner: str = ""
    owned: bool = True
    unpublished: tuple[str, ...] = ()
    blocked: bool = False
    storage: Storage | None = None
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
