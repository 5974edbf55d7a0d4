"""Rows of some files of `bronze.changes`, in commit order and in bounded memory.

**Order.** The reader writes the rows of a file in the order of (`commit_lsn`, `seq`). A compaction joins
whole files, also files that overlap, so a joined file is a sequence of ordered runs. No statistics show the
runs: the positions of all rows do. The runs of all files are merged.

**Bounds.** A file opens when the merge reaches the file's first place by its statistics, and the reading of a
run begins when the merge reaches the run's first row. So only runs that overlap the present place have a
batch of rows in memory, smaller for wide rows, and the parts of a large transaction are open one after
another. Files and row groups that end before the first wanted row are skipped. Without statistics, a file
opens at once, and nothing is skipped.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow.parquet as pq

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.lake.parquet import open_file
from deltasmelt.bronze.lsn import LAST
from deltasmelt.bronze.store.row_groups import groups_from

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from deltasmelt.bronze.store.retention import ChangesFile

Place: TypeAlias = "tuple[int, int]"
"""`commit_lsn` and `seq` of a row."""

BEGINNING: Final = (-1, -1)
"""The place before every row."""

BATCH_ROWS: Final = 500
"""Largest number of rows in a batch."""

_BATCH_BYTES: Final = 16 * 1024 * 1024
"""Size of a batch of wide rows, by the mean width of a row group; one row may be larger."""

_POSITION: Final = ("commit_lsn", "seq")

_Head: TypeAlias = "tuple[Place, int, pa.RecordBatch | None]"


def in_order(
    uri: str, files: Sequence[ChangesFile], columns: Sequence[str], *, after: Place
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files after a place, in the order of (`commit_lsn`, `seq`), without empty batches.

    `columns` must contain `commit_lsn` and `seq`.

    Raises:
        OSError, ArrowException: a file cannot be read.
    """
    unopened = {at: file for at, file in enumerate(files) if _end(file) > after}
    heap: list[_Head] = [(_begin(file), at, None) for at, file in unopened.items()]
    runs: dict[int, Iterator[pa.RecordBatch]] = {}
    numbers = count(len(files))
    heapq.heapify(heap)
    while heap:
        _, at, batch = heapq.heappop(heap)
        if at in unopened:
            for place, rows in _OpenFile.of(uri, unopened.pop(at)).runs(columns, after):
                runs[number := next(numbers)] = rows
                heapq.heappush(heap, (place, number, None))
            continue
        if batch is None:
            batch = next(runs[at], None)
            if batch is None:
                del runs[at]
            else:
                heapq.heappush(heap, (place_of(batch, 0), at, batch))
            continue
        # Two files with the same row would stand still here without the one row.
        length = max(rows_before(batch, heap[0][0]), 1) if heap else batch.num_rows
        yield batch.slice(0, length)
        if length < batch.num_rows:
            heapq.heappush(heap, (place_of(batch, length), at, batch.slice(length)))
        else:
            heapq.heappush(heap, (place_of(batch, -1), at, None))


def place_of(batch: pa.RecordBatch, row: int) -> Place:
    """Return the place of a row; a negative number counts from the end."""
    row %= batch.num_rows
    return batch["commit_lsn"][row].as_py(), batch["seq"][row].as_py()


def rows_before(batch: pa.RecordBatch, place: Place) -> int:
    """Return the number of rows of an ordered batch before a place."""
    lsn, seq = _positions(batch)
    return int(np.count_nonzero((lsn < place[0]) | ((lsn == place[0]) & (seq < place[1]))))


def file_rows(uri: str, file: ChangesFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one file, in the file's order, without empty batches.

    Raises:
        OSError, ArrowException: the file cannot be read.
    """
    opened = _OpenFile.of(uri, file)
    groups = range(opened.parquet.num_row_groups)
    yield from opened.rows(columns, groups, 0, opened.parquet.metadata.num_rows)


def _begin(file: ChangesFile) -> Place:
    """Return a place at or before the first row of a file."""
    return int(file.first or 0), -1 if file.seqs is None else file.seqs[0]


def _end(file: ChangesFile) -> Place:
    """Return a place at or after the last row of a file."""
    return int(LAST if file.last is None else file.last), int(LAST) if file.seqs is None else file.seqs[1]


def _positions(rows: pa.RecordBatch | pa.Table) -> list[np.ndarray[Any, Any]]:
    return [rows[name].to_numpy(zero_copy_only=False) for name in _POSITION]


@dataclass(frozen=True, slots=True)
class _OpenFile:
    """An open file, which closes with its last reader."""

    where: str
    parquet: pq.ParquetFile

    @classmethod
    def of(cls, uri: str, file: ChangesFile) -> _OpenFile:
        """Open a file."""
        where = f"{uri}/{file.path}"
        opened = perform(Effect.READ_FILE, where, lambda: open_file(uri, file.path, file.size))
        return cls(where, pq.ParquetFile(opened))

    def runs(self, columns: Sequence[str], after: Place) -> Iterator[tuple[Place, Iterator[pa.RecordBatch]]]:
        """Yield the ordered runs behind a place: the place of a run's first row, and the run's rows."""
        groups = groups_from(self.parquet.metadata, after[0])
        names = list(_POSITION)
        read = perform(
            Effect.READ_FILE, self.where, lambda: self.parquet.read_row_groups(groups, columns=names)
        )
        lsn, seq = _positions(read)
        falls = (lsn[1:] < lsn[:-1]) | ((lsn[1:] == lsn[:-1]) & (seq[1:] < seq[:-1]))
        passed = (lsn < after[0]) | ((lsn == after[0]) & (seq <= after[1]))
        for start, stop in pairwise([0, *(np.flatnonzero(falls) + 1).tolist(), len(lsn)]):
            first = start + int(np.count_nonzero(passed[start:stop]))
            if first < stop:
                yield (int(lsn[first]), int(seq[first])), self.rows(columns, groups, first, stop)

    def rows(
        self, columns: Sequence[str], groups: Sequence[int], start: int, stop: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of row groups from one number until before another, without empty batches."""
        footer = self.parquet.metadata
        wanted, at, end = [], 0, 0
        for group in groups:
            begin, end = end, end + footer.row_group(group).num_rows
            if end <= start:
                at = end
            elif begin < stop:
                wanted.append(group)
        batches = self.parquet.iter_batches(_batch_rows(footer), row_groups=wanted, columns=list(columns))
        while at < stop and (batch := self._next(batches)) is not None:
            rows = batch.slice(max(start - at, 0), stop - max(start, at))
            at += batch.num_rows
            if rows.num_rows:
                yield rows

    def _next(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        return perform(Effect.READ_FILE, self.where, lambda: next(batches, None))


def _batch_rows(footer: pq.FileMetaData) -> int:
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    widest = max((group.total_byte_size / max(group.num_rows, 1) for group in groups), default=1.0)
    return max(1, min(BATCH_ROWS, int(_BATCH_BYTES / max(widest, 1.0))))
