"""Rows of some files of `bronze.changes`, in commit order and in bounded memory.

**Order.** Each file of the stream has its rows in the order of (`commit_lsn`, `seq`): the reader writes them
in this order, and a compaction joins files in the order of their first LSNs. Two files may still overlap: a
compaction joins small files from before and after a larger file. So the files are merged. Only files that
overlap the present place are open, and each of these holds one batch of rows, smaller for wide rows.

**Bounds.** A file opens when the merge reaches the file's first LSN by its statistics, and row groups before
the first wanted row are skipped by theirs. Without statistics, a file opens at once, and nothing is skipped.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow.parquet as pq

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.lake.parquet import open_file

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

_Head: TypeAlias = "tuple[Place, int, pa.RecordBatch | None]"


def in_order(
    uri: str, files: Sequence[ChangesFile], columns: Sequence[str], *, after: Place
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files after a place, in the order of (`commit_lsn`, `seq`), without empty batches.

    `columns` must contain `commit_lsn` and `seq`.

    Raises:
        OSError, ArrowException: a file cannot be read.
    """
    # An unopened file stands at a place before its first row.
    heap: list[_Head] = [((int(file.first or 0), -1), at, None) for at, file in enumerate(files)]
    readers = [file_rows(uri, file, columns, after=after) for file in files]
    heapq.heapify(heap)
    while heap:
        _, at, batch = heapq.heappop(heap)
        if batch is None:
            batch = next(readers[at], None)
            if batch is not None:
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


def rows_before(batch: pa.RecordBatch, place: Place, *, inclusive: bool = False) -> int:
    """Return the number of rows of an ordered batch before a place; `inclusive` counts the place itself."""
    lsn, seq = (batch[name].to_numpy(zero_copy_only=False) for name in ("commit_lsn", "seq"))
    same = seq <= place[1] if inclusive else seq < place[1]
    return int(np.count_nonzero((lsn < place[0]) | ((lsn == place[0]) & same)))


def file_rows(
    uri: str, file: ChangesFile, columns: Sequence[str], *, after: Place = BEGINNING
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one file after a place, in the file's order, without empty batches.

    Raises:
        OSError, ArrowException: the file cannot be read.
    """
    where = f"{uri}/{file.path}"
    opened = perform(Effect.READ_FILE, where, lambda: open_file(uri, file.path, file.size))
    with opened, pq.ParquetFile(opened) as parquet:
        batches = parquet.iter_batches(
            _batch_rows(parquet.metadata), row_groups=_groups(parquet.metadata, after), columns=list(columns)
        )
        while (batch := perform(Effect.READ_FILE, where, lambda: next(batches, None))) is not None:
            passed = rows_before(batch, after, inclusive=True)
            if passed < batch.num_rows:
                yield batch.slice(passed)


def _batch_rows(footer: pq.FileMetaData) -> int:
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    widest = max((group.total_byte_size / max(group.num_rows, 1) for group in groups), default=1.0)
    return max(1, min(BATCH_ROWS, int(_BATCH_BYTES / max(widest, 1.0))))


def _groups(footer: pq.FileMetaData, after: Place) -> list[int]:
    """Return the row groups that may hold rows at or after the LSN of a place."""
    column = next(
        (at for at in range(footer.num_columns) if footer.schema.column(at).path == "commit_lsn"), None
    )
    groups = range(footer.num_row_groups)
    if column is None:
        return list(groups)
    statistics = {group: footer.row_group(group).column(column).statistics for group in groups}
    return [
        group
        for group, found in statistics.items()
        if found is None or not found.has_min_max or found.max >= after[0]
    ]
