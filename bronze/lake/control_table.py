"""One table of `control.*`: rows appended, altered and pruned by any process, read from memory.

In a store an append is two requests, the file's and the entry's, and a look one. What we append ourselves is
known, so it is not read back. The entry is put on the condition that its number is free, which it is unless
another process was first; then `deltalake` commits after that one. The handle stays behind meanwhile, and is
brought up where another process wrote, for a checkpoint, for a rewrite, and from time to time: an entry of
long ago may be gone, and its number free again. So is that of any entry once the lake was removed or put back
under us: no entry is put but after one that is there (`bronze.lake.entries`). That is asked for, unless we
put it in the last seconds ourselves.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import CommitFailedError
from deltasmelt.bronze.lake.compaction import COMPACT_ABOVE, RETENTION, compact, conform, rewrite, tidy
from deltasmelt.bronze.lake.kept import SELDOM
from deltasmelt.bronze.lake.parquet import PartWriter
from deltasmelt.bronze.lake.place import is_named, local_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalake import DeltaTable


_ATTEMPTS: Final = 10
_JUST_PUT: Final = 2.0
"""Seconds after a put of our own for which its entry is taken to be there."""


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
        self._values: dict[str, frozenset[object]] = {}
        self._in_store = local_folder(uri) is None and not is_named(uri)
        self._put = -1
        self._listed = self._put_at = 0.0

    @property
    def _version(self) -> int:
        """The newest version that is known: the handle's, or one that was put after it."""
        return -1 if self._handle is None else max(self._handle.version(), self._put)

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Add rows, in one commit; the table is made where there is none."""
        with self._lock:
            table = self._open_or_create()
            made = pa.Table.from_pylist(rows, schema=self._schema)
            if self._is_recent():
                table = self._put_next(table, made)
            else:
                delta.append(table, made)
                self._is_brought_up()
            if len(table.file_uris()) + self._version - table.version() > COMPACT_ABOVE:
                self._bring_up(table)
                compact(table, self._schema, many=COMPACT_ABOVE // 2)

    def _put_next(self, table: DeltaTable, rows: pa.Table) -> DeltaTable:
        """Put a file and the entry that names it, and no more; a checkpoint, if one is due.

        Returns the handle, which is another one where another process was first, or the log was put back.
        """
        writer = PartWriter(self._uri, "part", schema=self._schema)
        writer.write(rows)
        parts, version = writer.finish(), self._version
        looks = abs(time.time() - self._put_at) >= _JUST_PUT
        if not delta.put_after(table, parts, version, looks=looks):
            self._flushed, self._read_version = False, -1
            table = self._open_or_create()
            delta.append_files(table, parts)
            self._is_brought_up()
            return table
        self._put, self._put_at = version + 1, time.time()
        if self._read_version == version:
            self._read_version = self._put
            self._files |= {parts[0].path: rows}
        if self._put % delta.checkpoint_interval(self._uri) == 0:
            self._bring_up(table)
            delta.checkpoint_if_due(table, version)
        return table

    def update(self, change: Callable[[pa.Table], pa.Table]) -> None:
        """Write files again of which the rows change.

        Args:
            change: a file's rows as they are to be. Called again where another process came first.
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
        """Remove rows file by file, each by a commit of its own, and keep none in memory.

        Args:
            change: a file's rows without those that go. A file that another process rewrites meanwhile is
                left for the next time.
        """
        with self._lock:
            table = self._open_or_create()
            self._bring_up(table)
            for path in delta.paths_of(table):
                version = delta.refresh(table)
                if path not in delta.paths_of(table):
                    continue
                rows = conform(delta.read_file(table, path), self._schema)
                kept = change(rows)
                if kept.num_rows < rows.num_rows:
                    rewrite(table, {path: kept}, self._schema, as_of=version, before={path: rows})

    def tidy(self) -> None:
        """Remove log entries and files that nobody needs."""
        with self._lock:
            table = delta.open_table(self._uri)
            if table is not None:
                tidy(table)

    def rows(self, *, look: bool = True) -> pa.Table:
        """All rows of the newest version; files that were read before are not read again.

        Args:
            look: see what other processes wrote since the last look.
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
        """Check whether a row that `rows` returned last has a value, always in the same column.

        The values of a file, which never changes, are found once: many tables may be asked for in each cycle.
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
        """Whether the log of the table, which lies in a store, was listed not long ago."""
        return self._in_store and abs(time.time() - self._listed) < SELDOM

    def _is_newest(self) -> bool:
        """Whether nothing came after the version that is known; where that takes no less, it is not asked."""
        return self._is_recent() and not self._has_entry(self._version + 1)

    def _has_entry(self, version: int) -> bool:
        from deltasmelt.bronze.lake import entries  # noqa: PLC0415 - a local lake needs no client

        return perform(Effect.REFRESH, self._uri, lambda: entries.has_entry(self._uri, version))

    def _bring_up(self, table: DeltaTable) -> None:
        delta.refresh(table, after=self._put - 1)
        self._is_brought_up()

    def _is_brought_up(self) -> None:
        self._put, self._listed = -1, time.time()

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
            path: self._files.get(path) or conform(delta.read_file(table, path), self._schema)
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
            delta.widen(self._handle, self._schema)
            self._flushed, self._read_version = True, -1  # another handle may have read another entry
            self._is_brought_up()
        return self._handle
