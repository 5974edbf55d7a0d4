"""Delta tables through `deltalake`: created on first use by any process, appended to with retries.

**Concurrency.** Appends never conflict in Delta. Only the number of the log entry can collide, or a
concurrent update of another process can conflict. The commit is then retried on the newer version. If two
processes create a table at the same moment, only one succeeds. The second process gets "already exists" (or
loses the race for version 0) and opens the table. Both operations may be repeated safely: nothing is visible
before the log entry exists.

**Order.** Every commit of bronze has three steps: files on disk, `commit`, `settle`. Only after `settle` may
a process act on the commit (`bronze.lake.durability`). In an object store this project writes the usual entry
directly, to save requests (`bronze.lake.entries`).

**Failed calls.** After a failed call, whether the commit succeeded is unknown. The caller keeps the files
that the commit names, and reads the table before any retry. Only a rejection (`CommitFailedError`) proves
that the commit did not happen.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Final, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deltasmelt.bronze.backoff import tried_again
from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.lake import durability
from deltasmelt.bronze.lake.catalog import commits as named
from deltasmelt.bronze.lake.catalog.sql import MADE_PROPERTY, make_schema, require_ours
from deltasmelt.bronze.lake.catalog.table import CatalogTable
from deltasmelt.bronze.lake.client import CommitFailedError, DeltaError, TableNotFoundError
from deltasmelt.bronze.lake.named_files import append_written
from deltasmelt.bronze.lake.parquet import PartWriter, delete_files, open_whole
from deltasmelt.bronze.lake.place import is_named, local_folder, options_of
from deltasmelt.bronze.lake.torn_log import ACTIONS_KEY, DERIVED, set_torn_aside
from deltasmelt.bronze.lake.transactions import expect_marks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from deltalake import DeltaTable, PostCommitHookProperties

    from deltasmelt.bronze.lake.client import AddAction, RemoveAction, Transaction
    from deltasmelt.bronze.lake.location import Lake, Layer
    from deltasmelt.bronze.lake.place import Location


CHECKPOINT_INTERVAL: Final = 50
"""Versions of a table between two checkpoints."""
_LOG_OF_NAMED: Final = "interval 30 days"
"""Log retention of a catalog's table; the log holds the marks, which are restated long before."""
CHECKPOINT_INTERVAL_IN_STORES: Final = 10
"""Versions between two checkpoints in a store: opening a table requests each entry since then."""
retry_conflict = tried_again(CommitFailedError, attempts=10, first=0.02, longest=1.0)
"""Retries a function after another writer took the wanted version."""


def nothing_besides() -> PostCommitHookProperties:
    """Return hooks that do nothing after a commit.

    `settle` makes checkpoints, and `bronze.lake.compaction` removes old entries.
    """
    from deltalake import PostCommitHookProperties  # noqa: PLC0415 - a lake in a catalog needs none

    return PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def location(lake: Lake, layer: Layer, name: str) -> Location:
    """Return the location of a table for `open_table`."""
    return lake.uri(layer, name)


def open_table(uri: str) -> DeltaTable | None:
    """Return the table at its newest version; None if the table is absent."""
    try:
        return open_existing(uri)
    except TableNotFoundError:
        return None


def open_existing(uri: str) -> DeltaTable:
    """Return the table at its newest version; for bronze and control without a torn last entry.

    Delta accepts an empty entry, and an entry that ends after a complete line. A handle that had read such an
    entry would never read the later commit of equal number.

    Raises:
        TableNotFoundError: the table is absent.
        DefiniteError: ``log-entry-torn``: later entries follow a torn entry.
        DeltaError, OSError: the table cannot be read.
        TransientError: ``log-entry-torn``: the table belongs to silver or gold, whose writer sets the entry
            aside.
    """
    folder = local_folder(uri)
    writes = folder is None or folder.parent.name not in DERIVED
    if writes:
        set_torn_aside(uri, thorough=False)
    try:
        return open_at(uri, None)
    except TableNotFoundError:
        raise
    except DeltaError as error:
        if not set_torn_aside(uri, writes=writes):
            error.add_note(f"the table {uri} cannot be opened")  # deltalake's message names no file
            raise
    return open_at(uri, None)


def open_at(uri: str, version: int | None) -> DeltaTable:
    """Return the table at a version, or at the newest version.

    Raises:
        TableNotFoundError: the table is absent.
        DeltaError, OSError: the table cannot be read, or the version is missing.
    """

    def opened() -> DeltaTable:
        if is_named(uri):
            return cast("DeltaTable", CatalogTable(uri, version))
        return _handles()(uri, version, storage_options=options_of(uri))

    return perform(Effect.OPEN_TABLE, uri, opened)


@cache
def _handles() -> type[DeltaTable]:
    from deltalake import DeltaTable  # noqa: PLC0415 - a lake in a catalog needs none

    class Handle(DeltaTable):
        """A handle that keeps the location at which it was opened, with the location's place."""

        def __init__(self, uri: str, version: int | None, storage_options: dict[str, str] | None) -> None:
            super().__init__(uri, version, storage_options=storage_options)
            self._location = uri

        @property
        def table_uri(self) -> str:
            """Location of the table; `deltalake` would rebuild the location as plain text."""
            return self._location

    return Handle


def open_or_create(
    uri: str, schema: pa.Schema, *, description: str, properties: Mapping[str, str] | None = None
) -> DeltaTable:
    """Return the table for writing; create an absent table, safely against a concurrent process.

    All log entries are on disk when this returns, whichever process wrote them.

    Raises:
        DefiniteError: ``catalog-name-taken``: the catalog has a foreign table of the same name.
    """
    set_torn_aside(uri)
    table = open_table(uri)
    if table is None:
        _create(uri, schema, description, dict(properties or {}))
        table = open_existing(uri)
    if is_named(uri):
        require_ours(uri, table.metadata().configuration)
    durability.flush_log(uri, table.version())
    return table


def _create(uri: str, schema: pa.Schema, description: str, properties: dict[str, str | None]) -> None:
    """Create a table, unless another process creates the table at the same moment."""
    if is_named(uri):
        said = {
            **{name: value for name, value in properties.items() if value is not None},
            MADE_PROPERTY: "true",
            "delta.logRetentionDuration": _LOG_OF_NAMED,
        }
        perform(Effect.CREATE_TABLE, uri, lambda: named.create(uri, schema, description, said))
        return

    def create(where: str) -> None:
        from deltalake import DeltaTable  # noqa: PLC0415 - a lake in a catalog needs none

        DeltaTable.create(
            where,
            schema=schema,
            mode="error",
            description=description,
            configuration=properties,
            raise_if_key_not_exists=False,  # Delta does not know this project's properties
            storage_options=options_of(where),
        )

    folder = local_folder(uri)
    if folder is not None:
        durability.make_whole(uri, folder, create)
        return
    try:
        perform(Effect.CREATE_TABLE, uri, lambda: create(uri))
    except DeltaError:
        if open_table(uri) is None:  # no other process made the table
            raise


def make_room(uri: str) -> None:
    """Create the prerequisites of a table that Spark creates: in a catalog the schema.

    Raises:
        OSError: the catalog refuses.
    """
    if is_named(uri):
        make_schema(uri)


def refresh(table: DeltaTable, *, after: int = -1) -> int:
    """Refresh a handle to the newest version and return this version.

    Args:
        table: open handle of any kind of table.
        after: version after which the caller committed, so a newer version must exist.

    Raises:
        OSError: the store does not show the newer version. The caller cannot flush an invisible commit, and
            must not build upon such a commit.
    """
    perform(Effect.REFRESH, table.table_uri, table.update_incremental)
    version: int = table.version()
    if version <= after:
        raise OSError(f"the store shows version {version} as the newest, although a later one was written")
    return version


def commit(
    table: DeltaTable,
    actions: Sequence[AddAction | RemoveAction],
    schema: pa.Schema,
    marks: Sequence[Transaction] = (),
) -> None:
    """Write one commit; the handle stays at the previous version, and `settle` must still flush the commit.

    Raises:
        CommitFailedError: the commit was rejected, for instance because one of the marks' ids was written
            since the handle's version.
    """
    said = {ACTIONS_KEY: str(len(actions) + len(marks))}

    def write() -> None:
        if isinstance(table, CatalogTable):
            append_written(table, actions, schema, marks)
            return
        if local_folder(table.table_uri) is None:
            from deltasmelt.bronze.lake import entries  # noqa: PLC0415 - a local lake needs no client

            if entries.put_next(table, actions, marks, said):
                expect_marks(table, marks)
                return
        from deltalake import CommitProperties  # noqa: PLC0415 - a lake in a catalog needs none

        table.create_write_transaction(
            list(actions),
            mode="append",
            schema=schema,
            commit_properties=CommitProperties(app_transactions=list(marks), custom_metadata=said),
            post_commithook_properties=nothing_besides(),
        )

    perform(Effect.COMMIT, table.table_uri, write)


def put_after(table: DeltaTable, actions: Sequence[AddAction], version: int, *, looks: bool) -> bool:
    """Write the log entry after a version in a store, with new files; return False if nothing was written.

    Nothing is written if the entry's number is taken, or if the preceding entry no longer exists.

    Args:
        table: open handle; may be behind, and stays at its version.
        actions: files that the entry adds.
        version: newest version that the caller wrote or saw.
        looks: whether to check that the preceding entry exists; False if the caller wrote it a moment ago.
    """
    from deltasmelt.bronze.lake import entries  # noqa: PLC0415 - a local lake needs no client

    said = {ACTIONS_KEY: str(len(actions))}
    return perform(
        Effect.COMMIT,
        table.table_uri,
        lambda: entries.put_next(table, actions, [], said, after=version, looks=looks),
    )


def settle(table: DeltaTable, before: int) -> None:
    """Refresh the handle after a commit, flush all entries since `before`, and make a checkpoint if due."""
    version = refresh(table, after=before)
    durability.flush_commits(table.table_uri, before, version)
    checkpoint_if_due(table, before)


def checkpoint_if_due(table: DeltaTable, before: int) -> None:
    """Make a checkpoint if the handle's version and an earlier version lie in different intervals.

    Spark makes the checkpoints of a catalog's table.
    """
    if is_named(table.table_uri):
        return
    interval = checkpoint_interval(table.table_uri)
    if table.version() // interval > before // interval:
        durability.checkpoint(table)


def state_marks(table: DeltaTable) -> None:
    """Restate the marks of a catalog's table if the newest commits do not contain all marks.

    Further tables have checkpoints for this purpose. A catalog's history is limited, and opening a table
    first reads only a few commits. Restating is therefore due after a few commits of any writer, and after a
    day. Restating is a commit without rows.
    """
    if isinstance(table, CatalogTable) and table.is_unstated():
        with suppress(CommitFailedError):  # due again after the next commit
            perform(Effect.COMMIT, table.table_uri, table.create_checkpoint)
        refresh(table)


def checkpoint_interval(uri: str) -> int:
    """Return the number of versions between two checkpoints of a table at this location."""
    in_store = local_folder(uri) is None and not is_named(uri)
    return CHECKPOINT_INTERVAL_IN_STORES if in_store else CHECKPOINT_INTERVAL


def paths_of(table: DeltaTable) -> list[str]:
    """Return the paths of the files of the handle's version, relative to the table."""
    return [str(path) for path in pa.table(table.get_add_actions())["path"].to_pylist()]


def read_file(table: DeltaTable, path: str, columns: list[str] | None = None) -> pa.Table:
    """Return all rows of a file of a table without deletion vectors: only `deltalake` writes the table.

    Without `columns` the function returns all columns.
    """

    def read() -> pa.Table:
        if is_named(table.table_uri):
            return cast("CatalogTable", table).rows(columns)
        # Arrow's datasets would do too, but loading them costs 30 MiB, and the reader has no further use.
        with open_whole(table.table_uri, path) as file, pq.ParquetFile(file) as parquet:
            return parquet.read(columns)

    return perform(Effect.READ_FILE, f"{table.table_uri}/{path}", read)


def batches(
    table: DeltaTable, columns: list[str], *, after: tuple[str, int] | None = None, ending: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield some columns of all rows of the handle's version in batches; read a catalog's table at once.

    Args:
        table: open handle of any kind of table.
        columns: names of the columns to read.
        after: a column, and a lower bound of its values; statistics let Arrow skip files below the bound.
        ending: boolean column; the function yields only rows with true.
    """
    column, value = after or ("", 0)
    if isinstance(table, CatalogTable):
        said = ["true", *([f"{column} > {int(value)}"] if column else []), *([ending] if ending else [])]
        yield from table.rows(columns, condition=" AND ".join(said)).to_batches()
        return
    wanted = pc.scalar(True)
    if column:
        wanted &= pc.field(column) > value
    if ending:
        wanted &= pc.field(ending)
    yield from table.to_pyarrow_dataset().to_batches(columns=columns, filter=wanted)


def sorted_by(
    rows: pa.Table, column: str, order: Literal["ascending", "descending"] = "ascending"
) -> pa.Table:
    """Return rows sorted by a column; `Table.sort_by` would load Arrow's query engine, which costs 30 MiB."""
    return rows.take(pc.sort_indices(rows, sort_keys=[(column, order)]))


def append(table: DeltaTable, rows: pa.Table, *, widen: bool = False) -> None:
    """Append rows durably to the newest version in one commit; the handle is then at the new version.

    Args:
        table: open handle of any kind of table.
        rows: rows to append, in the table's schema.
        widen: whether the rows may have fields that a table of an earlier release lacks; the table gets the
            fields.
    """
    if widen:
        refresh(table)
        if pa.schema(table.schema()) != rows.schema:
            _widen(table, rows.schema)
    writer = PartWriter(table.table_uri, "part", schema=rows.schema)
    writer.write(rows)
    append_files(table, writer.finish())


def append_files(table: DeltaTable, parts: Sequence[AddAction]) -> None:
    """Append existing files durably to the newest version in one commit."""
    try:
        before = _append(table, parts)
    except CommitFailedError:  # rejected for good: no commit will name the files
        delete_files(table.table_uri, [part.path for part in parts])
        raise
    settle(table, before)


def overwrite(uri: str, rows: pa.Table) -> None:
    """Replace all rows of a table in one commit; create an absent table.

    A separate statement creates a catalog's table first: a kill in between leaves a table without rows.

    Raises:
        CommitFailedError: another writer was faster.
        DefiniteError: ``catalog-name-taken``, as in `open_or_create`.
    """
    if is_named(uri):
        named.create(uri, rows.schema, "", {MADE_PROPERTY: "true"})
        made = CatalogTable(uri)
        require_ours(uri, made.metadata().configuration)
        named.overwrite(made, rows, {})
        return
    from deltalake import write_deltalake  # noqa: PLC0415 - a lake in a catalog needs none

    perform(
        Effect.COMMIT,
        uri,
        lambda: write_deltalake(uri, rows, mode="overwrite", storage_options=options_of(uri)),
    )


def widen(table: DeltaTable, schema: pa.Schema) -> None:
    """Add the fields of a schema that a table of an earlier release lacks."""
    known = {field.name for field in pa.schema(table.schema())}
    if not known.issuperset(schema.names):
        _widen(table, schema)


@retry_conflict
def _append(table: DeltaTable, parts: Sequence[AddAction]) -> int:
    before = refresh(table)
    commit(table, parts, pa.schema(table.schema()))
    return before


@retry_conflict
def _widen(table: DeltaTable, schema: pa.Schema) -> None:
    before = refresh(table)

    def write() -> None:
        if is_named(table.table_uri):
            there = {column.name for column in pa.schema(table.schema())}
            named.add_columns(table.table_uri, [field for field in schema if field.name not in there])
            return
        from deltalake import write_deltalake  # noqa: PLC0415 - a lake in a catalog needs none

        write_deltalake(
            table,
            schema.empty_table(),
            mode="append",
            schema_mode="merge",
            post_commithook_properties=nothing_besides(),
        )

    perform(Effect.COMMIT, table.table_uri, write)
    settle(table, before)
