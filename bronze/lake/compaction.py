"""Small files joined to larger ones, by the process that writes the table.

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

What keeps a table that is committed to twice a second fast to open after days.

Each commit leaves a log entry, 170,000 a day, and each compaction (`bronze.lake.compaction`) leaves the small
files that it joined. Entries before the newest checkpoint say nothing that the checkpoint does not, and the
joined files are named by older versions alone. After `KEPT` neither is needed: a process that reads bronze
reads one version to its end, and no cut names an older one. So they are removed.

Why it is safe:

* Rows are never removed, whoever has read them: a joined file's rows stand in the file that replaced it.
* Only files that the log says were removed are deleted (Delta calls that a *lite* vacuum). No version names
  those of a transaction that is still open or of a snapshot under way yet, so they stay, however old they
  are.
* Entries are removed only before a checkpoint, which holds the marks (`bronze.store.contract`) too. A crash
  in the middle leaves some for the next time.
* VACUUM commits two entries without rows. They are on disk when `tidy` returns, as any other commit: a torn
  entry that the next commit follows could not be set aside (`bronze.lake.torn_log`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.catalog.amend import amend
from deltasmelt.bronze.lake.catalog.table import CatalogTable
from deltasmelt.bronze.lake.client import AddAction, CommitFailedError, RemoveAction, Transaction
from deltasmelt.bronze.lake.delta import nothing_besides, sorted_by
from deltasmelt.bronze.lake.durability import flush_after
from deltasmelt.bronze.lake.parquet import HELD_BYTES, PartWriter, delete_files, file_system, open_whole
from deltasmelt.bronze.lake.place import is_named
from deltasmelt.bronze.lake.transactions import transaction_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from deltalake import DeltaTable

KEPT: Final = "interval 1 day"
"""How long entries and joined files are kept at least."""
RETENTION: Final = {"delta.logRetentionDuration": KEPT, "delta.deletedFileRetentionDuration": KEPT}
"""Properties of a table that `tidy` goes by; Delta's own are 30 days and a week."""


def tidy(table: DeltaTable, *, retention_hours: int | None = None) -> None:
    """Remove log entries and joined files that are past their time.

    Args:
        table: its handle is at the newest version before the call; afterwards the log may have newer ones.
        retention_hours: for joined files, instead of the table's own.

    Raises:
        DeltaError, OSError: the lake cannot be written.
    """
    if is_named(table.table_uri):
        return  # the catalog's own affair, or `smelt maintain`'s

    def clean() -> None:
        table.cleanup_metadata()
        table.vacuum(
            retention_hours,
            dry_run=False,
            enforce_retention_duration=retention_hours is None,
            full=False,
            post_commithook_properties=nothing_besides(),
        )

    before = table.version()
    perform(Effect.CLEAN, table.table_uri, clean)
    flush_after(table.table_uri, before)


COMPACTION_APP: Final = "deltasmelt.compaction"
COMPACT_ABOVE: Final = 200
"""Files of one small table above which its writer joins them."""
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
    table: DeltaTable,
    schema: pa.Schema,
    *,
    many: int,
    prefix: str = "",
    measured: Sequence[str] = (),
    repeating: Sequence[str] = (),
    owner: Transaction | None = None,
) -> bool:
    """Join the files of one size class, if it has many; whether that was done.

    Args:
        table: its handle is brought to the newest version.
        schema: of its rows.
        many: files of one class that are worth joining.
        prefix: of the names of files that may be joined, and of the new ones.
        measured: columns whose least and greatest values go into the statistics; the first orders the files.
        repeating: columns that get a dictionary.
        owner: a mark that must stand as it is; who sets another one removes files that no version names.
    """
    version = delta.refresh(table)
    if is_named(table.table_uri):  # OPTIMIZE joins them there
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
    table: DeltaTable,
    changed: Mapping[str, pa.Table],
    schema: pa.Schema,
    *,
    as_of: int,
    before: Mapping[str, pa.Table],
) -> bool:
    """Write files again with other rows, in one commit; whether that was done, or must be tried again.

    Args:
        table: its handle is brought to the newest version.
        changed: by file, the rows that it is to have instead: the same, some of them changed; or fewer.
        schema: of the rows.
        as_of: the version in which the files were read.
        before: by file, at least its rows as they were read.
    """
    if isinstance(table, CatalogTable):
        return _rewrite_named(table, changed, before)
    sizes = {path: size for path, size in _sizes(table).items() if path in changed}
    writer = PartWriter(table.table_uri, "part", schema=schema)
    for rows in changed.values():
        writer.write(rows)
    added = writer.finish()
    removed = [_removal(path, size, data_change=True) for path, size in sizes.items()]
    if len(removed) < len(changed) or not _replace(table, [*removed, *added], schema, as_of=as_of):
        delete_files(table.table_uri, [action.path for action in added])
        return False
    return True


def _rewrite_named(
    table: CatalogTable, changed: Mapping[str, pa.Table], before: Mapping[str, pa.Table]
) -> bool:
    """A catalog's table has no files of ours: its rows are changed in place (`bronze.lake.catalog.amend`)."""
    try:
        for path, rows in changed.items():
            amend(table.table_uri, before[path], rows)
    except CommitFailedError:
        return False
    finally:
        table.update_incremental()
    return True


def _sizes(table: DeltaTable) -> dict[str, int]:
    actions = _actions(table)
    return dict(zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True))


def _removal(path: str, size: int, *, data_change: bool) -> RemoveAction:
    now = int(time.time() * 1000)
    return RemoveAction(path, data_change=data_change, deletion_timestamp=now, size=size)


def _replace(
    table: DeltaTable,
    actions: Sequence[AddAction | RemoveAction],
    schema: pa.Schema,
    *,
    as_of: int,
    owner: Transaction | None = None,
) -> bool:
    """Commit files in place of others, durably; whether that was done.

    It is not done where one that is to go has gone, or where another rewrite came about meanwhile, or another
    owner.

    Args:
        table: its handle is at the newest version afterwards.
        actions: what goes, what comes.
        schema: of the rows.
        as_of: the version whose rows the new files hold.
        owner: see `compact`.
    """
    before = delta.refresh(table)
    going = {action.path for action in actions if isinstance(action, RemoveAction)}
    if not going <= set(delta.paths_of(table)):
        return False
    if (transaction_version(table, COMPACTION_APP) or 0) >= as_of:
        return False
    if owner is not None and transaction_version(table, owner.app_id) != owner.version:
        return False
    marks = [Transaction(COMPACTION_APP, as_of), *([owner] if owner else [])]
    try:
        delta.commit(table, actions, schema, marks)
    except CommitFailedError:
        # A store whose answer was lost is asked again, and then refuses: the entry is there, and it is ours.
        delta.refresh(table)
        coming = {action.path for action in actions if isinstance(action, AddAction)}
        if not coming or not coming <= set(delta.paths_of(table)):
            return False
    delta.settle(table, before)
    return True


def small_files(table: DeltaTable, *, many: int, prefix: str, order: str | None) -> list[SmallFile]:
    """The files of the first size class that has many, up to a sum that one pass should rewrite.

    Empty if none has.
    """
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


def _actions(table: DeltaTable) -> pa.Table:
    return pa.table(table.get_add_actions(flatten=True))


def _row_groups(table: DeltaTable, files: Sequence[SmallFile], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of files in order, small row groups joined to larger ones."""
    waiting: list[pa.Table] = []
    size = 0
    for small in files:
        with _opened(table.table_uri, small) as file, pq.ParquetFile(file) as parquet:
            for group in range(parquet.num_row_groups):
                rows = conform(_read(parquet, group, f"{table.table_uri}/{small.path}"), schema)
                waiting.append(rows)
                size += rows.nbytes
                if size >= _ROW_GROUP_BYTES:
                    yield pa.concat_tables(waiting)
                    waiting, size = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _opened(uri: str, file: SmallFile) -> pa.NativeFile:
    """The whole at once where it is no more than a writer holds."""
    if file.size <= HELD_BYTES:
        return open_whole(uri, file.path)
    return file_system(uri).open_input_file(file.path)


def _read(parquet: pq.ParquetFile, group: int, where: str) -> pa.Table:
    return perform(Effect.READ_FILE, where, lambda: parquet.read_row_group(group))


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows in a schema; what an earlier release did not write, also inside of structs, is NULL.

    Columns that are missing are added as a whole. Rows go through Python only where a struct differs inside.
    """
    for field in schema:
        if field.name not in rows.column_names:
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    try:
        return rows.select(schema.names).cast(schema)
    except (ValueError, pa.ArrowException):
        return pa.Table.from_pylist(rows.to_pylist(), schema=schema)
