"""Commit of staged files as rows of a catalog's table; the files are removed after the commit.

A transaction of any size becomes one commit, and the process never holds all rows in memory. Rows that fit
into memory are sent to Spark directly; of more rows, Spark's tasks read the files themselves if the tasks run
on this machine. Otherwise the process sends the rows piece by piece into a temporary table (`.scratch`), the
source of the commit. After a kill only the temporary table remains, and a later commit of this kind drops the
table after a day.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from deltasmelt.bronze.lake.catalog import commits
from deltasmelt.bronze.lake.catalog.scratch import NUMBERED, remove, remove_left
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.parquet import delete_files, open_whole
from deltasmelt.bronze.lake.place import catalog_of, parts_of, scratch_name
from deltasmelt.bronze.lake.staging import aside

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltasmelt.bronze.lake.client import AddAction, RemoveAction, Transaction
    from deltasmelt.bronze.lake.table import Table

PURPOSE: Final = "landing"
# Size in memory of the rows that are sent at once, whether from many files or from part of a file.
_PIECE_BYTES: Final = 64 * 1024 * 1024


def append_written(
    table: Table,
    actions: Sequence[AddAction | RemoveAction],
    schema: pa.Schema,
    marks: Sequence[Transaction],
) -> None:
    """Append the rows of files in one commit, with marks.

    Raises:
        CommitFailedError: one of the marks' ids was written since the handle's version.
        OSError: Spark cannot write; whether the commit succeeded is then unknown.
    """
    uri, paths = table.table_uri, [action.path for action in actions]
    said = {mark.app_id: mark.version for mark in marks}
    rows = _held(uri, paths, schema)
    if rows is not None:
        commits.append(table, rows, said)
    elif commits.sees_local_files(uri):
        commits.append_files(table, [aside(uri) / path for path in paths], said)
    else:
        _append_in_pieces(table, paths, schema, said)
    delete_files(uri, paths)


def _held(uri: str, paths: Sequence[str], schema: pa.Schema) -> pa.Table | None:
    """Return all rows of the files if they fit into memory, else None."""
    held, size = [commits.plain(schema.empty_table())], 0
    for rows in _row_groups(uri, paths):
        held.append(rows)
        size += rows.nbytes
        # A file's size on disk does not reveal the size in memory, because the file stores equal texts once.
        if size > _PIECE_BYTES:
            return None
    return pa.concat_tables(held)


def _append_in_pieces(table: Table, paths: Sequence[str], schema: pa.Schema, marks: dict[str, int]) -> None:
    catalog, (_, layer, name) = catalog_of(table.table_uri), parts_of(table.table_uri)
    lake = Lake(catalog=catalog.name, known=catalog)
    remove_left(lake, PURPOSE)
    purpose = PURPOSE + uuid.uuid4().hex[:NUMBERED]
    beside = catalog.table(*scratch_name(purpose, layer, name))
    try:
        commits.create(beside, schema, "", {})
        for piece in _pieces(table.table_uri, paths):
            commits.extend(beside, piece)
        commits.append_rows_of(table, beside, marks)
    finally:
        with suppress(OSError):  # the table stays for a day, as after a kill
            remove(lake.scratch_for(purpose))


def _pieces(uri: str, paths: Sequence[str]) -> Iterator[pa.Table]:
    """Yield all rows of the files in pieces of bounded size."""
    held: list[pa.Table] = []
    for rows in _row_groups(uri, paths):
        held.append(rows)
        if sum(one.nbytes for one in held) >= _PIECE_BYTES:
            yield pa.concat_tables(held)
            held = []
    if held:
        yield pa.concat_tables(held)


def _row_groups(uri: str, paths: Sequence[str]) -> Iterator[pa.Table]:
    for path in paths:
        with open_whole(uri, path) as file, pq.ParquetFile(file) as parquet:
            for number in range(parquet.num_row_groups):
                yield commits.plain(parquet.read_row_group(number))
