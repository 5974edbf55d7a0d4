"""Compaction and cleaning: a table with two commits a second stays fast to open for days.

A commit every half second would leave 170,000 files and log entries a day. Every reader would pay for each
file, and the writer's own handle, which holds all names, would grow without bound.

**Compaction.** The table's writer joins the files of a size class with many files (`compact`), in one Delta
commit with ``dataChange = false``, as append-only tables permit. Older versions still name the old files,
which stay until vacuum. A crash in the middle leaves a file that no version names. Every compaction of this
project sets a mark, so only one of two concurrent compactions succeeds. No foreign tool should compact these
tables while their writer runs.

**Cleaning.** `Table.tidy` removes log entries before the newest checkpoint, which repeats their content and
marks (`bronze.store.contract`), and joined files, whose rows the replacing file contains. After a day
(`bronze.lake.delta`) no process needs the entries or files: a reader of bronze has finished with the version
that names them, and no cut names an old version. `tidy` deletes only files that the log records as removed (a
*lite* vacuum in Delta's terms): no version yet names the files of an open transaction or a running snapshot,
so these files stay at any age. A checkpoint forgets removed files after the same day. So a table deletes them
within the hours before, and before a checkpoint (`LogTable.delete_removed`). A crash in the middle leaves
some entries for the next call. `remove_unnamed` removes a small table's files without a commit after a week,
and `remove_uncreated` the files of a table that was never created.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileInfo, FileSelector

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.lake.client import AddAction, CommitFailedError, RemoveAction, Transaction
from deltasmelt.bronze.lake.durability import LOG
from deltasmelt.bronze.lake.parquet import PartWriter, delete_files, file_system, open_file
from deltasmelt.bronze.lake.place import local_folder
from deltasmelt.bronze.lake.table import sorted_by

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from deltasmelt.bronze.lake.table import Table


COMPACTION_APP: Final = "deltasmelt.compaction"
# Number of files above which the writer of a small table joins them.
COMPACT_ABOVE: Final = 200
# Upper bounds of the size classes, in bytes of file; larger files stay unchanged. The bounds grow by a factor
# of 8: a row is rewritten a few times at most, and each class keeps about as many files as before.
_CLASSES: Final = (1024 * 1024, 8 * 1024 * 1024, 64 * 1024 * 1024)
_MOST_BYTES: Final = 128 * 1024 * 1024
# Age at which a file without a commit belongs to a killed process.
_UNNAMED_SECONDS: Final = 7 * 86_400.0
_PREFIXES: Final = ("part-", ".part-")
_ROW_GROUP_BYTES: Final = 8 * 1024 * 1024
_LOGGER: Final = logging.getLogger("deltasmelt.gold")


@dataclass(frozen=True, slots=True)
class SmallFile:
    """A file to join with further files."""

    path: str
    size: int


def compact(
    table: Table,
    schema: pa.Schema,
    *,
    many: int,
    prefix: str = "",
    measured: Sequence[str] = (),
    repeating: Sequence[str] = (),
    owner: Transaction | None = None,
) -> bool:
    """Join the files of one size class with many files; return whether a commit was made.

    Args:
        table: open handle, which the function refreshes to the newest version.
        many: minimum number of files in a class that is worth joining.
        prefix: name prefix of the files to join, and of the new files.
        measured: columns whose minimum and maximum go into the statistics; the first column orders the files.
        owner: a mark that must be unchanged; a process that sets another value removes files that no version
            names.
    """
    version = table.refresh()
    if not table.shows_files:
        return False
    chosen = small_files(table, many=many, prefix=prefix, order=measured[0] if measured else None)
    if not chosen:
        return False
    writer = PartWriter(
        table.table_uri, prefix or "part", schema=schema, measured=measured, repeating=repeating
    )
    try:
        for rows in _row_groups(table, chosen, schema):
            writer.write(rows)
    except BaseException:
        writer.discard()
        raise
    added = [replace(action, data_change=False) for action in writer.finish()]
    removed = [_removal(file.path, file.size, data_change=False) for file in chosen]
    if not _replace(table, [*removed, *added], schema, as_of=version, owner=owner):
        delete_files(table.table_uri, [action.path for action in added])
        return False
    return True


def rewrite(
    table: Table,
    changed: Mapping[str, pa.Table],
    schema: pa.Schema,
    *,
    as_of: int,
    before: Mapping[str, pa.Table],
) -> bool:
    """Replace the rows of files in one commit; return False if the caller must retry.

    Args:
        table: open handle, which the function refreshes to the newest version.
        changed: new rows by file: the old rows with some values changed, or fewer rows.
        as_of: version at which the caller read the files.
        before: by file, at least the file's rows as the caller read them.
    """
    amended = table.amend(changed, before)
    if amended is not None:
        return amended
    writer = PartWriter(table.table_uri, "part", schema=schema)
    for rows in changed.values():
        writer.write(rows)
    return exchange(table, changed, writer.finish(), schema, as_of=as_of)


def exchange(
    table: Table, paths: Collection[str], added: Sequence[AddAction], schema: pa.Schema, *, as_of: int
) -> bool:
    """Replace files by complete new files in one commit; after a refusal remove the new files.

    `as_of` is the version at which the caller read the files; False: the caller must retry.
    """
    removed = [
        _removal(path, size, data_change=True) for path, size in _sizes(table).items() if path in paths
    ]
    if len(removed) < len(paths) or not _replace(table, [*removed, *added], schema, as_of=as_of):
        delete_files(table.table_uri, [action.path for action in added])
        return False
    return True


def remove_files(
    table: Table,
    paths: Collection[str],
    schema: pa.Schema,
    *,
    properties: Mapping[str, str],
    owner: Transaction | None = None,
) -> bool:
    """Remove files with their rows in one commit without new files; return whether the commit was made.

    A table that permits only appends first loses this property: Delta refuses the removal otherwise.

    Args:
        table: open handle, which the function refreshes to the newest version.
        properties: what the table states from the first removal on.
        owner: a mark that must be unchanged, as in `compact`.
    """
    table.refresh()
    try:
        table.permit_removals(properties)
    except CommitFailedError:  # another process has committed: the caller tries again
        return False
    version = table.version()
    removed = [
        _removal(path, size, data_change=True) for path, size in _sizes(table).items() if path in paths
    ]
    return bool(removed) and _replace(table, removed, schema, as_of=version, owner=owner)


def _sizes(table: Table) -> dict[str, int]:
    actions = _actions(table)
    return dict(zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True))


def _removal(path: str, size: int, *, data_change: bool) -> RemoveAction:
    now = int(time.time() * 1000)
    return RemoveAction(path, data_change=data_change, deletion_timestamp=now, size=size)


def _replace(
    table: Table,
    actions: Sequence[AddAction | RemoveAction],
    schema: pa.Schema,
    *,
    as_of: int,
    owner: Transaction | None = None,
) -> bool:
    """Replace files in one durable commit; return whether the commit was made.

    No commit is made if a file to remove is already absent, after another rewrite, or after a change of
    owner. `as_of` is the version whose rows the new files contain; `table` is at the newest version
    afterwards.
    """
    before = table.refresh()
    going = {action.path for action in actions if isinstance(action, RemoveAction)}
    # A foreign tool may have compacted these files. A gap of milliseconds remains until the commit.
    if not going <= set(table.paths()):
        return False
    # delta-rs 1.6.6 does not notice at the commit that a concurrent compaction removed the same files; its
    # own ``optimize.compact`` then duplicates their rows. delta-rs does notice, in
    # `create_write_transaction`, an application id that was written since the handle's version. The mark of
    # each compaction is such an id.
    if (table.transaction_version(COMPACTION_APP) or 0) >= as_of:
        return False
    if owner is not None and table.transaction_version(owner.app_id) != owner.version:
        return False
    marks = [Transaction(COMPACTION_APP, as_of), *([owner] if owner else [])]
    try:
        table.commit(actions, schema, marks)
    except CommitFailedError:
        # After a lost answer the client retries, and the store rejects: the entry exists and is our own.
        table.refresh()
        coming = {action.path for action in actions if isinstance(action, AddAction)}
        if not coming or not coming <= set(table.paths()):
            return False
    table.settle(before)
    return True


def remove_unnamed(table: Table) -> None:
    """Remove files that a killed process wrote before a commit which never came (`PartWriter`).

    A small table is written in one step: rows, then at once the commit. A commit whose answer was lost may
    come late, but not after `_UNNAMED_SECONDS`. `bronze.changes` has other names and a rule of its own
    (`bronze.store.changes_table.remove_leftovers`), because its files may wait for a long transaction's end.
    """
    if not table.shows_files:
        return
    old = _old_files(_entries(table.table_uri)) - set(table.paths())
    if old:
        delete_files(table.table_uri, sorted(old - set(table.removed_files())))


def remove_uncreated(uri: str) -> None:
    """Remove old files of attempts to create a table that failed, as of a document whose first build fails.

    Each attempt leaves its files, and gold makes an attempt every ten minutes. Spark has written them if the
    folder has a log without entries, and nothing else: Delta makes the log's folder first. Any other folder
    stays as it is, for example a plain Parquet table of another program. Younger files stay, too
    (`_UNNAMED_SECONDS`): another process may be creating the table.

    In a store the files stay: Delta leaves no empty log there, so another program's files look the same.
    """
    if local_folder(uri) is None:
        return
    entries = _entries(uri)
    logs = [entry for entry in entries if entry.base_name == LOG and not entry.is_file]
    others = [entry for entry in entries if not entry.base_name.startswith((*_PREFIXES, LOG))]
    if not logs or others or any(entry.is_file for entry in _entries(uri, LOG)):
        return
    old = _old_files(entries)
    if old:
        _LOGGER.info("%s: %d old files of failed attempts to create the table are removed", uri, len(old))
    try:
        delete_files(uri, sorted(old))
    except OSError as error:
        # The creation itself needs no room, and reports what this place refuses.
        _LOGGER.warning("%s: files of failed attempts could not be removed: %s", uri, error)


def _old_files(entries: list[FileInfo]) -> set[str]:
    """Return the names of data files, and of their checksums, that no open commit can name any more."""
    times = {entry.base_name: entry.mtime.timestamp() for entry in entries if entry.is_file and entry.mtime}
    # The clock that stamps the files counts: this machine's may be days ahead.
    until = min(time.time(), max(times.values(), default=0.0)) - _UNNAMED_SECONDS
    return {name for name, written in times.items() if name.startswith(_PREFIXES) and written < until}


def _entries(uri: str, folder: str = "") -> list[FileInfo]:
    selector = FileSelector(folder, allow_not_found=True, recursive=folder == LOG)
    return perform(Effect.LIST_FILES, uri, lambda: file_system(uri).get_file_info(selector))


def small_files(table: Table, *, many: int, prefix: str, order: str | None) -> list[SmallFile]:
    """Return files of the first size class with many files, up to a total size for one pass."""
    actions = _actions(table)
    if order is not None and f"min.{order}" in actions.column_names:
        actions = sorted_by(actions, f"min.{order}")
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


def _actions(table: Table) -> pa.Table:
    return pa.table(table.get_add_actions(flatten=True))


def _row_groups(table: Table, files: Sequence[SmallFile], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of files in order, with small row groups joined to larger row groups."""
    waiting: list[pa.Table] = []
    size = 0
    for small in files:
        with open_file(table.table_uri, small.path, small.size) as file, pq.ParquetFile(file) as parquet:
            for group in range(parquet.num_row_groups):
                rows = conform(_read(parquet, group, f"{table.table_uri}/{small.path}"), schema)
                waiting.append(rows)
                size += rows.nbytes
                if size >= _ROW_GROUP_BYTES:
                    yield pa.concat_tables(waiting)
                    waiting, size = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _read(parquet: pq.ParquetFile, group: int, where: str) -> pa.Table:
    return perform(Effect.READ_FILE, where, lambda: parquet.read_row_group(group))


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows in a schema; fields that an earlier release did not write (also in structs) are NULL."""
    for field in schema:
        if field.name not in rows.column_names:
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    try:
        return rows.select(schema.names).cast(schema)
    except (ValueError, pa.ArrowException):
        # Through Python only if a struct differs inside.
        return pa.Table.from_pylist(rows.to_pylist(), schema=schema)
