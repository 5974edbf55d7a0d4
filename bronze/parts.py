"""Parquet files of `bronze.changes`, written before the commit that names them.

Nobody sees a file until a Delta commit names it; a crash before that leaves a file that no version refers to,
which vacuum removes. On a local path each file is flushed to disk when it is closed, because the slot is
confirmed on the strength of it.

The values of a row are stored plain and compressed; a dictionary is kept for the columns that repeat
(operation, table, column names), where it costs next to nothing. A file is closed at about `FILE_BYTES` of
Arrow data, so that one large transaction becomes several files that Spark reads side by side. Its statistics
let readers skip it by commit LSN and table.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction

from bronze.tables import CHANGES_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

FILE_BYTES: Final = 256 * 1024 * 1024

REPEATING: Final = ("op", "table_schema", "table_name", "columns.list.element", "unchanged.list.element")
"""Columns of `bronze.changes` whose values repeat; only these get a dictionary."""

MEASURED: Final = ("commit_lsn", "seq", "table_schema", "table_name", "op")
"""Columns of `bronze.changes` whose least and greatest values go into Delta's statistics."""

SAME_IN_A_SNAPSHOT: Final = ("commit_lsn", "lsn", "commit_ts", "relation_id", "ingested_at")
"""Columns that hold one value, or few, in all rows of a snapshot."""

_WRITE_BATCH: Final = 16 * 1024
"""Values encoded at a time."""

_COMPRESSION: Final = "zstd"
_COMPRESSION_LEVEL: Final = 1


def file_system(uri: str) -> pa_fs.FileSystem:
    """The file system below a table's location: local, or whatever `deltalake` reaches."""
    if "://" in uri and not uri.startswith("file://"):
        return pa_fs.PyFileSystem(DeltaStorageHandler(uri))
    return pa_fs.SubTreeFileSystem(uri.removeprefix("file://"), pa_fs.LocalFileSystem())


def local_folder(uri: str) -> Path | None:
    """The folder of a local table; None for an object store."""
    return None if "://" in uri and not uri.startswith("file://") else Path(uri.removeprefix("file://"))


def flush_to_disk(path: Path) -> None:
    """Wait until a file or folder has reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_commits(uri: str, after: int, version: int) -> None:
    """Make a table's log entries after one version, up to another, outlive a power cut.

    Several, because another process may have committed right before or after us. An object store's entries
    need nothing.
    """
    folder = local_folder(uri)
    if folder is not None:
        log = folder / "_delta_log"
        for each in range(after + 1, version + 1):
            flush_to_disk(log / f"{each:020}.json")
        flush_to_disk(log)
        flush_to_disk(folder)


class PartWriter:
    """Writes rows to one file after another; `finish` says what a commit must name.

    Args:
        uri: location of the table.
        prefix: begins the files' names, for people who look into the folder.
        schema: of the rows.
        measured: columns whose least and greatest values go into Delta's statistics.
        repeating: columns that get a dictionary.
    """

    def __init__(
        self,
        uri: str,
        prefix: str,
        *,
        schema: pa.Schema = CHANGES_SCHEMA,
        measured: Sequence[str] = MEASURED,
        repeating: Sequence[str] = REPEATING,
    ) -> None:
        self._schema = schema
        self._repeating = list(repeating)
        self._measured = measured
        self._system = file_system(uri)
        self._folder = local_folder(uri)
        self._prefix = prefix
        self._actions: list[AddAction] = []
        self._name = ""
        self._writer: pq.ParquetWriter | None = None
        self._stream: Any = None
        self._bytes = 0
        self._statistics = _Statistics(self._measured)

    @property
    def rows(self) -> int:
        """Rows in the file that is open."""
        return self._statistics.rows

    def write(self, rows: pa.Table) -> None:
        """Append rows as one row group."""
        if rows.num_rows == 0:
            return
        if self._writer is None:
            self._open()
        assert self._writer is not None  # noqa: S101 - just opened
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._statistics.add(rows)
        self._bytes += rows.nbytes
        if self._bytes >= FILE_BYTES:
            self._close()

    def finish(self) -> list[AddAction]:
        """Close the open file; what was written since the last call, ready to be named by a commit."""
        self._close()
        actions, self._actions = self._actions, []
        return actions

    def discard(self) -> None:
        """Give up what was written since the last `finish`; files stay behind, named by no version."""
        self._actions = []
        if self._writer is not None:
            self._writer = None
            with suppress(OSError):  # nothing in it is wanted any more
                self._stream.close()

    def _open(self) -> None:
        self._name = f"{self._prefix}-{uuid.uuid4()}.parquet"
        self._stream = self._system.open_output_stream(self._name)
        self._writer = pq.ParquetWriter(
            self._stream,
            self._schema,
            compression=_COMPRESSION,
            compression_level=_COMPRESSION_LEVEL,
            use_dictionary=self._repeating,
            write_batch_size=_WRITE_BATCH,
            write_statistics=list(self._measured),
            store_schema=False,
        )
        self._bytes = 0
        self._statistics = _Statistics(self._measured)

    def _close(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        size = self._stream.tell()
        self._stream.close()
        if self._folder is not None:
            flush_to_disk(self._folder / self._name)
        self._actions.append(
            AddAction(
                path=self._name,
                size=size,
                partition_values={},
                modification_time=int(time.time() * 1000),
                data_change=True,
                stats=self._statistics.to_json(),
            )
        )


class _Statistics:
    """Number of rows, least and greatest values of one file."""

    def __init__(self, measured: Sequence[str]) -> None:
        self._measured = measured
        self.rows = 0
        self._least: dict[str, Any] = {}
        self._greatest: dict[str, Any] = {}

    def add(self, rows: pa.Table) -> None:
        self.rows += rows.num_rows
        for name in self._measured:
            column = rows[name]
            if pa.types.is_dictionary(column.type):
                column = pa.chunked_array([chunk.dictionary for chunk in column.chunks])
            found = pc.min_max(column).as_py()
            if found["min"] is not None:
                self._least[name] = min(found["min"], self._least.get(name, found["min"]))
                self._greatest[name] = max(found["max"], self._greatest.get(name, found["max"]))

    def to_json(self) -> str:
        nulls = {name: 0 for name in self._measured if name in self._least and not name.startswith("table_")}
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": self._least,
                "maxValues": self._greatest,
                "nullCount": nulls,
            }
        )
