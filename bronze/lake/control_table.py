"""One table of `control.*`: any process appends, changes and prunes rows; reads come from memory.

**Requests.** In a store an append costs two requests (file and entry), and a poll costs one. A process knows
the rows of its own appends and does not read the rows back. The entry is written only if the entry's number
is free. The number is taken only if a concurrent process was faster; `deltalake` then commits after the
concurrent entry.

**Stale handles.** The handle stays behind meanwhile. The handle is refreshed after a foreign write, for a
checkpoint, for a rewrite, and from time to time. Cleaning removes old entries, and the number of a removed
entry is free again. Numbers also become free if the lake is removed or rolled back under a running process.
An entry is therefore written only after an existing entry (`bronze.lake.entries`).
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import CommitFailedError
from deltasmelt.bronze.lake.compaction import COMPACT_ABOVE, compact, conform, rewrite
from deltasmelt.bronze.lake.kept import SELDOM
from deltasmelt.bronze.lake.parquet import PartWriter
from deltasmelt.bronze.lake.place import Store, place_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltasmelt.bronze.lake.table import Table

_ATTEMPTS: Final = 10
_JUST_PUT: Final = 2.0
"""Seconds after an own write during which the written entry counts as existing."""


class ControlTable:
    """A control table: the handle, and the rows of each file."""

    def __init__(self, uri: str, schema: pa.Schema, description: str) -> None:
        self._uri = uri
        self._schema = schema
        self._description = description
        self._lock = threading.RLock()
        self._handle: Table | None = None
        self._read_version = -1
        self._flushed = False
        self._files: dict[str, pa.Table] = {}
        self._values: dict[str, frozenset[object]] = {}
        self._in_store = isinstance(place_of(uri), Store)
        self._put = -1
        self._listed = self._put_at = 0.0

    @property
    def _version(self) -> int:
        """Newest known version: the handle's, or a later version of the process's own writes."""
        return -1 if self._handle is None else max(self._handle.version(), self._put)

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Append rows in one commit; create an absent table."""
        with self._lock:
            table = self._open_or_create()
            made = pa.Table.from_pylist(rows, schema=self._schema)
            if self._is_recent():
                table = self._put_next(table, made)
            else:
                table.append(made)
                self._is_brought_up()
            if len(table.file_uris()) + self._version - table.version() > COMPACT_ABOVE:
                self._bring_up(table)
                compact(table, self._schema, many=COMPACT_ABOVE // 2)

    def _put_next(self, table: Table, rows: pa.Table) -> Table:
        """Write a file and its log entry directly; make a checkpoint if due; return the handle.

        The handle is a new handle if another process was faster, or after a rollback of the log.
        """
        writer = PartWriter(self._uri, "part", schema=self._schema)
        writer.write(rows)
        parts, version = writer.finish(), self._version
        # A request checks the preceding entry, unless the process wrote this entry in the last seconds.
        looks = abs(time.time() - self._put_at) >= _JUST_PUT
        if not table.put_after(parts, version, looks=looks):
            self._flushed, self._read_version = False, -1
            table = self._open_or_create()
            table.append_files(parts)
            self._is_brought_up()
            return table
        self._put, self._put_at = version + 1, time.time()
        if self._read_version == version:
            self._read_version = self._put
            self._files |= {parts[0].path: rows}
        if self._put % place_of(self._uri).checkpoint_interval == 0:
            self._bring_up(table)
            table.checkpoint_if_due(version)
        return table

    def update(self, change: Callable[[pa.Table], pa.Table]) -> None:
        """Rewrite the files whose rows change.

        Args:
            change: returns the new rows of a file; called again if another process was faster.
        """
        with self._lock:
            table = self._open_or_create()
            for _ in range(_ATTEMPTS):
                self._bring_up(table)
                self.rows()
                changed = {path: change(rows) for path, rows in self._files.items()}
                changed = {path: rows for path, rows in changed.items() if rows != self._files[path]}
                if not changed or rewrite(
                    table, changed, self._schema, as_of=self._read_version, before=self._files
                ):
                    return
            raise CommitFailedError(f"{self._uri}: other processes rewrite it all the time")

    def prune(self, change: Callable[[pa.Table], pa.Table]) -> None:
        """Remove rows file by file, with one commit per file; keep no rows in memory.

        Args:
            change: returns the remaining rows of a file. If another process rewrites a file meanwhile, the
                file is left for the next call.
        """
        with self._lock:
            table = self._open_or_create()
            self._bring_up(table)
            for path in table.paths():
                version = table.refresh()
                if path not in table.paths():
                    continue
                rows = conform(table.read_file(path), self._schema)
                kept = change(rows)
                if kept.num_rows < rows.num_rows:
                    rewrite(table, {path: kept}, self._schema, as_of=version, before={path: rows})

    def tidy(self) -> None:
        """Remove log entries and files past their retention."""
        with self._lock:
            table = delta.open_table(self._uri)
            if table is not None:
                table.tidy()

    def rows(self, *, look: bool = True) -> pa.Table:
        """Return all rows of the newest version; read only files that were not read before.

        Args:
            look: whether to include writes of other processes since the last poll.
        """
        with self._lock:
            if self._handle is None and (not self._is_recent() or self._has_entry(0)):
                self._handle = delta.open_table(self._uri)
                self._is_brought_up()
            elif look and self._handle is not None and not self._is_newest():
                self._bring_up(self._handle)
            if self._handle is None:
                return self._schema.empty_table()
            if self._version != self._read_version:
                if self._version > self._handle.version():
                    self._bring_up(self._handle)
                self._read(self._handle)
            return pa.concat_tables([self._schema.empty_table(), *self._files.values()])

    def has_value(self, column: str, value: object) -> bool:
        """Check whether the last result of `rows` contains a value; every call uses the same column.

        The values of a file are computed once, because files never change: a cycle may ask about many tables.
        """
        with self._lock:
            self._values = {
                path: self._values[path]
                if path in self._values
                else frozenset(rows[column].unique().to_pylist())
                for path, rows in self._files.items()
            }
            return any(value in values for values in self._values.values())

    def _is_recent(self) -> bool:
        """Check whether this process has recently listed the log; false outside a store."""
        return self._in_store and abs(time.time() - self._listed) < SELDOM

    def _is_newest(self) -> bool:
        """Check by one request that no newer version exists; False if a check needs more requests."""
        return self._is_recent() and not self._has_entry(self._version + 1)

    def _has_entry(self, version: int) -> bool:
        from deltasmelt.bronze.lake import entries  # noqa: PLC0415 - a local lake needs no client

        return entries.has_entry(self._uri, version)

    def _bring_up(self, table: Table) -> None:
        table.refresh(after=self._put - 1)
        self._is_brought_up()

    def _is_brought_up(self) -> None:
        self._put, self._listed = -1, time.time()

    def read(self, columns: list[str]) -> pa.Table:
        """Read some columns of all rows without caching."""
        with self._lock:
            table = delta.open_table(self._uri)
            parts = [] if table is None else [
                table.read_file(path, columns) for path in table.paths()
            ]  # fmt: skip
        schema = pa.schema([self._schema.field(name) for name in columns])
        return pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in parts)])

    def _read(self, table: Table) -> None:
        version = table.version()
        self._files = {
            path: self._files.get(path) or conform(table.read_file(path), self._schema)
            for path in table.paths()
        }
        self._read_version = version

    def _open_or_create(self) -> Table:
        """Return the table for writing; all log entries are on disk, including a killed process's entries."""
        if self._handle is None or not self._flushed:
            self._handle = delta.open_or_create(self._uri, self._schema, description=self._description)
            self._handle.widen(self._schema)
            self._flushed, self._read_version = True, -1  # the new handle may have read different entries
            self._is_brought_up()
        return self._handle
