"""Cached handle of a frequently polled table: a poll reads only the log entries after the handle's version.

Opening a table in a store takes some 20 requests for two entries after a checkpoint. Polling a cached handle
takes one request if the table is unchanged: for the entry after the handle's version. The same request also
returns the marks of a new entry. A caller with a `Tail` (`bronze.lake.tail`) reads each new entry of a
store's table once: the handle stays behind, and `brought_up` moves the handle when the caller needs its
files.

A cached handle of a removed table reports no error and stays at its version. On a local path the newest
entry's file reveals the change. In a store a failed poll leads to a new handle, a caller that builds on the
handle's version demands a check (`newest` with ``sure``), and a running stage loses its lease together with
the lake (`bronze.lake.leases`). If a single table in a store is removed and recreated with as many versions,
the handle does not notice: removing tables under a running pipeline is not supported.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import DeltaError
from deltasmelt.bronze.lake.torn_log import set_torn_aside

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.lake.tail import Tail


# Seconds between two listings of the log of a table in a store that is polled continuously.
LISTED_AFTER: Final = 30.0

# Seconds between two listings of a table with mostly one writer; no entry this young is ever removed.
SELDOM: Final = 600.0


class CachedTable:
    """Cached handle of one table; only one thread at a time uses the handle.

    Args:
        uri: location of the table; neither the table nor the lake need exist yet.
        follow: returns the tail by which new entries are followed; None to move the handle at each poll.
        writes: for a table of silver or gold: whether the caller writes the table, and may set a torn entry
            aside (`bronze.lake.torn_log`); None for further tables.
    """

    def __init__(
        self, uri: str, *, follow: Callable[[Table], Tail | None] | None = None, writes: bool | None = None
    ) -> None:
        self._uri = uri
        self._follow = follow
        self._writes = writes
        # the handle of the last poll; None for an absent table. A different handle object means a different
        # table.
        self.table: Table | None = None
        # state at the newest version that was followed; None where every poll moves the handle
        self.tail: Tail | None = None
        self._identity: tuple[int, ...] | None = None
        self._listed = self._polled = 0.0

    @property
    def version(self) -> int:
        """Newest version that a poll returned; -1 for an absent table."""
        if self.tail is not None:
            return self.tail.version
        return -1 if self.table is None else self.table.version()

    def newest(
        self, *, within: float = 0.0, sure: bool = False, enough: Callable[[Tail], bool] = lambda _: False
    ) -> Table | None:
        """Return the table at its newest version; None if the table is absent.

        Args:
            within: seconds for which the previous poll of a table that is not local remains sufficient.
            sure: whether the caller builds on the version, so a store must still have the version's entry.
            enough: called after each followed entry; True ends the poll before the newest entry.

        Raises:
            DeltaError, OSError: the table cannot be read.
            DefiniteError, TransientError: ``log-entry-torn``.
        """
        now, table = time.time(), self.table  # wall clock: counts a machine's sleep
        lost = table.has_lost(self.version) if sure and table is not None else False
        if table is None:
            if abs(now - self._listed) < LISTED_AFTER and not delta.may_exist(self._uri):
                return None
        elif table.has_identity(self._identity) and not lost:
            if self._identity is None and lost is not None and abs(now - self._polled) < within:
                return table
            # List the log now and then: the next entry may have been written and, much later, removed.
            if abs(now - self._listed) < self._listed_after and self._is_newest(table, enough):
                self._polled = now
                return table
            with suppress(DeltaError):  # the log is shorter, or the store fails: open anew
                return self.brought_up()
        if self._writes is not None:
            set_torn_aside(self._uri, thorough=False, writes=self._writes)
        return self.replace(delta.open_table(self._uri))

    def brought_up(self, *, after: int = -1) -> Table:
        """Move the handle to the newest version, which must be newer than `after`, and return the handle."""
        assert self.table is not None  # noqa: S101 - a caller has opened the table
        self.table.refresh(after=after)
        self.replace(self.table)
        return self.table

    def replace(self, table: Table | None) -> Table | None:
        """Use a handle that is at the newest version, and return the handle."""
        self.table = table
        self._identity = None if table is None else table.identity()
        self.tail = None if table is None or self._follow is None else self._follow(table)
        self._listed = self._polled = time.time()
        return table

    def paths(self) -> list[str]:
        """Return the paths of the files of an existing table at `version`, relative to the table."""
        if self.tail is not None:
            return list(self.tail.files)
        return [] if self.table is None else self.table.paths()

    def file_count(self) -> int:
        """Return the number of files at `version`."""
        if self.tail is not None:
            return len(self.tail.files)
        # A catalog's table has one artificial path, but names its files.
        return 0 if self.table is None else len(self.table.file_uris())

    def expire(self) -> None:
        """Poll at the next call in any case."""
        self._polled = 0.0

    @property
    def _listed_after(self) -> float:
        return LISTED_AFTER if self._follow is None else SELDOM

    def _is_newest(self, table: Table, enough: Callable[[Tail], bool]) -> bool:
        """Follow the log, or check that no newer version exists; False if the handle must move."""
        if self.tail is None:
            return not table.may_have_moved()
        from deltasmelt.bronze.lake.entries import advance  # noqa: PLC0415 - a local lake needs no client

        return advance(self.tail, self._uri, enough)
