"""A table whose log this process reads and writes: the common part of folders and stores, over `deltalake`.

A lake in a catalog does not load this module: `deltalake` may be absent there.
"""

from __future__ import annotations

import json
import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, write_deltalake

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.lake import transactions
from deltasmelt.bronze.lake.client import DeltaError
from deltasmelt.bronze.lake.foreign_commits import Commit, commit_of
from deltasmelt.bronze.lake.parquet import delete_files, open_whole
from deltasmelt.bronze.lake.place import options_of, place_of
from deltasmelt.bronze.lake.table import Table
from deltasmelt.bronze.lake.torn_log import ACTIONS_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from deltasmelt.bronze.lake.client import Transaction
    from deltasmelt.bronze.lake.table import Actions

# `checkpoint_if_due` makes checkpoints, and `tidy` removes old entries.
_LOGGER = logging.getLogger("deltasmelt.lake")
_APPEND_ONLY = "delta.appendOnly"
_NEEDED_HOURS = 22
"""Hours for which removed files stay; a checkpoint names them for 24 (`bronze.lake.delta`)."""
_DELETE_EVERY = 3600.0
"""Seconds between two deletions of removed files, well below the difference of both."""
_NOTHING_BESIDES = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class LogTable(DeltaTable, Table):
    """A table in a folder or a store."""

    def __init__(self, uri: str, version: int | None = None) -> None:
        super().__init__(uri, version, storage_options=options_of(uri))
        self._location = uri
        self._marks: transactions.Marks | None = None
        self._deleted_at = -math.inf

    @property
    def table_uri(self) -> str:
        """Location of the table with its place; `deltalake` would rebuild the location as plain text."""
        return self._location

    @classmethod
    def overwrite(cls, uri: str, rows: pa.Table) -> None:
        """Replace all rows of a table in one commit; create an absent table."""
        write = partial(write_deltalake, uri, rows, mode="overwrite", storage_options=options_of(uri))
        perform(Effect.COMMIT, uri, write)

    def transaction_version(self, app_id: str) -> int | None:
        """Return the mark of an application id, from cached marks (`bronze.lake.transactions`)."""
        version, marks = self.version(), self._marks
        if marks is None or marks.version != version:
            self._marks = marks = transactions.read(self, marks, version)
        return super().transaction_version(app_id) if marks.found is None else marks.found.get(app_id)

    def _expect(self, marks: Mapping[str, int] | None) -> None:
        """Note the marks of the next entry, which this process wrote or read; None if unknown."""
        if marks is not None and self._marks is not None and self._marks.version == self.version():
            self._marks = self._marks.followed_by(marks)

    def commits(self, limit: int) -> Callable[[int], Commit | None]:  # noqa: ARG002 - each entry is read alone
        """Return a function that reads the entry of a version."""

        def commit_at(version: int) -> Commit | None:
            entry = self.entry(version)
            return None if entry is None else commit_of(entry)

        return commit_at

    def committed_at(self, version: int) -> float | None:
        """Return the commit time in a version's entry."""
        actions = [json.loads(line) for line in (self.entry(version) or b"").splitlines()]
        times = [action.get("commitInfo", {}).get("timestamp") for action in actions]
        return next((float(time) / 1000 for time in times if time is not None), None)

    def is_plain(self, features: Collection[str] | None = None) -> bool:
        """Check whether the files alone show the rows."""
        protocol = self.protocol()
        known = features is not None and set(protocol.reader_features or ()) <= set(features)
        return (known or protocol.min_reader_version <= 1) and not self.metadata().partition_columns

    def row_count(self) -> int | None:
        """Return the number of rows by the files' statistics; deletion vectors are read."""
        counts = pa.table(self.get_add_actions())["num_records"]
        if counts.null_count:
            return None
        rows: int = pc.sum(counts).as_py() or 0
        if "deletionVectors" in (self.protocol().reader_features or ()):
            for batch in self.deletion_vectors():
                selection = pa.record_batch(batch)["selection_vector"].flatten()
                rows -= len(selection) - (pc.sum(selection).as_py() or 0)
        return rows

    def _read(self, path: str, columns: list[str] | None) -> pa.Table:
        # Arrow's datasets would do too, but loading them costs 30 MiB, and the reader has no further use.
        with open_whole(self.table_uri, path) as file, pq.ParquetFile(file) as parquet:
            return parquet.read(columns)

    def batches(
        self, columns: list[str], *, after: tuple[str, int] | None = None, ending: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield some columns of all rows in batches; statistics let Arrow skip files."""
        column, value = after or ("", 0)
        wanted = pc.scalar(True)
        if column:
            wanted &= pc.field(column) > value
        if ending:
            wanted &= pc.field(ending)
        yield from self.to_pyarrow_dataset().to_batches(columns=columns, filter=wanted)

    def _write(self, actions: Actions, schema: pa.Schema, marks: Sequence[Transaction]) -> None:
        self.create_write_transaction(
            list(actions),
            mode="append",
            schema=schema,
            commit_properties=CommitProperties(
                app_transactions=list(marks), custom_metadata={ACTIONS_KEY: str(len(actions) + len(marks))}
            ),
            post_commithook_properties=_NOTHING_BESIDES,
        )

    def checkpoint_if_due(self, before: int) -> None:
        """Make a checkpoint if this version and an earlier version lie in different intervals."""
        interval = place_of(self.table_uri).checkpoint_interval
        if self.version() // interval > before // interval:
            # In a store each look at the log costs requests.
            if abs(time.time() - self._deleted_at) >= _DELETE_EVERY:
                try:
                    self.delete_removed()
                except (OSError, DeltaError, pa.ArrowException) as error:  # the files only take space
                    _LOGGER.warning("removed files of %s could not be deleted: %s", self.table_uri, error)
            self.checkpoint()

    def delete_removed(self) -> None:
        """Delete the files that the log names as removed, and that no process needs any longer.

        A new checkpoint does not name files that were removed more than a day ago. Nothing would find the
        files afterwards, so they go before the checkpoint. A kill leaves the log as it is, and the next call
        finds the same files. After a failure the next checkpoint's call does, while the log names the files.
        """
        uri, now = self.table_uri, time.time()
        old = perform(
            Effect.CLEAN,
            uri,
            lambda: self.vacuum(_NEEDED_HOURS, dry_run=True, enforce_retention_duration=False, full=False),
        )
        delete_files(uri, old)
        self._deleted_at = now

    def checkpoint(self) -> None:
        """Make a checkpoint at this version."""
        perform(Effect.CHECKPOINT, self.table_uri, self.create_checkpoint)

    def _add_columns(self, schema: pa.Schema) -> None:
        write_deltalake(
            self,
            schema.empty_table(),
            mode="append",
            schema_mode="merge",
            post_commithook_properties=_NOTHING_BESIDES,
        )

    def permit_removals(self, properties: Mapping[str, str]) -> None:
        """Unset ``delta.appendOnly`` and set properties, in one commit; no commit without a difference."""
        stated = self.metadata().configuration
        if stated.get(_APPEND_ONLY) != "true" and properties.items() <= stated.items():
            return

        def permit() -> None:
            self.alter.set_table_properties(
                {_APPEND_ONLY: "false", **properties},
                raise_if_not_exists=False,  # the name of a property may be unknown to Delta
                commit_properties=CommitProperties(custom_metadata={ACTIONS_KEY: "1"}),
                post_commithook_properties=_NOTHING_BESIDES,
            )

        before = self.version()
        perform(Effect.COMMIT, self.table_uri, permit)
        self.settle(before)

    def tidy(self, *, retention_hours: int | None = None) -> None:
        """Remove log entries and joined files past their retention."""

        def clean() -> None:
            self.cleanup_metadata()
            self.vacuum(
                retention_hours,
                dry_run=False,
                enforce_retention_duration=retention_hours is None,
                full=False,
                post_commithook_properties=_NOTHING_BESIDES,
            )

        perform(Effect.CLEAN, self.table_uri, clean)

    def removed_files(self) -> list[str]:
        """Return existing files that the log names as removed."""
        return perform(
            Effect.LIST_FILES,
            self.table_uri,
            lambda: self.vacuum(0, dry_run=True, enforce_retention_duration=False, full=False),
        )


def make_at(uri: str, schema: pa.Schema, description: str, properties: Mapping[str, str]) -> None:
    """Make a table at an empty location."""
    DeltaTable.create(
        uri,
        schema=schema,
        mode="error",
        description=description,
        configuration=dict(properties),
        raise_if_key_not_exists=False,  # Delta does not know this project's properties
        storage_options=options_of(uri),
    )
