"""A table of the source, as the catalog describes it: values that queries fill and rules judge."""

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
        selectable: we have SELECT on it; `schema_usable`: USAGE on its schema. A copy reads each leaf by its
            own name, to which grants on the root do not reach.
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
    """What the catalog says of one selected table.

    Attributes:
        role: the role we are connected as.
        owner: the role that owns the table; `owned`: we may act as that role.
        manage: the pipeline may change the publication.
        publication: its name.
        selectable: we have SELECT on it; `schema_usable`: USAGE on its schema.
        row_security: policies apply to our role.
        unpublished: ordinary columns that the publication's column list leaves out.
        member: how the publication carries it; None where it does not (yet).
        partitioned: it is a root of partitions.
        refuses_updates: PostgreSQL refuses its UPDATEs and DELETEs while a publication carries them.
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
        relation: its shape now; `from_lsn` is ZERO.
        kind: pg_class.relkind: ``r`` table, ``p`` root of partitions.
        rows_estimate: from the last ANALYZE; 0 where there was none.
        bytes: on disk, with out-of-line values, all partitions together.
        pages: of the main fork, all partitions together.
        problems: everything that keeps it from being taken.
        partitions: leaf partitions of a root, in name order.
        indexes: its unique indexes.
        owner: role that owns it; `owned` tells whether we may act as that role.
        unpublished: ordinary columns that the publication's column list leaves out.
        blocked: the publication makes its UPDATEs and DELETEs fail now.
        storage: traces of what the log does not tell; None where nobody asked for them.
        comments: of the table and the columns that are read; None likewise, or where PostgreSQL refuses them.
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
        """The first problem; None where the table can be taken."""
        return self.problems[0] if self.problems else None


@dataclass(frozen=True, slots=True)
class SkippedRelation:
    """What a pattern matches, but is not a table to carry by itself."""

    table: TableName
    reason: str
