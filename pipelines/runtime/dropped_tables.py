"""The end of silver's tables whose source table is gone (`silver.on_drop_table: drop`).

A table that is dropped, renamed or no longer selected stays in silver unchanged, and in no later cut. With
the setting, maintenance removes such a table and its history, once nothing can need them:

* no cut names the table, so `lake.retention` is over, and no reader of a cut is in the middle of the table;
* bronze has no shape of the name any longer (`bronze.store.gone`): `bronze.retention` has removed every
  change, and neither a cycle nor a rebuild can derive the table;
* the table has silver's mark, so silver made the table.

The shapes are read under the layer's lock, which each cycle of silver holds as well. So no cycle begins a
table of the name meanwhile; a later cycle finds no table, and begins with the snapshot.

**At each point of failure.** In a folder the table is first renamed to a name that is no table's, then
removed; a process that is killed in between leaves the renamed folder to the next call. In a store an object
beside the files (`_DROPPED`) is written first, and removed last; the next call finds the object and goes on.
"""

from __future__ import annotations

import logging
import shutil
import uuid
from typing import TYPE_CHECKING, Final

from pyarrow.fs import FileSelector, FileType

from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.delta import open_table
from deltasmelt.bronze.lake.location import table_name
from deltasmelt.bronze.lake.parquet import file_system
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.marks import kept_from
from deltasmelt.bronze.store.relations import read_relations
from deltasmelt.pipelines.runtime.locks import writing
from deltasmelt.silver.run.stored import SILVER_APP
from deltasmelt.silver.schema.catalog import history_of, silver_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.silver.settings import SilverSettings

_LOGGER: Final = logging.getLogger("deltasmelt.maintenance")
_RENAMED: Final = "_dropped-"
_DROPPED: Final = "~dropped"  # after every name of a file, in the order in which a store lists and removes


def remove_dropped(lake: Lake, control: ControlTables, settings: SilverSettings) -> list[str]:
    """Remove silver's tables whose source table is gone; return their names.

    Raises:
        DeltaError, OSError: the lake cannot be read or written.
    """
    if not lake.place.shows_files:
        return []
    _finish(lake)
    with writing(lake, "silver"):
        names = [name for name in _tables(lake) if name not in _needed(lake, control, settings)]
        removed = [name for name in names if _is_ours(lake, name)]
        for name in removed:
            _remove(lake, name)
            _LOGGER.info("silver.%s was removed: its source table is gone (silver.on_drop_table)", name)
    return removed


def _needed(lake: Lake, control: ControlTables, settings: SilverSettings) -> set[str]:
    """Return the names of all tables that a cut names or that bronze can derive; before a removal, of all."""
    changes = open_table(lake.uri("bronze", CHANGES))
    if changes is None or not kept_from(changes):
        return {*_tables(lake)}
    tables = [silver_table(shape, settings) for shape in read_relations(lake)]
    return {
        *control.names("silver"),
        *(table.name for table in tables),
        *(history_of(table).name for table in tables),
    }


def _tables(lake: Lake) -> Iterator[str]:
    """Yield the names of silver's folders that a table can have."""
    system = file_system(lake.root)
    if system.get_file_info("silver").type == FileType.NotFound:
        return
    for folder in system.get_file_info(FileSelector("silver")):
        try:
            name = table_name(folder.base_name)
        except ValueError:
            continue
        if name is not None:
            yield name


def _is_ours(lake: Lake, name: str) -> bool:
    table = open_table(lake.uri("silver", name))
    return table is not None and table.transaction_version(SILVER_APP) is not None


def _remove(lake: Lake, name: str) -> None:
    uri = lake.uri("silver", name)
    if (folder := uri.folder) is not None:
        renamed = folder.with_name(f"{_RENAMED}{uuid.uuid4()}")
        folder.rename(renamed)
        shutil.rmtree(renamed)
    else:
        objects.replace(uri, _DROPPED, b"")
        objects.delete_below(lake.root / "silver", uri.rpartition("/")[2])


def _finish(lake: Lake) -> None:
    """Remove what a killed removal left."""
    if lake.folder is not None:
        for renamed in lake.folder.glob(f"silver/{_RENAMED}*"):
            shutil.rmtree(renamed)
        return
    for name in _tables(lake):
        if objects.exists(lake.uri("silver", name), _DROPPED):
            _remove(lake, name)
