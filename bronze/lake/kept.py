"""A table that is looked at again and again: its handle is kept, and its log read on from where it was.

To open a table reads its log since the newest checkpoint: in an object store some twenty requests two entries
after one. To look again takes one there where nothing is new: for the entry after the handle's. Where it is
there, its marks are known by then. Now and then the log is listed all the same, for that entry may have been
there and be gone, long after.

A handle says nothing where its table is gone, and stays at the version that it had. So of a local table it is
noticed by the folder of its log that it is another one now, or gone. In a store a look that fails is taken
for it; and who runs a stage there loses its lease with the lake (`bronze.lake.leases`). A table alone that is
removed there and made anew with as many versions is not noticed: nobody removes tables under a pipeline.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import DeltaError
from deltasmelt.bronze.lake.place import is_named, local_folder
from deltasmelt.bronze.lake.transactions import expect_entry

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from deltasmelt.bronze.lake.location import Lake, Layer


LISTED_AFTER: Final = 30.0
"""Seconds after which the log of a table in a store is listed again that is looked at all the time."""

SELDOM: Final = 600.0
"""The same of a table that one process alone writes, mostly. No entry is removed that is as young."""


class KeptTable:
    """One table's handle; one thread at a time uses it.

    Args:
        lake: where the table lies, which need not be there yet.
        layer: of the table.
        name: of the table.
    """

    def __init__(self, lake: Lake, layer: Layer, name: str) -> None:
        self._lake = lake
        self._layer: Layer = layer
        self._name = name
        self._table: DeltaTable | None = None
        self._log: tuple[int, int] | None = None
        self._listed = self._looked = 0.0

    def newest(self, *, within: float = 0.0) -> DeltaTable | None:
        """The table at its newest version; None where there is none. Another handle is another table.

        Args:
            within: seconds since the last look of a table in a store, up to which that look is enough.

        Raises:
            DeltaError, OSError: it cannot be read.
            ConfigurationError: the lake is a catalog, whose tables only Spark can place.
        """
        uri = delta.location(self._lake, self._layer, self._name)
        log = _log_folder(uri)
        now, table = time.time(), self._table  # which goes on while a machine sleeps
        if table is not None and log == self._log:
            if log is None and abs(now - self._looked) < within:
                return table
            if abs(now - self._listed) < LISTED_AFTER and not _may_have_moved(table, uri):
                self._looked = now
                return table
            with suppress(DeltaError):  # its log ends before the known version, or the store does not answer
                delta.refresh(table)
                self._listed = self._looked = now
                return table
        self._table, self._log, self._listed, self._looked = delta.open_table(uri), log, now, now
        return self._table


def _may_have_moved(table: DeltaTable, uri: str) -> bool:
    """Whether there is an entry after the handle's; of a local table, or a name, nobody asks."""
    if local_folder(uri) is not None or is_named(uri):
        return True
    from deltasmelt.bronze.lake import entries  # noqa: PLC0415 - a local lake needs no client

    entry = perform(Effect.REFRESH, uri, lambda: entries.read_entry(uri, table.version() + 1))
    if entry is not None:
        expect_entry(table, entry)
    return entry is not None


def _log_folder(uri: str) -> tuple[int, int] | None:
    """What tells the folder of a local table's log from another one at its place."""
    folder = local_folder(uri)
    if folder is None:
        return None
    try:
        found = (folder / "_delta_log").stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
