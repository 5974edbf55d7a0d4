"""One table of `control.*`: rows appended, altered and pruned by any process, read from memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from deltalake.exceptions import CommitFailedError

from bronze.lake import delta
from bronze.lake.compaction import COMPACT_ABOVE, compact, rewrite
from bronze.lake.retention import RETENTION, tidy

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalake import DeltaTable


_ATTEMPTS: Final = 10


class ControlTable:
    """One control table: its handle, and the rows of each of its files."""

    def __init__(self, uri: str, schema: pa.Schema, description: str) -> None:
        self._uri = uri
        self._schema = schema
        self._description = description
        self._lock = threading.RLock()
        self._handle: DeltaTable | None = None
        self._read_version = -1
        self._flushed = False
        self._files: dict[str, pa.Table] = {}

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Add rows, in one commit; the table is made where there is none."""
        with self._lock:
            table = self._open_or_create()
            delta.append(table, pa.Table.from_pylist(rows, schema=self._schema))
            if len(table.file_uris()) > COMPACT_ABOVE:
                compact(table, self._schema, many=COMPACT_ABOVE // 2)

    def update(self, change: Callable[[pa.Table], pa.Table]) -> None:
        """Write files again of which the rows change.

        Args:
            change: a file's rows as they are to be. Called again where another process came first.
        """
        with self._lock:
            table = self._open_or_create()
            for _ in range(_ATTEMPTS):
                self.rows()
                changed = {path: change(rows) for path, rows in self._files.items()}
                changed = {path: rows for path, rows in changed.items() if rows != self._files[path]}
                if not changed or rewrite(table, changed, self._schema, as_of=self._read_version):
                    return
            raise CommitFailedError(f"{self._uri}: other processes rewrite it all the time")

    def prune(self, change: Callable[[pa.Table], pa.Table]) -> None:
        """Remove rows file by file, each by a commit of its own, and keep none in memory.

        Args:
            change: a file's rows without those that go. A file that another process rewrites meanwhile is
                left for the next time.
        """
        with self._lock:
            table = self._open_or_create()
            delta.refresh(table)
            for path in delta.paths_of(table):
                version = delta.refresh(table)
                if path not in delta.paths_of(table):
                    continue
                rows = delta.read_file(table, path).cast(self._schema)
                kept = change(rows)
                if kept.num_rows < rows.num_rows:
                    rewrite(table, {path: kept}, self._schema, as_of=version)

    def tidy(self) -> None:
        """Remove log entries and files that nobody needs."""
        with self._lock:
            table = delta.open_table(self._uri)
            if table is not None:
                tidy(table)

    def rows(self) -> pa.Table:
        """All rows of the newest version; files that were read before are not read again."""
        with self._lock:
            if self._handle is None:
                self._handle = delta.open_table(self._uri)
            if self._handle is None:
                return self._schema.empty_table()
            delta.refresh(self._handle)
            if self._handle.version() != self._read_version:
                self._read(self._handle)
            return pa.concat_tables([self._schema.empty_table(), *self._files.values()])

    def read(self, columns: list[str]) -> pa.Table:
        """Some columns of all rows, read now and not kept."""
        with self._lock:
            table = delta.open_table(self._uri)
            parts = [] if table is None else [
                delta.read_file(table, path, columns) for path in delta.paths_of(table)
            ]  # fmt: skip
        schema = pa.schema([self._schema.field(name) for name in columns])
        return pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in parts)])

    def _read(self, table: DeltaTable) -> None:
        version = table.version()
        self._files = {
            path: self._files.get(path) or delta.read_file(table, path).cast(self._schema)
            for path in delta.paths_of(table)
        }
        self._read_version = version

    def _open_or_create(self) -> DeltaTable:
        """The table, to be written: what its log says is on disk, also what a killed process wrote."""
        if self._handle is None or not self._flushed:
            self._handle = delta.open_or_create(
                self._uri,
                self._schema,
                description=self._description,
                properties={
                    "delta.checkpointInterval": str(delta.checkpoint_interval(self._uri)),
                    **RETENTION,
                },
            )
            self._flushed = True
        return self._handle
