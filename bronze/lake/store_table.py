"""A table in an object store.

`bronze.lake.entries` writes the usual commit by one request, and `bronze.lake.tail` follows the log.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.lake import entries, transactions
from deltasmelt.bronze.lake.client import DeltaError, TableNotFoundError
from deltasmelt.bronze.lake.log_table import LogTable, make_at
from deltasmelt.bronze.lake.tail import Tail, tail_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deltasmelt.bronze.lake.client import AddAction, Transaction
    from deltasmelt.bronze.lake.table import Actions


class StoreTable(LogTable):
    """A table in an object store."""

    @classmethod
    def make(cls, uri: str, schema: pa.Schema, description: str, properties: Mapping[str, str]) -> None:
        """Create a table; a concurrent process may win the race for version 0."""
        try:
            perform(Effect.CREATE_TABLE, uri, lambda: make_at(uri, schema, description, properties))
        except DeltaError as error:
            try:
                perform(Effect.OPEN_TABLE, uri, lambda: cls(uri))
            except TableNotFoundError:  # no other process made the table
                raise error from None

    def entry(self, version: int) -> bytes | None:
        """Return the log entry of a version, by one request."""
        return entries.read_entry(self.table_uri, version)

    def may_have_moved(self) -> bool:
        """Check by one request whether a newer version exists; the answer also contains its marks."""
        entry = self.entry(self.version() + 1)
        if entry is not None:
            self._expect(transactions.marks_of(entry))
        return entry is not None

    def _write(self, actions: Actions, schema: pa.Schema, marks: Sequence[Transaction]) -> None:
        if entries.put_next(self, actions, marks) is not None:
            self._expect({mark.app_id: mark.version for mark in marks})
        else:
            super()._write(actions, schema, marks)

    @classmethod
    def may_exist(cls, uri: str) -> bool:
        """Check by one request whether the first entry of a table exists."""
        return entries.has_entry(uri, 0)

    def has_lost(self, version: int) -> bool:
        """Check by one request whether the entry of a version is missing."""
        return not entries.has_entry(self.table_uri, version)

    def tail(self, column: Callable[[], str | None] = lambda: None) -> Tail:
        """Return the state at the handle's version."""
        return tail_of(self.version(), pa.table(self.get_add_actions()), column())

    def put_after(self, actions: Sequence[AddAction], tail: Tail, *, looks: bool) -> bool:
        """Write the log entry after a tail, and follow the entry without reading it."""
        write = partial(entries.put_next, self, actions, [], after=tail.version, looks=looks)
        entry = perform(Effect.COMMIT, self.table_uri, write)
        return entry is not None and tail.follow(entry)
