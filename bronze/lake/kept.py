"""A table that is looked at again and again: its handle is kept, and its log read on from where it was.

To open a table reads its log since the newest checkpoint: in an object store some sixty requests ten entries
after one. To look again takes two where nothing is new.

A handle says nothing where its table is gone, and stays at the version that it had. So of a local table it is
noticed by the folder of its log that it is another one now, or gone. In a store a look that fails is taken
for it; and who runs a stage there loses its lease with the lake (`bronze.lake.leases`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from deltalake.exceptions import DeltaError

from bronze.lake import delta
from bronze.lake.folders import local_folder

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from bronze.lake.location import Lake, Layer


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

    def newest(self) -> DeltaTable | None:
        """The table at its newest version; None where there is none. Another handle is another table.

        Raises:
            DeltaError, OSError: it cannot be read.
            ConfigurationError: the lake is a catalog, whose tables only Spark can place.
        """
        uri = delta.location(self._lake, self._layer, self._name)
        log = _log_folder(uri)
        if self._table is not None and log == self._log:
            with suppress(DeltaError):  # its log ends before the known version, or the store does not answer
                delta.refresh(self._table)
                return self._table
        self._table, self._log = delta.open_table(uri), log
        return self._table


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
