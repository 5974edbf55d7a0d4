"""Open and create tables: this module alone chooses the class of a table, by the table's place.

A local lake loads no client of a store, and a lake in a catalog does not load `deltalake`: the classes of
folders and stores are loaded when the first such table is opened.

Creating may be repeated safely: nothing is visible before the log entry exists. If two processes create a
table at the same moment, only one succeeds. The second process gets "already exists" (or loses the race for
version 0) and opens the table.
"""

from __future__ import annotations

import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from pyarrow.fs import FileType

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.catalog.scratch import NUMBERED, remove, remove_left
from deltasmelt.bronze.lake.catalog.sql import MADE_PROPERTY, make_schema
from deltasmelt.bronze.lake.catalog.table import CatalogTable
from deltasmelt.bronze.lake.client import DeltaError, TableNotFoundError
from deltasmelt.bronze.lake.durability import LOG, checksum_path, entry_path
from deltasmelt.bronze.lake.failures import lake_opened
from deltasmelt.bronze.lake.lease_objects import LEASES
from deltasmelt.bronze.lake.location import address_of
from deltasmelt.bronze.lake.parquet import file_system
from deltasmelt.bronze.lake.place import Catalog, Folder, Store, local_folder, place_of
from deltasmelt.bronze.lake.torn_log import DERIVED, set_torn_aside

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lake.table import Table


# Minimum age of log entries and joined files that `Table.tidy` removes (`bronze.lake.compaction`).
_RETENTION: Final = "interval 1 day"


def _class_at(uri: str) -> type[Table]:
    place = place_of(uri)
    if isinstance(place, Catalog):
        return CatalogTable
    if isinstance(place, Folder):
        from deltasmelt.bronze.lake.folder_table import FolderTable  # noqa: PLC0415 - see the module's head

        return FolderTable
    from deltasmelt.bronze.lake.store_table import StoreTable  # noqa: PLC0415 - see the module's head

    return StoreTable


def open_table(uri: str) -> Table | None:
    """Return the table at its newest version; None if the table is absent."""
    try:
        return open_existing(uri)
    except TableNotFoundError:
        return None


def may_exist(uri: str) -> bool:
    """Check whether a table may exist that did not exist a moment ago (`Table.may_exist`)."""
    return _class_at(uri).may_exist(uri)


def open_existing(uri: str) -> Table:
    """Return the table at its newest version; for bronze and control without a torn last entry.

    Raises:
        TableNotFoundError: the table is absent.
        DefiniteError: ``log-entry-torn``: later entries follow a torn entry.
        DeltaError, OSError: the table cannot be read.
        TransientError: ``log-entry-torn``: the table belongs to silver or gold, whose writer sets the entry
            aside.
    """
    folder = local_folder(uri)
    writes = folder is None or folder.parent.name not in DERIVED
    # Before the open: Delta accepts an empty entry, and an entry that ends after a complete line. A handle
    # that had read such an entry would never read the later commit of equal number.
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


def open_at(uri: str, version: int | None) -> Table:
    """Return the table at a version, or at the newest version; raises as `open_existing`."""
    return perform(Effect.OPEN_TABLE, uri, lambda: _class_at(uri)(uri, version))


def open_or_create(
    uri: str, schema: pa.Schema, *, description: str, properties: Mapping[str, str] | None = None
) -> Table:
    """Return the table for writing; create an absent table, safely against a concurrent process.

    All log entries are on disk when this returns, whichever process wrote them.

    Raises:
        DefiniteError: ``catalog-name-taken``: the catalog has a foreign table of the same name.
    """
    set_torn_aside(uri)
    table = open_table(uri)
    if table is None:
        whole = {
            "delta.checkpointInterval": str(place_of(uri).checkpoint_interval),
            "delta.logRetentionDuration": _RETENTION,
            "delta.deletedFileRetentionDuration": _RETENTION,
            **(properties or {}),
        }
        _class_at(uri).make(uri, schema, description, whole)
        table = open_existing(uri)
    table.require_ours(MADE_PROPERTY)
    table.flush_log()
    return table


def exists(lake: Lake) -> bool:
    """Check whether anything of a lake exists, and create nothing.

    Raises:
        DefiniteError, TransientError: the store refuses, or does not answer.
    """
    if isinstance(lake.place, Catalog):
        return open_table(lake.uri("control", LEASES)) is not None
    if lake.folder is not None:
        return lake.folder.is_dir()
    try:
        with lake_opened(lake.root):
            return objects.any_below(lake.root)
    except DefiniteError as error:
        if error.code != "lake-bucket":
            raise
        return False


def load(reader: Any, uri: str) -> Any:
    """Return the DataFrame that a reader of Spark, with its options, loads from a table."""
    return reader.table(address_of(uri)) if isinstance(place_of(uri), Catalog) else reader.load(uri)


def make_room(uri: str) -> None:
    """Create the prerequisites of a table that Spark creates: in a catalog the schema.

    Raises:
        OSError: the catalog refuses.
    """
    if isinstance(place_of(uri), Catalog):
        make_schema(uri)


def first_entry(uri: str) -> tuple[bytes, bytes] | None:
    """Return the first log entry of a table in a folder with its checksum; None where either is absent."""
    folder = local_folder(uri)
    if folder is None:
        return None

    def read() -> tuple[bytes, bytes] | None:
        try:
            return entry_path(folder / LOG, 0).read_bytes(), checksum_path(folder / LOG, 0).read_bytes()
        except FileNotFoundError:
            return None

    return perform(Effect.REFRESH, uri, read)


def make_of(uri: str, entry: bytes, checksum: bytes) -> bool:
    """Make a table in a folder of its first entry; return False if the folder exists."""
    from deltasmelt.bronze.lake.folder_table import FolderTable  # noqa: PLC0415 - see the module's head

    return FolderTable.make_of(uri, entry, checksum)


def remove_unfinished(layer: Path) -> None:
    """Remove all unfinished tables of killed processes in a layer's folder; no process may write there."""
    from deltasmelt.bronze.lake import folder_table  # noqa: PLC0415 - see the module's head

    folder_table.remove_unfinished(layer, seconds=0)


def overwrite(uri: str, rows: pa.Table) -> None:
    """Replace all rows of a table in one commit; create an absent table.

    Raises:
        CommitFailedError: another writer was faster.
        DefiniteError: ``catalog-name-taken``, as in `open_or_create`.
    """
    _class_at(uri).overwrite(uri, rows)


@contextmanager
def workspace(lake: Lake, folder: str, purpose: str) -> Iterator[Lake]:
    """Yield a lake for temporary tables next to a lake's layers, as for a rebuild's derived tables.

    Tables in a folder or a store stay until `remove_workspaces`; `bronze.lake.catalog.scratch` has the rules
    of a catalog, where `purpose` names the tables.
    """
    if not isinstance(lake.place, Catalog):
        # A new name each time: Spark caches the content of a path.
        yield lake.below(f"{folder}/{uuid.uuid4().hex}")
        return
    scratch = lake.scratch_for(purpose + uuid.uuid4().hex[:NUMBERED])
    try:
        yield scratch
    finally:
        with suppress(OSError):  # a later start drops the tables
            remove(scratch)


def remove_workspaces(lake: Lake, folder: str, purpose: str) -> None:
    """Remove all workspaces of a lake."""
    if isinstance(lake.place, Catalog):
        # Only workspaces older than a day, as a second process may run.
        remove_left(lake, purpose)
        return
    if isinstance(lake.place, Store):
        objects.discard(lake.root / folder)
        return
    system = file_system(lake.root)
    if system.get_file_info(folder).type != FileType.NotFound:
        system.delete_dir(folder)
