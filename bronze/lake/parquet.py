"""Parquet files of `bronze.changes`, written before the commit that names them.

Nobody sees a file until a Delta commit names it. A crash before that leaves a file that no version refers to,
which the next reader removes (`bronze.store.changes_table`).
On a local path each file is flushed to disk when it is closed, and its name before it is handed out: the slot
is confirmed on the strength of it. In an object store a small one is put by one request when it is closed.

A call that fails ends the writer: it removes what it has not handed out, and refuses every later call. So no
commit can name a file that lacks rows, or one that Arrow left without its footer; and no commit can go
without the rows of a file that could not be opened.

The values of a row are stored plain and compressed. A dictionary is kept for the columns that repeat
(operation, table, column names), where it costs next to nothing. A file is closed at about `FILE_BYTES` of
Arrow data, so that one large transaction becomes several files that Spark reads side by side. Its statistics
let readers skip it by commit LSN and table.

A new file in an object store, sent by one request where it is small.

Arrow's stream to a store starts a multipart upload, sends a part and completes it: three requests, whatever
the size. Most commits of the stream are of some KiB. So what is written is held in memory up to a size, and
put when the file is closed. Only a file that outgrows that is sent in parts.

Nothing of a file that is held is in the store before it is closed. Its name is used by nobody else, so the
put needs no condition, and may be repeated where its answer was lost.
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
from deltasmelt.bronze.lake.catalog.staging import aside
from deltasmelt.bronze.lake.client import AddAction
from deltasmelt.bronze.lake.durability import flush_to_disk
from deltasmelt.bronze.lake.place import client_root, is_named, local_folder, options_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


class Upload:
    """A file that is being written to a store, as Arrow's writers take it.

    Args:
        uri: location of the table.
        name: of the file, below it; new.
        held: bytes up to which it is put by one request; also of a larger file's parts.

    Raises:
        OSError: from each method: the store cannot be reached, or refuses.
    """

    def __init__(self, uri: str, name: str, held: int) -> None:
        self._held = held
        self._size = 0
        self.closed = False
        self._failures = partial(objects.as_os_error, f"{name} was not written")
        with self._failures():
            self._file = objects.open_writer(uri, name, held)

    def write(self, data: bytes) -> int:
        """Take the next bytes."""
        self._size += len(data)  # before: a write that fails may have begun to send parts
        with self._failures():
            self._file.write(data)
        return len(data)

    def tell(self) -> int:
        """Bytes that were written."""
        return self._size

    def flush(self) -> None:
        """Nothing: a store shows a file when it is whole."""

    def close(self) -> None:
        """The file is whole, and is in the store when this returns."""
        if not self.closed:
            self.closed = True
            with self._failures():
                self._file.close()

    def give_up(self) -> None:
        """Send nothing of a file that is held; one of which parts were sent is there then, to be removed.

        Parts of which no file was made would stay in the store, unseen.
        """
        if self._size >= self._held:
            self.close()
        self.closed = True


FILE_BYTES: Final = 256 * 1024 * 1024
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./-]*")
"""Paths that the file system of `deltalake` and a URL spell alike."""
HELD_BYTES: Final = 8 * 1024 * 1024
"""Size of a file up to which a store gets, or gives, the whole of it by one request."""
_WRITE_BATCH: Final = 16 * 1024
"""Values encoded at a time."""
_COMPRESSION: Final = "zstd"
_COMPRESSION_LEVEL: Final = 1


def files_folder(uri: str) -> Path | None:
    """The local folder in which a table's new files are written; None in an object store.

    Those of a catalog's table are written aside, until Spark takes their rows (`bronze.lake.delta.commit`).
    """
    return aside(uri) if is_named(uri) else local_folder(uri)


def file_system(uri: str) -> pa_fs.FileSystem:
    """The file system below a table's location: local, or whatever `deltalake` reaches."""
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
    """A client for each lake, which keeps its connections; other options make another one."""
    from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415 - a lake in a catalog needs none

    return pa_fs.PyFileSystem(DeltaStorageHandler(uri, dict(options) or None))


def open_whole(uri: str, name: str) -> pa.NativeFile:
    """A table's file, of which all will be read; in a store one request gets the whole of it into memory.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read.
    """
    if files_folder(uri) is None:
        from deltasmelt.bronze.lake import objects  # noqa: PLC0415 - a local lake needs no client

        return pa.BufferReader(objects.read_whole(uri, name))
    return file_system(uri).open_input_file(name)


def file_batches(uri: str, name: str, columns: list[str], ending: str) -> Iterator[pa.RecordBatch]:
    """Yield some columns of a table's file, batch by batch; nothing is read before the first is asked for.

    Args:
        uri: of the table.
        name: of the file.
        columns: wanted.
        ending: a column that is true.
    """
    from pyarrow.dataset import ParquetFileFormat, field  # noqa: PLC0415 - 30 MiB, which the reader needs not

    yield from (
        ParquetFileFormat()
        .make_fragment(name, file_system(uri))
        .to_batches(columns=columns, filter=field(ending))
    )


def delete_files(uri: str, names: Iterable[str]) -> None:
    """Remove files of a table that no version names and no commit will name; one that is gone is no fault."""
    system = file_system(uri)

    def delete(name: str) -> None:
        with suppress(FileNotFoundError):
            system.delete_file(name)

    for name in names:
        perform(Effect.DELETE_FILE, f"{uri}/{name}", lambda name=name: delete(name))  # type: ignore[misc]


class UnusableWriterError(OSError):
    """A `PartWriter` is used after one of its calls failed, or after it was given up."""


class PartWriter:
    """Writes rows to one file after another; `finish` says what a commit must name.

    After a call that failed, and after `discard`, every call is refused.

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
        """Rows in the file that is open."""
        return self._statistics.rows

    def write(self, rows: pa.Table) -> None:
        """Append rows as one row group.

        Raises:
            UnusableWriterError: an earlier call failed.
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
        """Close the open file; what was written since the last call, ready to be named by a commit.

        The caller removes it, where it is not named after all.

        Raises:
            UnusableWriterError: an earlier call failed.
            OSError, ArrowException: the storage cannot be written; the writer is unusable from now on.
        """
        with self._usable():
            self._close()
            if self._actions and self._folder is not None:
                flush_to_disk(self._folder)
            actions, self._actions = self._actions, []
        return actions

    def discard(self) -> None:
        """Give up: remove what was written since the last `finish`, as far as the storage lets us."""
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
            with suppress(Exception):  # of whatever kind: nothing in it is wanted any more
                end()
        for name in names:
            with suppress(OSError, pa.ArrowException):  # the next start removes what is left
                delete_files(self._uri, [name])

    @property
    def _place(self) -> str:
        return f"{self._uri}/{self._name}"

    @contextmanager
    def _usable(self) -> Iterator[None]:
        if self._given_up:
            raise UnusableWriterError(f"{self._prefix} files were given up: an earlier write failed")
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
        """Write the footer and close; the file's size.

        Raises:
            OSError: it is not what was written.
        """
        assert self._writer is not None  # noqa: S101 - `_close` looked
        self._writer.close()
        size: int = self._stream.tell()
        self._stream.close()
        footer = self._footers[0] if self._footers else None
        stored = size if self._folder is None else (self._folder / self._name).stat().st_size
        if footer is None or footer.num_rows != self._statistics.rows or stored != size:
            raise OSError(f"{self._name} was not written whole: {stored} of {size} bytes")
        return size


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
