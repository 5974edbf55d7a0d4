"""One table of `control.*`: any process appends, changes and prunes rows; reads come from memory.

**Requests.** In a store an append costs two requests (file and entry), and a poll costs one. A process does
not read its own rows back. The entry is written only if the entry's number is free; if a concurrent process
was faster, `deltalake` commits after the concurrent entry.

**Stale handles.** The handle stays behind meanwhile, and the process follows the log
(`bronze.lake.cached_table`). The handle is refreshed for a checkpoint, for a rewrite, and from time to time.
The number of an entry becomes free again if cleaning removes the entry, or if the lake is removed or rolled
back under a running process. An entry is therefore written only after an existing entry
(`bronze.lake.entries`).
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.cached_table import SELDOM, CachedTable
from deltasmelt.bronze.lake.client import CommitFailedError
from deltasmelt.bronze.lake.compaction import COMPACT_ABOVE, compact, conform, remove_unnamed, rewrite
from deltasmelt.bronze.lake.parquet import PartWriter
from deltasmelt.bronze.lake.place import place_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.lake.tail import Tail

_ATTEMPTS: Final = 10
# Seconds after an own write during which the written entry counts as existing.
_JUST_PUT: Final = 2.0


class ControlTable:
    """A control table: the cached handle, and the rows of each file."""

    def __init__(self, uri: str, schema: pa.Schema, description: str) -> None:
        self._uri = uri
        self._schema = schema
        self._description = description
        self._lock = threading.RLock()
        self._cached = CachedTable(uri, follow=lambda table: table.tail())
        self._flushed: Table | None = None
        self._read_of: Table | None = None
        self._read_version = -1
        self._files: dict[str, pa.Table] = {}
        self._values: dict[str, frozenset[object]] = {}
        self._put_at = 0.0

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Append rows in one commit; create an absent table."""
        with self._lock:
            table = self._open_or_create()
            made = pa.Table.from_pylist(rows, schema=self._schema)
            if self._cached.tail is not None:
                self._put_next(table, self._cached.tail, made)
            else:
                table.append(made)
                self._cached.replace(table)
            if self._cached.file_count() > COMPACT_ABOVE:
                table = self._brought_up()
                compact(table, self._schema, many=COMPACT_ABOVE // 2)
                self._cached.replace(table)

    def _put_next(self, table: Table, tail: Tail, rows: pa.Table) -> None:
        """Write a file and its log entry directly; make a checkpoint if due."""
        writer = PartWriter(self._uri, "part", schema=self._schema)
        writer.write(rows)
        parts, version = writer.finish(), tail.version
        # A request checks the preceding entry, unless the process wrote this entry in the last seconds.
        looks = abs(time.time() - self._put_at) >= _JUST_PUT
        if not table.put_after(parts, tail, looks=looks):  # another process was faster, or a rollback
            self._flushed = None
            table = self._open_or_create()
            table.append_files(parts)
            self._cached.replace(table)
            return
        self._put_at = time.time()
        if self._read_of is table and self._read_version == version:
            self._read_version = tail.version
            self._files |= {parts[0].path: rows}
        if tail.version % place_of(self._uri).checkpoint_interval == 0:
            self._brought_up().checkpoint_if_due(version)

    def update(self, change: Callable[[pa.Table], pa.Table]) -> None:
        """Rewrite the files whose rows change; if another process was faster, apply `change` again."""
        with self._lock:
            self._open_or_create()
            for _ in range(_ATTEMPTS):
                table = self._brought_up()
                self.rows(look=False)
                changed = {path: change(rows) for path, rows in self._files.items()}
                changed = {path: rows for path, rows in changed.items() if rows != self._files[path]}
                if not changed or rewrite(
                    table, changed, self._schema, as_of=self._read_version, before=self._files
                ):
                    self._cached.replace(table)
                    return
            raise CommitFailedError(f"{self._uri}: other processes rewrite it all the time")

    def prune(self, change: Callable[[pa.Table], pa.Table]) -> None:
        """Remove rows file by file, with one commit per file; keep no rows in memory."""
        with self._lock:
            self._open_or_create()
            table = self._brought_up()
            for path in table.paths():
                version = table.refresh()
                if path not in table.paths():
                    continue
                rows = conform(table.read_file(path), self._schema)
                kept = change(rows)
                if kept.num_rows < rows.num_rows:
                    # A file that another process rewrites meanwhile is left for the next call.
                    rewrite(table, {path: kept}, self._schema, as_of=version, before={path: rows})
            self._cached.replace(table)

    def tidy(self) -> None:
        """Remove log entries and files past their retention."""
        with self._lock:
            table = delta.open_table(self._uri)
            if table is not None:
                table.tidy()
                remove_unnamed(table)

    def rows(self, *, look: bool = True) -> pa.Table:
        """Return all rows of the newest version; read only files that were not read before.

        With `look`, the rows include writes of other processes since the last poll.
        """
        with self._lock:
            table = self._cached.table
            if look or table is None:
                table = self._cached.newest()
            if table is None:
                return self._schema.empty_table()
            if table is not self._read_of or self._cached.version != self._read_version:
                # Files that a compaction or an update replaced leave the cache.
                self._files = {
                    path: self._files.get(path) or conform(table.read_file(path), self._schema)
                    for path in self._cached.paths()
                }
                self._read_of, self._read_version = table, self._cached.version
            return pa.concat_tables([self._schema.empty_table(), *self._files.values()])

    def has_value(self, column: str, value: object) -> bool:
        """Check whether the last result of `rows` contains a value; every call uses the same column."""
        with self._lock:
            # Computed once for each file, because files never change: a cycle may ask about many tables.
            self._values = {
                path: self._values[path]
                if path in self._values
                else frozenset(rows[column].unique().to_pylist())
                for path, rows in self._files.items()
            }
            return any(value in values for values in self._values.values())

    def read(self, columns: list[str]) -> pa.Table:
        """Read some columns of all rows without caching."""
        with self._lock:
            table = delta.open_table(self._uri)
            parts = [] if table is None else [
                table.read_file(path, columns) for path in table.paths()
            ]  # fmt: skip
        schema = pa.schema([self._schema.field(name) for name in columns])
        return pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in parts)])

    def _brought_up(self) -> Table:
        """Move the handle to the newest version."""
        # A listing must show the process's own commits.
        return self._cached.brought_up(after=self._cached.version - 1)

    def _open_or_create(self) -> Table:
        """Return the table for writing; all log entries are on disk, including a killed process's entries."""
        # An entry far behind the newest may be removed: a number beneath a checkpoint is free again.
        table = self._cached.newest(within=SELDOM)
        if table is None or table is not self._flushed:
            table = delta.open_or_create(self._uri, self._schema, description=self._description)
            table.widen(self._schema)
            self._flushed = self._cached.replace(table)
        return table
