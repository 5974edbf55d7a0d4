"""The stream's writer on Delta tables, through delta-rs: makes changes durable.

The writes are exactly-once, wherever the process is killed:

* *while rows are written*: the parquet files are in no version. The next reader starts at the last marks and
  writes the rows again.
* *after `bronze.relations`, before `bronze.changes`*: the lake has shapes without rows
  (`bronze.store.relations`).
* *during the commit*: the log entry exists or does not exist. The entry contains rows and marks (frontier,
  confirm) together, so a restart finds either both or neither.
* *after the commit, before its flush to disk*: any process that opens the lake flushes the entries before
  using the position. An entry of which a power cut left a part does not count (`bronze.lake.torn_log`).
* *after the commit, before the slot is confirmed*: the next reader starts the stream at the mark, not at the
  slot's position.

`DeltaSink` explains the state after a failed call in a living process, and `DeltaSink.claim` explains why one
lake has one reader.

Only whole transactions are committed. Rows of an open transaction may be written to files early (`write`),
but the reader calls `commit` when all written rows belong to complete transactions.

Delta protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md (Transaction Identifiers).
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import DeltaError
from deltasmelt.bronze.lake.compaction import COMPACT_ABOVE, compact, remove_unnamed
from deltasmelt.bronze.lake.failures import lake_failures
from deltasmelt.bronze.lake.parquet import PartWriter
from deltasmelt.bronze.lsn import ZERO
from deltasmelt.bronze.store.catalog_log import STORAGE, StorageLog
from deltasmelt.bronze.store.changes_table import ChangesTable, moved_meanwhile, remove_leftovers
from deltasmelt.bronze.store.comments import COMMENTS, RecordedComments
from deltasmelt.bronze.store.contract import (
    CHANGES,
    CHANGES_SCHEMA,
    FORMAT,
    FORMAT_PROPERTY,
    MEASURED,
    RELATIONS,
    RELATIONS_SCHEMA,
    REPEATING,
    ROWS_SCHEMA,
    SAME_IN_A_SNAPSHOT,
)
from deltasmelt.bronze.store.ownership import owner_properties
from deltasmelt.bronze.store.position import same_position
from deltasmelt.bronze.store.relations import append_relations, relations_of
from deltasmelt.bronze.store.retention import remove_old
from deltasmelt.bronze.store.streamed_log import PARTITIONS, StreamedLog
from deltasmelt.bronze.store.table_marks import TableMarks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from deltasmelt.bronze.lake.client import AddAction
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.postgres.connection import ServerIdentity
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.store.position import Position

_PREFIX: Final = "stream"
_COMPACT_AFTER_COMMITS: Final = 32
_MANY_FILES: Final = 32
_TIDY_EVERY: Final = 1000
"""Number of versions; at two a second, every eight minutes."""

_LOGGER = logging.getLogger("deltasmelt.reader")


def snapshot_writer(uri: str, prefix: str) -> PartWriter:
    """Return a writer of a snapshot's files, whose names begin with `prefix`."""
    return PartWriter(
        uri, prefix, schema=ROWS_SCHEMA, measured=MEASURED, repeating=(*REPEATING, *SAME_IN_A_SNAPSHOT)
    )


class DeltaSink:
    """The writer of a session: the stream's rows and position, shapes, and the marks of tables.

    After a failed call in a living process:

    * *A write or the closing of a file*: the file's writer removes its files and refuses every later call. So
      does the sink (`write`, `commit`) until `discard`, with which a session ends. No commit can name rows
      from before the failure, and no later position can be committed.
    * *A commit*: the commit may have succeeded, with the answer lost (`bronze.store.changes_table`).
    * *Work after a commit* (a checkpoint, compaction, the removal of old changes): the commit remains, and
      the next session finds it.

    Threads: the session's writer thread calls `write` and `commit`. The reader's thread, which also runs the
    session, calls `claim`, `discard`, `relations`, `add_relations` and, before a session, `commit`. The
    copies' threads call `parts`, `remove`, `add_relations` and `position`. The copies and the reader use
    `tables`.

    * `_writing` guards `_writer`, `_commits_since_compaction`, `_tidied`, `_removed_before` and `_claimed`.
    * `_relations_lock` guards `_relations`, the handle of `bronze.relations`.
    * `_changes`, `_storages`, `_comments`, `_streamed` and `tables` never change, and have their own locks.

    Raises:
        DefiniteError: ``lake-of-another-pipeline``, ``lake-of-another-server``, ``lake-of-another-database``.
    """

    def __init__(self, lake: Lake, pipeline: str, identity: ServerIdentity) -> None:
        properties = {
            "delta.appendOnly": "true",
            FORMAT_PROPERTY: FORMAT,
            **owner_properties(pipeline, identity),
        }
        self._changes = ChangesTable(lake.uri("bronze", CHANGES), properties)
        self._relations = delta.open_or_create(
            lake.uri("bronze", RELATIONS),
            RELATIONS_SCHEMA,
            description="Every version of every table's shape",
            properties=properties,
        )
        self._relations_lock = threading.Lock()
        self._storages = StorageLog(lake.uri("control", STORAGE))
        self._comments = RecordedComments(lake.uri("control", COMMENTS))
        self._streamed = StreamedLog(lake.uri("control", PARTITIONS), self._storages.known)
        self.tables = TableMarks(self._changes, self._storages, self._comments, self._streamed)
        self._writing = threading.RLock()
        self._writer = self._new_writer()
        self._commits_since_compaction = 0
        self._tidied = self._changes.version
        self._removed_before = ZERO
        self._claimed = False

    @property
    def position(self) -> Position | None:
        """The position of the stream, read again from the table; None before the first commit.

        Raises:
            DefiniteError: ``lake-in-use``.
            TransientError: ``lake-unwritable``.
        """
        return self._changes.position()

    def relations(self) -> list[Relation]:
        """Return all versions of shapes in the lake, by relation and LSN.

        Raises:
            TransientError: ``lake-unwritable``.
        """
        with self._relations_lock, self._failures():
            self._relations.refresh()
            return relations_of(self._relations)

    def add_relations(self, relations: Sequence[Relation]) -> None:
        """Make shapes durable before any row that needs them; raises like `relations`."""
        with self._relations_lock, self._failures():
            append_relations(self._relations, relations)
            if len(self._relations.file_uris()) > COMPACT_ABOVE:
                compact(self._relations, RELATIONS_SCHEMA, many=COMPACT_ABOVE // 2)

    def write(self, rows: pa.Table) -> None:
        """Write rows of `bronze.changes` in order; `commit` makes the rows visible.

        Raises:
            TransientError: ``lake-unwritable``.
        """
        with self._writing, self._failures():
            self._writer.write(rows)

    def commit(self, position: Position) -> Position:
        """Make all written rows visible and durable together with the position.

        Returns:
            The position with the version of the commit.

        Raises:
            DefiniteError: ``lake-in-use``: another reader committed to this lake.
            TransientError: ``lake-unwritable``; `position` then shows whether the commit succeeded.
        """
        with self._writing:
            try:
                with self._failures():
                    parts = self._writer.finish()
                version = self._changes.commit(parts, position.marks(), position)
            except BaseException:
                # The rows are in no version, or their state is unknown: no later rows may be committed.
                self._writer.discard()
                raise
            self._commits_since_compaction += bool(parts)
            if self._commits_since_compaction >= _COMPACT_AFTER_COMMITS:
                self._commits_since_compaction = 0
                self._compact()
            self._remove_old()
            if version // _TIDY_EVERY > self._tidied // _TIDY_EVERY:
                self._tidy()
        return replace(position, version=version)

    def discard(self) -> None:
        """Discard all rows since the last commit; after a failure this makes the sink writable again."""
        with self._writing:
            self._writer.discard()
            self._writer = self._new_writer()

    @property
    def is_claimed(self) -> bool:
        """Whether this sink belongs to the lake's only reader."""
        return self._claimed

    def adopt(self) -> None:
        """Accept commits of an earlier reader, until `claim`."""
        if not self._claimed:
            self._changes.adopt()

    def claim(self, position: Position | None = None) -> None:
        """Become the lake's only reader, and remove unfinished work of earlier readers; effective once.

        The process that holds the slot calls `claim` before it writes anything in parallel with the stream.

        Args:
            position: the position from which the stream was started, if started.

        Raises:
            DefiniteError: ``lake-in-use``: another process claims the lake concurrently.
            TransientError: ``concurrent-change``: an earlier reader committed past `position` meanwhile, so
                the stream must be started again; ``lake-unwritable``.
        """
        with self._writing:
            if self._claimed:
                return
            recorded = self._changes.claim()
            if position is not None and not same_position(recorded, position):
                raise moved_meanwhile(self._changes.uri)
            with self._changes.held() as changes:
                try:
                    # From now on an earlier reader commits nothing, so its files can be removed.
                    remove_leftovers(changes)
                except (OSError, DeltaError, pa.ArrowException) as error:  # leftovers only take space
                    _LOGGER.warning(
                        "files of an earlier reader could not be removed from %s: %s",
                        self._changes.uri,
                        error,
                    )
            self._claimed = True

    def parts(self, prefix: str) -> PartWriter:
        """Return a writer of a snapshot's files, for the calling thread alone."""
        return snapshot_writer(self._changes.uri, prefix)

    @property
    def uri(self) -> str:
        """Location of `bronze.changes`."""
        return self._changes.uri

    def remove(self, parts: Sequence[AddAction]) -> None:
        """Remove files that no commit will name, as far as possible; a later start removes the rest."""
        self._changes.remove([part.path for part in parts])

    def _compact(self) -> None:
        """Keep the number of the stream's files bounded."""
        self._changes.maintain(
            lambda changes: compact(
                changes,
                CHANGES_SCHEMA,
                many=_MANY_FILES,
                prefix=_PREFIX,
                measured=MEASURED,
                repeating=REPEATING,
                owner=self._changes.owner,
            )
        )

    def _remove_old(self) -> None:
        """Remove the changes before a new mark (`bronze.store.retention`); the next commit retries."""
        kept = self._changes.kept_from
        if kept <= self._removed_before:
            return

        def work(changes: Table) -> None:
            if remove_old(changes, self._changes.owner):
                self._removed_before = kept

        self._changes.maintain(work)

    def _tidy(self) -> None:
        """Keep the number of log entries and of unneeded files bounded."""
        self._tidied = self._changes.maintain(lambda table: table.tidy())
        with self._failures():
            with self._relations_lock:
                self._relations.tidy()
                remove_unnamed(self._relations)
            self._storages.tidy()
            self._comments.tidy()
            self._streamed.tidy()

    def _new_writer(self) -> PartWriter:
        return PartWriter(
            self._changes.uri, _PREFIX, schema=CHANGES_SCHEMA, measured=MEASURED, repeating=REPEATING
        )

    def _failures(self) -> AbstractContextManager[None]:
        """Convert failures of the storage into errors that are retried."""
        return lake_failures(self._changes.uri, "bronze")
