"""Parquet files of a table, written before the commit that names them.

**Invariant.** No reader sees a file before a Delta commit names the file, and the slot is confirmed on the
strength of these files. On a local path each file is flushed when closed, and the names before `finish`
returns them.

**Failures.** A crash before the commit leaves a file without any reference; for `bronze.changes` the next
reader removes such files (`bronze.store.changes_table`). A failed call ends the writer: the writer removes
all files that `finish` has not returned, and rejects every later call.

**Consequence.** No commit names a file that lacks rows, or a file that Arrow left without a footer. No commit
omits the rows of a file that could not be opened.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.client import AddAction
from deltasmelt.bronze.lake.durability import flush_to_disk
from deltasmelt.bronze.lake.place import client_root, is_named, local_folder, options_of
from deltasmelt.bronze.lake.staging import aside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


class Upload:
    """A file under construction in a store, with the interface that Arrow's writers expect.

    Arrow's own stream needs three requests for any size: start a multipart upload, send a part, complete.
    Most commits of the stream are some KiB. `Upload` buffers up to `held` bytes and writes the file by one
    request on closing; before the close the store contains nothing of such a file. Only a larger file is sent
    in parts, of `held` bytes each.

    Raises:
        OSError: from each method: the store is unreachable or refuses.
    """

    def __init__(self, uri: str, name: str, held: int) -> None:
        self._held = held
        self._size = 0
        self.closed = False
        self._failures = partial(objects.as_os_error, f"{name} was not written")
        with self._failures():
            self._file = objects.open_writer(uri, name, held)

    def write(self, data: bytes) -> int:
        """Append bytes to the file."""
        self._size += len(data)  # before the write: a failed write may have sent parts
        with self._failures():
            self._file.write(data)
        return len(data)

    def tell(self) -> int:
        """Return the number of written bytes."""
        return self._size

    def flush(self) -> None:
        """Do nothing: a store shows a file only when complete."""

    def close(self) -> None:
        """Complete the file; the file is in the store when this returns."""
        if not self.closed:
            self.closed = True
            with self._failures():
                # The name is unique: unconditional, and safe to repeat after a lost answer.
                self._file.close()

    def give_up(self) -> None:
        """Abandon the file: drop a buffered file, and complete a file of which parts were sent."""
        # The caller removes the completed file. Parts without a file would stay in the store, invisible.
        if self._size >= self._held:
            self.close()
        self.closed = True


# One large transaction becomes several files of about this size of Arrow data, which Spark reads in parallel.
FILE_BYTES: Final = 256 * 1024 * 1024
# Paths that `deltalake`'s file system and a URL spell alike.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./-]*")
# Size up to which one request writes or reads a whole file of a store.
HELD_BYTES: Final = 8 * 1024 * 1024
# Number of values that Arrow encodes at a time.
_WRITE_BATCH: Final = 16 * 1024
_COMPRESSION: Final = "zstd"
_COMPRESSION_LEVEL: Final = 1


def files_folder(uri: str) -> Path | None:
    """Return the local folder for a table's new files; None in an object store."""
    # A catalog's new files lie in a staging folder until Spark reads their rows
    # (`bronze.lake.catalog.files`).
    return aside(uri) if is_named(uri) else local_folder(uri)


def file_system(uri: str) -> pa_fs.FileSystem:
    """Return the file system below a table's location: local, or `deltalake`'s file system of a store."""
    folder = files_folder(uri)
    if folder is None:
        lake, below = client_root(uri)
        if _PLAIN.fullmatch(below) is None:
            lake, below = uri, ""
        found = _connected(lake, tuple(sorted((options_of(uri) or {}).items())))
        return pa_fs.SubTreeFileSystem(below, found) if below else found
    return pa_fs.SubTreeFileSystem(str(folder), pa_fs.LocalFileSystem())


@lru_cache(maxsize=256)
def _connected(uri: str, options: tuple[tuple[str, str], ...]) -> pa_fs.FileSystem:
    """Return the client of a lake, with cached connections; different options give a different client."""
    from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415 - a lake in a catalog needs none

    return pa_fs.PyFileSystem(DeltaStorageHandler(uri, dict(options) or None))


def open_whole(uri: str, name: str) -> pa.NativeFile:
    """Open a table's file for reading completely; in a store one request reads the whole file into memory."""
    if files_folder(uri) is None:
        from deltasmelt.bronze.lake import objects  # noqa: PLC0415 - a local lake needs no client

        return pa.BufferReader(objects.read_whole(uri, name))
    return file_system(uri).open_input_file(name)


def open_file(uri: str, name: str, size: int) -> pa.NativeFile:
    """Open a table's file for reading; one request reads a file within a writer's buffer size."""
    if size <= HELD_BYTES:
        return open_whole(uri, name)
    return file_system(uri).open_input_file(name)


def file_batches(uri: str, name: str, columns: list[str], ending: str) -> Iterator[pa.RecordBatch]:
    """Yield some columns of a table's file in batches, only rows with true in the column `ending`.

    Reads nothing before the first batch.
    """
    from pyarrow.dataset import ParquetFileFormat, field  # noqa: PLC0415 - 30 MiB, which the reader needs not

    yield from (
        ParquetFileFormat()
        .make_fragment(name, file_system(uri))
        .to_batches(columns=columns, filter=field(ending))
    )


def delete_files(uri: str, names: Iterable[str]) -> None:
    """Remove files that no version names and no commit will name; ignore files that are already absent."""
    system = file_system(uri)

    def delete(name: str) -> None:
        with suppress(FileNotFoundError):
            system.delete_file(name)

    for name in names:
        perform(Effect.DELETE_FILE, f"{uri}/{name}", lambda name=name: delete(name))  # type: ignore[misc]


class UnusableWriterError(OSError):
    """A caller used a `PartWriter` after a failed call or after `discard`."""


class PartWriter:
    """Writer of rows into successive files; `finish` returns the actions for the commit.

    Args:
        prefix: beginning of the file names, for people who open the folder.
        measured: columns whose minimum and maximum go into Delta's statistics, to skip files.
        repeating: columns that get a dictionary.
    """

    def __init__(
        self,
        uri: str,
        prefix: str,
        *,
        schema: pa.Schema,
        measured: Sequence[str] = (),
        repeating: Sequence[str] = (),
    ) -> None:
        self._schema = schema
        self._repeating = list(repeating)
        self._measured = measured
        self._uri = uri
        self._system = file_system(uri)
        self._folder = files_folder(uri)
        self._prefix = prefix
        self._actions: list[AddAction] = []
        self._given_up = False
        self._name = ""
        self._unfinished = False
        self._writer: pq.ParquetWriter | None = None
        self._stream: Any = None
        self._footers: list[pq.FileMetaData] = []
        self._bytes = 0
        self._statistics = _Statistics(self._measured)

    @property
    def rows(self) -> int:
        """Number of rows in the open file."""
        return self._statistics.rows

    def write(self, rows: pa.Table) -> None:
        """Append rows as one row group.

        Raises:
            UnusableWriterError: an earlier call failed, or `discard` was called.
            OSError, ArrowException: the storage cannot be written; the writer is unusable from now on.
        """
        with self._usable():
            if rows.num_rows == 0:
                return
            if self._writer is None:
                self._open()
            writer = self._writer
            assert writer is not None  # noqa: S101 - just opened
            perform(
                Effect.WRITE_PART, self._place, lambda: writer.write_table(rows, row_group_size=rows.num_rows)
            )
            self._statistics.add(rows)
            self._bytes += rows.nbytes
            if self._bytes >= FILE_BYTES:
                self._close()

    def finish(self) -> list[AddAction]:
        """Close the open file; return the files since the last call, ready for a commit; raises as `write`.

        If no commit names the files, the caller removes the files.
        """
        with self._usable():
            self._close()
            if self._actions and self._folder is not None:
                flush_to_disk(self._folder)
            actions, self._actions = self._actions, []
        return actions

    def discard(self) -> None:
        """Abandon the files since the last `finish`, and remove them as far as the storage permits."""
        self._given_up = True
        names = [action.path for action in self._actions]
        if self._unfinished:
            names.append(self._name)
        self._actions, self._unfinished = [], False
        stream = self._stream
        ends = [] if stream is None else [getattr(stream, "give_up", stream.close)]
        if self._writer is not None:
            ends.insert(0, self._writer.close)
        self._writer = self._stream = None
        for end in ends:
            with suppress(Exception):  # of any kind: the file is discarded
                end()
        for name in names:
            with suppress(OSError, pa.ArrowException):  # the next start removes the file
                delete_files(self._uri, [name])

    @property
    def _place(self) -> str:
        return f"{self._uri}/{self._name}"

    @contextmanager
    def _usable(self) -> Iterator[None]:
        if self._given_up:
            raise UnusableWriterError(f"files of {self._prefix} were abandoned: an earlier write failed")
        try:
            yield
        except BaseException:
            self.discard()
            raise

    def _open(self) -> None:
        self._name = f"{self._prefix}-{uuid.uuid4()}.parquet"
        self._unfinished = True
        self._stream = perform(Effect.OPEN_PART, self._place, self._open_stream)
        self._footers = []
        self._writer = pq.ParquetWriter(
            self._stream,
            self._schema,
            compression=_COMPRESSION,
            compression_level=_COMPRESSION_LEVEL,
            # Repeating values (operation, table, column names) make a dictionary cheap.
            use_dictionary=self._repeating,
            write_batch_size=_WRITE_BATCH,
            write_statistics=list(self._measured),
            store_schema=False,
            metadata_collector=self._footers,
        )
        self._bytes = 0
        self._statistics = _Statistics(self._measured)

    def _open_stream(self) -> Any:
        if self._folder is None:
            return Upload(self._uri, self._name, HELD_BYTES)
        return self._system.open_output_stream(self._name)

    def _close(self) -> None:
        if self._writer is None:
            return
        size = perform(Effect.CLOSE_PART, self._place, self._end_file)
        self._writer = self._stream = None
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
        self._unfinished = False

    def _end_file(self) -> int:
        """Write the footer, close the file and return the file's size."""
        assert self._writer is not None  # noqa: S101 - `_close` looked
        self._writer.close()
        size: int = self._stream.tell()
        self._stream.close()
        footer = self._footers[0] if self._footers else None
        stored = size if self._folder is None else (self._folder / self._name).stat().st_size
        # A difference to the written rows or bytes ends the writer, before any commit names the file.
        if footer is None or footer.num_rows != self._statistics.rows or stored != size:
            raise OSError(f"{self._name} was not written completely: {stored} of {size} bytes")
        return size


class _Statistics:
    """Row count of one file, and minima, maxima and the number of NULLs of its measured columns."""

    def __init__(self, measured: Sequence[str]) -> None:
        self._measured = measured
        self.rows = 0
        self._least: dict[str, Any] = {}
        self._greatest: dict[str, Any] = {}
        self._nulls = dict.fromkeys(measured, 0)

    def add(self, rows: pa.Table) -> None:
        self.rows += rows.num_rows
        for name in self._measured:
            column = rows[name]
            self._nulls[name] += column.null_count
            if pa.types.is_dictionary(column.type):
                column = pa.chunked_array([chunk.dictionary for chunk in column.chunks])
            found = pc.min_max(column).as_py()
            if found["min"] is not None:
                self._least[name] = min(found["min"], self._least.get(name, found["min"]))
                self._greatest[name] = max(found["max"], self._greatest.get(name, found["max"]))

    def to_json(self) -> str:
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": self._least,
                "maxValues": self._greatest,
                "nullCount": self._nulls,
            }
        )
