"""Delta tables through `deltalake`: made on first use by any process, appended to with retries.

Appends never conflict with each other in Delta. What can collide is the log entry's number, or an update of
another process that came between. Then the commit is tried again on the newer version. A table that two
processes create at the same moment is made by one of them; the other one sees "already there" (or a lost race
for version 0) and opens it. Both are safe to repeat: nothing is visible before the log entry exists.

Every commit of bronze goes this way: files on disk, then `commit`, then `settle`, after which it may be acted
on (`bronze.lake.durability`). In an object store we put the usual entry ourselves, for the sake of requests
(`bronze.lake.entries`). Where a call fails, whether the commit came about is not known: files that it names
are not removed then, and the caller looks at the table before it does anything again. Only a refusal
(`CommitFailedError`) says that it did not.
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
"""How long a catalog's table keeps its log, in which marks stand: they are said again long before."""
CHECKPOINT_INTERVAL_IN_STORES: Final = 10
"""The same in an object store, where who opens a table asks for each entry since the checkpoint."""
retry_conflict = tried_again(CommitFailedError, attempts=10, first=0.02, longest=1.0)
"""Run again when another writer took the version that we wanted."""


def nothing_besides() -> PostCommitHookProperties:
    """For every commit: checkpoints are made apart (`settle`), old entries removed apart.

    The latter is `bronze.lake.compaction`'s.
    """
    from deltalake import PostCommitHookProperties  # noqa: PLC0415 - a lake in a catalog needs none

    return PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def location(lake: Lake, layer: Layer, name: str) -> Location:
    """Where a table is found by whoever opens it (`open_table`)."""
    return lake.uri(layer, name)


def open_table(uri: str) -> DeltaTable | None:
    """The table at its newest version, or None where there is none."""
    try:
        return open_existing(uri)
    except TableNotFoundError:
        return None


def open_existing(uri: str) -> DeltaTable:
    """Return the table at its newest version, of bronze or control without a torn entry at the log's end.

    Delta takes an empty entry, and one that breaks off after a line, for whole. A handle that had read the
    entry would never read what the writer commits in its place.

    Raises:
        TableNotFoundError: there is none.
        DefiniteError: ``log-entry-torn``: an entry is torn that others follow.
        DeltaError, OSError: it cannot be read.
        TransientError: ``log-entry-torn``: the table is silver's or gold's, whose writer sets the entry
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
            error.add_note(f"the table {uri} cannot be opened")  # what is said names no file
            raise
    return open_at(uri, None)


def open_at(uri: str, version: int | None) -> DeltaTable:
    """The table at one version, or at the newest.

    Raises:
        TableNotFoundError: there is none.
        DeltaError, OSError: it cannot be read, or the version is gone.
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
        """A handle that knows its table by the location it was opened at, with that location's place."""

        def __init__(self, uri: str, version: int | None, storage_options: dict[str, str] | None) -> None:
            super().__init__(uri, version, storage_options=storage_options)
            self._location = uri

        @property
        def table_uri(self) -> str:
            """The location; `deltalake` would write it anew, as plain text."""
            return self._location

    return Handle


def open_or_create(
    uri: str, schema: pa.Schema, *, description: str, properties: Mapping[str, str] | None = None
) -> DeltaTable:
    """The table, to be written; made first if it is not there; safe against another process doing the same.

    What its log says is on disk when this returns, whichever process wrote it.

    Raises:
        DefiniteError: ``catalog-name-taken``: a catalog has a table of that name that is none of ours.
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
    """Make a table, unless another process does at the same moment."""
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
            raise_if_key_not_exists=False,  # properties of our own are not in Delta's list
            storage_options=options_of(where),
        )

    folder = local_folder(uri)
    if folder is not None:
        durability.make_whole(uri, folder, create)
        return
    try:
        perform(Effect.CREATE_TABLE, uri, lambda: create(uri))
    except DeltaError:
        if open_table(uri) is None:  # not a lost race
            raise


def make_room(uri: str) -> None:
    """Make what a table that Spark creates needs first: in a catalog its schema.

    Raises:
        OSError: the catalog refuses.
    """
    if is_named(uri):
        make_schema(uri)


def refresh(table: DeltaTable, *, after: int = -1) -> int:
    """Bring a handle to the newest version, which is returned.

    Args:
        table: open.
        after: a commit of ours came about after this version, so a newer one is there.

    Raises:
        OSError: the store does not show it. What is not seen cannot be flushed, and must not be built upon.
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
    """Write one commit; the handle stays at the version before it, and nothing is flushed yet (`settle`).

    Raises:
        CommitFailedError: it was refused, for instance because one of the marks' ids was written since the
            handle's version.
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
    """Add files to a table in a store by the entry after a version; False where nothing was put.

    Another entry has its number, or the one before is no longer there.

    Args:
        table: its handle may be behind, and stays where it is.
        actions: the files.
        version: the newest that was put or seen.
        looks: whether to ask if its entry is still there; not where it was put a moment ago.
    """
    from deltasmelt.bronze.lake import entries  # noqa: PLC0415 - a local lake needs no client

    said = {ACTIONS_KEY: str(len(actions))}
    return perform(
        Effect.COMMIT,
        table.table_uri,
        lambda: entries.put_next(table, actions, [], said, after=version, looks=looks),
    )


def settle(table: DeltaTable, before: int) -> None:
    """After a commit: the handle at the newest version, what was committed since `before` on disk.

    Then a checkpoint, if one is due.
    """
    version = refresh(table, after=before)
    durability.flush_commits(table.table_uri, before, version)
    checkpoint_if_due(table, before)


def checkpoint_if_due(table: DeltaTable, before: int) -> None:
    """Make a checkpoint where the handle's version and an earlier one lie in different intervals.

    Of a catalog's table Spark makes them.
    """
    if is_named(table.table_uri):
        return
    interval = checkpoint_interval(table.table_uri)
    if table.version() // interval > before // interval:
        durability.checkpoint(table)


def state_marks(table: DeltaTable) -> None:
    """Have a catalog's table say its marks where its newest commits are all that is looked back over.

    Other tables have checkpoints for it. A history does not last for ever, and who opens a table looks back
    over few commits at first. So this is due after few, whoever made them, and after a day; it is a commit
    without rows.
    """
    if isinstance(table, CatalogTable) and table.is_unstated():
        with suppress(CommitFailedError):  # after the next commit it is due again
            perform(Effect.COMMIT, table.table_uri, table.create_checkpoint)
        refresh(table)


def checkpoint_interval(uri: str) -> int:
    """Versions of a table at this location between two checkpoints."""
    in_store = local_folder(uri) is None and not is_named(uri)
    return CHECKPOINT_INTERVAL_IN_STORES if in_store else CHECKPOINT_INTERVAL


def paths_of(table: DeltaTable) -> list[str]:
    """The files of the handle's version, relative to the table."""
    return [str(path) for path in pa.table(table.get_add_actions())["path"].to_pylist()]


def read_file(table: DeltaTable, path: str, columns: list[str] | None = None) -> pa.Table:
    """All rows of a file of a table that `deltalake` alone writes: every row of it counts.

    All columns, or some.

    Arrow's datasets would do as well, but the reader needs them for nothing else, and loading them costs
    30 MiB.
    """

    def read() -> pa.Table:
        if is_named(table.table_uri):
            return cast("CatalogTable", table).rows(columns)
        with open_whole(table.table_uri, path) as file, pq.ParquetFile(file) as parquet:
            return parquet.read(columns)

    return perform(Effect.READ_FILE, f"{table.table_uri}/{path}", read)


def batches(
    table: DeltaTable, columns: list[str], *, after: tuple[str, int] | None = None, ending: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Some columns of all rows of the handle's version, batch by batch; of a catalog's table read at once.

    Args:
        table: open.
        columns: wanted.
        after: a column, and a value that rows lie above; files are passed over by their statistics.
        ending: a column that is true.
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
    """Rows by a column; `Table.sort_by` would load Arrow's query engine for it, 30 MiB."""
    return rows.take(pc.sort_indices(rows, sort_keys=[(column, order)]))


def append(table: DeltaTable, rows: pa.Table, *, widen: bool = False) -> None:
    """Append rows in one commit, durably, as of the newest version; the handle is at the version after it.

    Args:
        table: open.
        rows: to append.
        widen: the rows may have fields that the table, made by an earlier release, lacks; it gets them.
    """
    if widen:
        refresh(table)
        if pa.schema(table.schema()) != rows.schema:
            _widen(table, rows.schema)
    writer = PartWriter(table.table_uri, "part", schema=rows.schema)
    writer.write(rows)
    append_files(table, writer.finish())


def append_files(table: DeltaTable, parts: Sequence[AddAction]) -> None:
    """The same of files that are there."""
    try:
        before = _append(table, parts)
    except CommitFailedError:  # refused for good
        delete_files(table.table_uri, [part.path for part in parts])
        raise
    settle(table, before)


def overwrite(uri: str, rows: pa.Table) -> None:
    """Make a table hold these rows and no others, in one commit; made where it is not there.

    A catalog's table is made first, by a statement of its own: a kill in between leaves it without rows.

    Raises:
        CommitFailedError: another writer was first.
        DefiniteError: as `open_or_create`.
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
    """Give a table that an earlier release made the fields of a schema that the table lacks."""
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
