"""Cached handle of a frequently polled table: a poll reads only the log entries after the handle's version.

Opening a table reads the log since the newest checkpoint: in an object store some 20 requests for two entries
after a checkpoint. Polling a cached handle costs one request if the table is unchanged: for the entry after
the handle's version. If this entry exists, the same request also returns the entry's marks.

A cached handle of a removed table reports no error and stays at its version. On a local path the newest
entry's file reveals the change. In a store a failed poll leads to a new handle, and a running stage loses
its lease together with the lake (`bronze.lake.leases`). If a single table in a store is removed and recreated
with as many versions, the handle does not notice. Removing tables under a running pipeline is not supported.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import DeltaError

if TYPE_CHECKING:
    from deltasmelt.bronze.lake.location import Lake, Layer
    from deltasmelt.bronze.lake.table import Table


LISTED_AFTER: Final = 30.0
"""Seconds between two listings of the log of a table in a store that is polled continuously."""

SELDOM: Final = 600.0
"""Seconds between two listings of a table with mostly one writer; no entry this young is ever removed."""


class KeptTable:
    """Cached handle of one table; only one thread at a time uses the handle.

    Args:
        lake: contains the table; the lake need not exist yet.
        layer: layer of the table within the lake.
        name: name of the table in PostgreSQL or control.
    """

    def __init__(self, lake: Lake, layer: Layer, name: str) -> None:
        self._lake = lake
        self._layer: Layer = layer
        self._name = name
        self._table: Table | None = None
        self._identity: tuple[int, ...] | None = None
        self._listed = self._looked = 0.0

    def newest(self, *, within: float = 0.0) -> Table | None:
        """Return the table at its newest version; None if the table is absent.

        A different handle object means a different table.

        Args:
            within: seconds for which the previous poll of a table that is not local remains sufficient.

        Raises:
            DeltaError, OSError: the table cannot be read.
            ConfigurationError: ``catalog-session``: the lake is a catalog, and no session serves the catalog.
        """
        now, table = time.time(), self._table  # wall clock: counts a machine's sleep
        if table is not None and table.has_identity(self._identity):
            if self._identity is None and abs(now - self._looked) < within:
                return table
            # List the log now and then: the next entry may have been written and, much later, removed.
            if abs(now - self._listed) < LISTED_AFTER and not table.may_have_moved():
                self._looked = now
                return table
            with suppress(DeltaError):  # the log is shorter, or the store fails: open anew
                table.refresh()
                self._identity, self._listed, self._looked = table.identity(), now, now
                return table
        self._table = table = delta.open_table(self._lake.uri(self._layer, self._name))
        self._identity, self._listed, self._looked = table.identity() if table else None, now, now
        return table
