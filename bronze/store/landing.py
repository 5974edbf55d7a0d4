"""What the stream and the snapshots share on the lake's side."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 - read at run time by dataclass
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from bronze.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from deltalake.transaction import AddAction

    from bronze.drift.storage import Storage
    from bronze.identifiers import TableName
    from bronze.lake.parquet import PartWriter
    from bronze.lsn import Lsn
    from bronze.shapes import Relation
    from bronze.store.position import Position
    from bronze.store.relations import ShapeLog


class ChangeSink(Protocol):
    """What the reader needs of the lake. One reader owns it; snapshots may commit from other threads."""

    @property
    def position(self) -> Position | None:
        """The place of the stream; None before the first commit."""

    def relations(self) -> list[Relation]:
        """All versions of shapes known to the lake, by relation and LSN."""

    def needing_copy(self, tables: Sequence[TableName]) -> set[TableName]:
        """Those of these tables without a complete snapshot, or of which a newer one was asked for."""

    def retakes(self, tables: Sequence[TableName]) -> dict[TableName, Lsn]:
        """Retake marks of these tables, those that have one."""

    def snapshots(self, tables: Sequence[TableName]) -> dict[TableName, Lsn]:
        """LSN of the newest complete snapshot of these tables, those that have one."""

    def storage_of(self, table: TableName) -> Storage | None:
        """What the catalog said of a table's storage at its copy (`bronze.store.storage_log`)."""

    def record_storage(self, seen: dict[TableName, Storage]) -> None:
        """Make durable what the catalog says of tables' storage, before the rows that were copied then."""

    def open_gaps(self, tables: Sequence[TableName], lsn: Lsn, *, beyond: bool = False) -> None:
        """Say that tables lack changes up to an LSN, and ask for them (`bronze.store.gaps`)."""

    def note_membership(
        self, seen: Mapping[TableName, int], left_out: Sequence[TableName], lsn: Lsn
    ) -> list[TableName]:
        """Remember how tables are carried; ask for those with a gap since (`bronze.store.gaps`)."""

    def add_relations(self, relations: Sequence[Relation]) -> None:
        """Make shapes durable, before any row that needs them."""

    def write(self, rows: pa.Table) -> None:
        """Take rows of `bronze.changes` in order; they become visible with `commit`."""

    def commit(self, position: Position) -> Position:
        """Make everything written visible and durable together with the place.

        Returns it with its version.
        """

    def discard(self) -> None:
        """Forget what was written since the last commit; after a failure the sink can be written again."""

    def claim(self) -> None:
        """Become the lake's only reader, and remove what earlier ones left half-done."""

    def parts(self, prefix: str) -> PartWriter:
        """A writer of files apart from the stream's, for a snapshot."""

    def commit_snapshot(self, table: TableName, lsn: Lsn, parts: Sequence[AddAction]) -> None:
        """Make a complete snapshot of one table visible and durable, with its mark."""

    def remove(self, parts: Sequence[AddAction]) -> None:
        """Remove files that no commit will name, as far as the lake lets us."""


def _nowhere(_: str) -> None:
    """No one asked to be told."""


@dataclass(frozen=True, slots=True)
class Landing:
    """Where rows land, on whatever way they come.

    Attributes:
        sink: makes them durable.
        shapes: makes the shapes durable that they have.
        progress: counts them.
        reached: is told named points on the way; fault tests kill the process there.
        takes_again: tables are copied by themselves where the stream alone cannot tell their rows.
    """

    sink: ChangeSink
    shapes: ShapeLog
    progress: Progress = field(default_factory=Progress)
    reached: Callable[[str], None] = _nowhere
    takes_again: bool = True
