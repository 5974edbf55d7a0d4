"""The copy of one table, as far as it has come, and what became of all copies of a snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltasmelt.bronze.lsn import ZERO, Lsn

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalake.transaction import AddAction

    from deltasmelt.bronze.drift.storage import Storage
    from deltasmelt.bronze.errors import TableError, TransientError
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.snapshot.chunks import Chunk


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


def _nobody(_: TableError) -> None:
    """Nobody listens."""


@dataclass(slots=True)
class Outcome:
    """What became of a snapshot.

    Attributes:
        lsn: greatest S of the tables taken; ZERO where none could be.
        trace: LSN of the newest trace in the log, which the stream has passed once it was sent.
        taken: tables that are complete in bronze now.
        failed: definite errors, one for each table that could not be taken.
        interrupted: what ended the copy of some table for the first time, and may heal.
        tell: is told each of these at once: the rest may take hours.
    """

    lsn: Lsn = ZERO
    trace: Lsn = ZERO
    taken: list[TableName] = field(default_factory=list)
    failed: list[TableError] = field(default_factory=list)
    interrupted: TransientError | None = None
    tell: Callable[[TableError], object] = _nobody

    def fail(self, error: TableError) -> None:
        """A table cannot be taken."""
        self.failed.append(error)
        self.tell(error)
