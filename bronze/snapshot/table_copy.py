"""The copy of one table, as far as it has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltalake.transaction import AddAction

    from bronze.drift.storage import Storage
    from bronze.errors import TableError, TransientError
    from bronze.identifiers import TableName
    from bronze.shapes import Relation
    from bronze.snapshot.chunks import Chunk


@dataclass(slots=True)
class TableCopy:
    """One table while it is copied.

    Attributes:
        relation: its shape; `from_lsn` is the snapshot's LSN.
        chunks: all of them.
        condition: SQL that its rows must meet; empty: all.
        storage: what the catalog said of the table before it was locked.
        finished: how many are written.
        parts: files written so far.
        error: why it cannot be taken.
        interrupted: what ended its copy this time, and heals by itself.
        done: it is committed.
    """

    relation: Relation
    chunks: list[Chunk]
    storage: Storage | None = None
    condition: str = ""
    finished: int = 0
    parts: list[AddAction] = field(default_factory=list)
    error: TableError | None = None
    interrupted: TransientError | None = None
    done: bool = False

    @property
    def table(self) -> TableName:
        """Its name."""
        return self.relation.table

    @property
    def is_over(self) -> bool:
        """Whether nothing more of it is to be copied in this round."""
        return self.error is not None or self.interrupted is not None

    def take_parts(self) -> list[AddAction]:
        """The files so far; the caller names or removes them."""
        parts, self.parts = self.parts, []
        return parts
