"""A table in an object store.

`bronze.lake.entries` writes the usual commit by one request, and `bronze.lake.tail` follows the log.
"""

from __future__ import annotations

import io
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.lake import entries, objects, transactions
from deltasmelt.bronze.lake.client import DeltaError, TableNotFoundError
from deltasmelt.bronze.lake.durability import HINT, LOG, checkpoint_name
from deltasmelt.bronze.lake.log_table import LogTable, make_at
from deltasmelt.bronze.lake.parquet import open_whole
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

    def checkpoint(self) -> None:
        """Make a checkpoint at this version, without ended marks (`bronze.lake.transactions`)."""
        super().checkpoint()
        perform(Effect.CHECKPOINT, self.table_uri, self._leave_out_ended)

    def _leave_out_ended(self) -> None:
        """Replace the checkpoint by one without ended marks; a store replaces an object as a whole."""
        uri, name = self.table_uri, f"{LOG}/{checkpoint_name(self.version())}"
        try:
            with open_whole(uri, name) as file:
                standing = transactions.without_ended(file)
        except FileNotFoundError:  # a checkpoint of another form or version keeps the ended marks
            return
        if standing is None:
            return
        rows, count = standing
        body = io.BytesIO()
        pq.write_table(rows, body)
        # A hint with the former number of actions misleads no reader: the number is only a measure of work.
        objects.replace(uri, name, body.getvalue())
        hint = objects.read_whole(uri, f"{LOG}/{HINT}")
        objects.replace(uri, f"{LOG}/{HINT}", transactions.hint_without(hint, count, body.tell()))

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
