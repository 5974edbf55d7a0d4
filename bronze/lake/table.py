"""Every question and every write that a caller may direct at a Delta table, wherever the table lies.

`Table` has three implementations: `bronze.lake.folder_table`, `bronze.lake.store_table`, and
`bronze.lake.catalog.table`. `bronze.lake.delta` alone chooses an implementation, when opening a table.

**Order.** Every commit of bronze has three steps: files on disk, `commit`, `settle`. Only after `settle` may
a process act on the commit (`bronze.lake.folder_table`).

**Failed calls.** After a failed call, whether the commit succeeded is unknown. The caller keeps the files
that the commit names, and reads the table before any retry. Only a rejection (`CommitFailedError`) proves
that the commit did not happen.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from deltasmelt.bronze.backoff import tried_again
from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.lake.client import CommitFailedError
from deltasmelt.bronze.lake.parquet import PartWriter, delete_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import deltalake

    from deltasmelt.bronze.lake.client import AddAction, RemoveAction, Transaction
    from deltasmelt.bronze.lake.foreign_commits import Commit
    from deltasmelt.bronze.lake.tail import Tail

# Rows by the path of a file.
Rows: TypeAlias = "Mapping[str, pa.Table]"
Actions: TypeAlias = "Sequence[AddAction | RemoveAction]"
# Appends never conflict in Delta. Only the number of the log entry can collide, or a concurrent update of
# another process can conflict; the commit is then retried on the newer version.
retry_conflict: Final = tried_again(CommitFailedError, attempts=10, first=0.02, longest=1.0)


@dataclass(frozen=True, slots=True)
class Metadata:
    """A table's metadata, as `deltalake.DeltaTable.metadata`; times in milliseconds since 1970."""

    configuration: dict[str, str]
    description: str | None
    id: str
    created_time: int | None


@dataclass(frozen=True, slots=True)
class Columns:
    """A table's columns: as Delta's JSON, and as Arrow (for ``pyarrow.schema``)."""

    text: str
    arrow: pa.Schema

    @property
    def fields(self) -> list[pa.Field]:
        """The columns; callers use only the names."""
        return list(self.arrow)

    def to_json(self) -> str:
        """Return the columns as Delta writes them into the log."""
        return self.text

    def __arrow_c_schema__(self) -> Any:
        """Return the schema through Arrow's interface between libraries."""
        return self.arrow.__arrow_c_schema__()


class Table:
    """A table at a version; only one thread at a time uses an object.

    Every method raises `DeltaError` or `OSError` if the table cannot be read or written.
    """

    # whether this process sees the files and log entries; Spark alone sees a catalog's
    shows_files: ClassVar[bool] = True

    @abstractmethod
    def __init__(self, uri: str, version: int | None = None) -> None:
        """Open the table at a version, or at the newest version.

        Raises:
            TableNotFoundError: the table is absent.
            DeltaError, OSError: the table cannot be read, or the version is missing.
        """

    @classmethod
    @abstractmethod
    def make(cls, uri: str, schema: pa.Schema, description: str, properties: Mapping[str, str]) -> None:
        """Create a table, unless another process creates the table at the same moment."""

    @classmethod
    @abstractmethod
    def overwrite(cls, uri: str, rows: pa.Table) -> None:
        """Replace all rows of a table; create an absent table."""

    @property
    @abstractmethod
    def table_uri(self) -> str:
        """Location of the table, as from `Lake.uri`."""

    @abstractmethod
    def version(self) -> int:
        """Return the version at which the table is open."""

    @abstractmethod
    def update_incremental(self) -> None:
        """Move the handle to the newest version; callers use `refresh`."""

    @abstractmethod
    def metadata(self) -> Metadata | deltalake.Metadata:
        """Return the table's properties and description."""

    @abstractmethod
    def schema(self) -> Columns | deltalake.Schema:
        """Return the columns at this version."""

    @abstractmethod
    def transaction_version(self, app_id: str) -> int | None:
        """Return the mark of an application id at this version; None without a mark."""

    @abstractmethod
    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the newest commits that the log still has, newest first, each with its ``version``."""

    def entry(self, version: int) -> bytes | None:  # noqa: ARG002 - logs have entries
        """Return the log entry of a version; None without the entry, and always in a catalog."""
        return None

    @abstractmethod
    def commits(self, limit: int) -> Callable[[int], Commit | None]:
        """Return a function that returns a version's commit; None for a version that the log no longer has.

        The caller requests at most `limit` newest commits.
        """

    @abstractmethod
    def committed_at(self, version: int) -> float | None:
        """Return the commit time of a version in seconds since 1970; None if the log lacks the commit."""

    @abstractmethod
    def get_add_actions(self, *, flatten: bool = False) -> Any:
        """Return the files of this version for ``pyarrow.table``: path, size and statistics."""

    def is_plain(self, features: Collection[str] | None = None) -> bool:  # noqa: ARG002 - logs show features
        """Check whether the files alone show the rows: no partitions, and only known features for readers.

        `features` are those that the caller supports; None: even the oldest reader can read the table.
        """
        return False

    @abstractmethod
    def file_uris(self) -> list[str]:
        """Return a name for each file of this version."""

    @abstractmethod
    def row_count(self) -> int | None:
        """Return the number of rows of this version, without deleted rows; None without statistics."""

    def rows_after(self, column: str, value: int) -> tuple[int, int] | None:  # noqa: ARG002 - catalogs count
        """Return rows and bytes with a larger value of a column; None if the files' statistics answer."""
        return None

    @abstractmethod
    def batches(
        self, columns: list[str], *, after: tuple[str, int] | None = None, ending: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield some columns of all rows of this version in batches; read a catalog's table at once.

        Args:
            after: a column, and a lower bound of its values; statistics let Arrow skip files below the bound.
            ending: boolean column; the method yields only rows with true.
        """

    def require_ours(self, proof: str) -> None:
        """Reject a catalog's table without a property that only the pipeline's own CREATE sets.

        Raises:
            DefiniteError: ``catalog-name-taken``: the table is foreign.
        """

    def refresh(self, *, after: int = -1) -> int:
        """Move to the newest version and return this version.

        Args:
            after: version after which the caller committed, so a newer version must exist.

        Raises:
            OSError: the store does not show the newer version.
        """
        perform(Effect.REFRESH, self.table_uri, self.update_incremental)
        version = self.version()
        # The caller cannot flush an invisible commit, and must not build upon such a commit.
        if version <= after:
            raise OSError(
                f"the store shows version {version} as the newest, although a later one was written"
            )
        return version

    def identity(self) -> tuple[int, ...] | None:
        """Return values of a local log that differ in another history with as many versions; else None.

        An empty result means that the log is missing or was exchanged (`has_identity`). A handle of a removed
        or restored table raises no error, and stays at its version.
        """
        return None

    def has_identity(self, known: tuple[int, ...] | None) -> bool:
        """Check whether the log is the log of an earlier `identity`; false for a missing or exchanged log."""
        identity = self.identity()
        return identity != () and identity == known

    def may_have_moved(self) -> bool:
        """Check whether a newer version may exist; a store answers by one request."""
        return True

    @classmethod
    def may_exist(cls, uri: str) -> bool:  # noqa: ARG003 - a store answers
        """Check whether a table may exist that did not exist a moment ago; a store answers by one request."""
        return True

    def has_lost(self, version: int) -> bool | None:  # noqa: ARG002 - a store answers
        """Check by one request whether a store has lost the entry of a version that this process has read.

        The result is None if only a poll of the newest version shows a loss, as in a catalog. In a folder
        `has_identity` has shown the loss.
        """
        return False

    def tail(self, column: Callable[[], str | None] = lambda: None) -> Tail | None:  # noqa: ARG002
        """Return the state from which a store's log is followed (`Tail`); None elsewhere."""
        return None

    def paths(self) -> list[str]:
        """Return the paths of the files of this version, relative to the table."""
        return [str(path) for path in pa.table(self.get_add_actions())["path"].to_pylist()]

    def read_file(self, path: str, columns: list[str] | None = None) -> pa.Table:
        """Return the rows of a file; only this pipeline writes the table, so no deletion vectors exist."""
        return perform(Effect.READ_FILE, f"{self.table_uri}/{path}", lambda: self._read(path, columns))

    @abstractmethod
    def _read(self, path: str, columns: list[str] | None) -> pa.Table: ...

    def commit(self, actions: Actions, schema: pa.Schema, marks: Sequence[Transaction] = ()) -> None:
        """Write one commit; the handle stays at its version, and `settle` must still flush the commit.

        Raises:
            CommitFailedError: the commit was rejected, for instance because one of the marks' ids was written
                since the handle's version.
        """
        perform(Effect.COMMIT, self.table_uri, lambda: self._write(actions, schema, marks))

    @abstractmethod
    def _write(self, actions: Actions, schema: pa.Schema, marks: Sequence[Transaction]) -> None: ...

    def flush(self, after: int, version: int) -> None:
        """Wait until the log entries after one version, up to another version, are on disk."""

    def flush_log(self) -> None:
        """Wait until the log up to this version is on disk, whichever process wrote the entries."""

    def settle(self, before: int) -> None:
        """Refresh after a commit, flush all entries since `before`, and make a checkpoint if due."""
        # Several entries: another process may have committed at almost the same moment.
        self.flush(before, self.refresh(after=before))
        self.checkpoint_if_due(before)

    def checkpoint(self) -> None:
        """Make a checkpoint at this version, or at a newer version; nothing in a catalog."""

    def checkpoint_if_due(self, before: int) -> None:
        """Make a checkpoint if this version and an earlier version lie in different intervals."""

    def state_marks(self) -> None:
        """Restate the marks of a catalog's table if the newest commits do not contain all marks."""

    def append(self, rows: pa.Table, *, widen: bool = False) -> None:
        """Append rows durably to the newest version in one commit; the handle is then at the new version.

        With `widen`, a table of an earlier release gets the fields of the rows that the table lacks.
        """
        if widen:
            self.refresh()
            if pa.schema(self.schema()) != rows.schema:
                self._widen(rows.schema)
        writer = PartWriter(self.table_uri, "part", schema=rows.schema)
        writer.write(rows)
        self.append_files(writer.finish())

    def append_files(self, parts: Sequence[AddAction]) -> None:
        """Append existing files durably to the newest version in one commit."""
        try:
            before = self._append(parts)
        except CommitFailedError:  # rejected for good: no commit will name the files
            delete_files(self.table_uri, [part.path for part in parts])
            raise
        self.settle(before)

    @retry_conflict
    def _append(self, parts: Sequence[AddAction]) -> int:
        before = self.refresh()
        self.commit(parts, pa.schema(self.schema()))
        return before

    def put_after(self, actions: Sequence[AddAction], tail: Tail, *, looks: bool) -> bool:  # noqa: ARG002
        """Write the log entry after a tail directly (`bronze.lake.entries.put_next`), and follow the entry.

        The handle stays behind. The result is False if nothing was written.
        """
        return False

    def widen(self, schema: pa.Schema) -> None:
        """Add the fields of a schema that a table of an earlier release lacks."""
        known = {field.name for field in pa.schema(self.schema())}
        if not known.issuperset(schema.names):
            self._widen(schema)

    @retry_conflict
    def _widen(self, schema: pa.Schema) -> None:
        before = self.refresh()
        perform(Effect.COMMIT, self.table_uri, lambda: self._add_columns(schema))
        self.settle(before)

    @abstractmethod
    def _add_columns(self, schema: pa.Schema) -> None: ...

    def amend(self, changed: Rows, before: Rows) -> bool | None:  # noqa: ARG002 - catalogs amend
        """Change rows in place, as `bronze.lake.compaction.rewrite`; None if files must be rewritten."""
        return None

    def permit_removals(self, properties: Mapping[str, str]) -> None:
        """Make a table that permits only appends permit removals, with properties; durable on return."""

    def removed_files(self) -> list[str]:
        """Return existing files that the log names as removed."""
        return []

    def tidy(self, *, retention_hours: int | None = None) -> None:
        """Remove log entries and joined files past their retention (`bronze.lake.compaction`).

        The handle must be at the newest version; afterwards the log may have newer versions.
        `retention_hours` of joined files replaces the table's property.
        """


def sorted_by(
    rows: pa.Table, column: str, order: Literal["ascending", "descending"] = "ascending"
) -> pa.Table:
    """Return rows sorted by a column."""
    # Arrow's own `Table.sort_by` would load its query engine, which costs 30 MiB.
    return rows.take(pc.sort_indices(rows, sort_keys=[(column, order)]))
