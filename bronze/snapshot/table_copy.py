"""Hold the progress of one table's copy, and the outcome of all copies of a snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltasmelt.bronze.lsn import ZERO, Lsn

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltasmelt.bronze.drift.storage import Storage
    from deltasmelt.bronze.errors import TableError, TransientError
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.client import AddAction
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.snapshot.chunks import Chunk


@dataclass(slots=True)
class TableCopy:
    """A table during its copy."""

    # shape of the table; `from_lsn` is the snapshot's LSN
    relation: Relation
    chunks: list[Chunk]
    # the table's storage in the catalog before the lock
    storage: Storage | None = None
    # SQL condition on the rows; empty: all rows
    condition: str = ""
    finished: int = 0
    parts: list[AddAction] = field(default_factory=list)
    # definite error that fails the copy
    error: TableError | None = None
    # transient error that ended the copy this time
    interrupted: TransientError | None = None
    # whether the table is committed
    done: bool = False

    @property
    def table(self) -> TableName:
        """Name of the table."""
        return self.relation.table

    @property
    def is_over(self) -> bool:
        """Whether the table needs no further copying in this round."""
        return self.error is not None or self.interrupted is not None

    def take_parts(self) -> list[AddAction]:
        """Return and forget the files so far; the caller commits or removes the files."""
        parts, self.parts = self.parts, []
        return parts


def _nobody(_: TableError) -> None:
    """Ignore the error of a table."""


@dataclass(slots=True)
class Outcome:
    """The outcome of a snapshot."""

    # greatest S of the taken tables; ZERO if no group got a snapshot
    lsn: Lsn = ZERO
    # LSN of the newest trace in the log; the stream passes it once the server has sent the trace
    trace: Lsn = ZERO
    # tables that are complete in bronze now
    copied: list[TableName] = field(default_factory=list)
    # definite errors, one for each failed table
    failed: list[TableError] = field(default_factory=list)
    # first transient error that ended a table's copy
    interrupted: TransientError | None = None
    # called at once with each error of `failed`, because the other copies may take hours
    report: Callable[[TableError], object] = _nobody

    def fail(self, error: TableError) -> None:
        """Record the error of a table that cannot be copied."""
        self.failed.append(error)
        self.report(error)
