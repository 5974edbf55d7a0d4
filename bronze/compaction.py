"""Small files joined to larger ones, by whoever writes the table.

A commit every half second would leave 170,000 files a day: readers would pay for each, and the writer's own
handle, which holds their names, would grow without end. So the writer looks now and then whether one size
class has many files, and joins them. Classes grow by a factor: a row is rewritten a few times at most, and
each class keeps about as many files as it had.

Why it is safe: the rewrite is one Delta commit that removes the old names and adds the new ones with
``dataChange = false``, which append-only tables allow. Older versions still name the old files, which stay
until vacuum. A crash in the middle leaves a file that no version names.

delta-rs (1.6.6) does not notice at the commit that another compaction removed the very files which this one
rewrites; its own ``optimize.compact`` doubles their rows then. It does notice, in `create_write_transaction`,
an application id that was written since the handle's version. So each compaction of ours carries one, and of
two at once only one comes about. Against other tools the files are looked up again right before the commit; a
pause of milliseconds remains, so no other tool should compact these tables while their writer runs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import RemoveAction

from bronze.delta import ordered
from bronze.parts import PartWriter, file_system

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalake import DeltaTable

COMPACTION_APP: Final = "deltasmelt.compaction"

_CLASSES: Final = (1024 * 1024, 8 * 1024 * 1024, 64 * 1024 * 1024)
"""Upper bounds of the size classes, in bytes of file; larger files are left alone."""

_MOST_BYTES: Final = 128 * 1024 * 1024
_ROW_GROUP_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SmallFile:
    """A file that should be joined with others."""

    path: str
    size: int


def compact(
    table: DeltaTable, schema: pa.Schema, *, many: int, prefix: str = "", measured: Sequence[str] = ()
) -> bool:
    """Join the files of one size class, if it has many; whether that was done.

    Args:
        table: its handle is brought to the newest version.
        schema: of its rows.
        many: files of one class that are worth joining.
        prefix: of the names of files that may be joined, and of the new ones.
        measured: columns whose least and greatest values go into the statistics; the first orders the files.
    """
    table.update_incremental()
    version = table.version()
    chosen = small_files(table, many=many, prefix=prefix, order=measured[0] if measured else None)
    if not chosen:
        return False
    writer = PartWriter(table.table_uri, prefix or "part", schema=schema, measured=measured)
    for rows in _row_groups(table.table_uri, [file.path for file in chosen], schema):
        writer.write(rows)
    added = [replace(action, data_change=False) for action in writer.finish()]
    now = int(time.time() * 1000)
    removed = [
        RemoveAction(file.path, data_change=False, deletion_timestamp=now, size=file.size) for file in chosen
    ]
    table.update_incremental()
    if not {file.path for file in chosen} <= set(_actions(table)["path"].to_pylist()):
        return False
    if (table.transaction_version(COMPACTION_APP) or 0) >= version:
        return False
    try:
        table.create_write_transaction(
            [*removed, *added],
            mode="append",
            schema=schema,
            commit_properties=CommitProperties(app_transactions=[Transaction(COMPACTION_APP, version)]),
        )
    except CommitFailedError:
        return False
    finally:
        table.update_incremental()
    return True


def small_files(table: DeltaTable, *, many: int, prefix: str, order: str | None) -> list[SmallFile]:
    """The files of the first size class that has many, up to a sum that one pass should rewrite.

    Empty if none has.
    """
    actions = _actions(table)
    if order is not None and f"min.{order}" in actions.column_names:
        actions = ordered(actions, f"min.{order}")
    files = [
        SmallFile(path, size)
        for path, size in zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True)
        if path.startswith(prefix)
    ]
    for lower, upper in zip((0, *_CLASSES), _CLASSES, strict=False):
        of_class = [file for file in files if lower <= file.size < upper]
        if len(of_class) >= many:
            return _first(of_class, _MOST_BYTES)
    return []


def _first(files: Sequence[SmallFile], most_bytes: int) -> list[SmallFile]:
    chosen: list[SmallFile] = []
    total = 0
    for file in files:
        total += file.size
        if total > most_bytes and len(chosen) > 1:
            break
        chosen.append(file)
    return chosen


def _actions(table: DeltaTable) -> pa.Table:
    return pa.table(table.get_add_actions(flatten=True))


def _row_groups(uri: str, paths: Sequence[str], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of files in order, small row groups joined to larger ones."""
    system = file_system(uri)
    waiting: list[pa.Table] = []
    size = 0
    for path in paths:
        with system.open_input_file(path) as file, pq.ParquetFile(file) as parquet:
            for group in range(parquet.num_row_groups):
                rows = parquet.read_row_group(group).cast(schema)
                waiting.append(rows)
                size += rows.nbytes
                if size >= _ROW_GROUP_BYTES:
                    yield pa.concat_tables(waiting)
                    waiting, size = [], 0
    if waiting:
        yield pa.concat_tables(waiting)
