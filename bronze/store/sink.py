"""Where changes become durable: the stream's writer on Delta tables, through delta-rs.

What makes it exactly-once, at each point where the process may die:

* *while rows are written*: parquet files without a name in any version. The next reader starts at the last
  marks and writes the rows again.
* *after `bronze.relations`, before `bronze.changes`*: shapes that no row uses yet (`bronze.store.relations`).
* *during the commit*: the log entry exists or it does not. It holds the rows and the marks (frontier,
  confirm) together, so a restart finds either both or neither.
* *after the commit, before it is flushed to disk*: any process that opens the lake flushes what it finds
  before it takes it for its position. An entry of which a power cut left a part counts as none
  (`bronze.lake.torn_log`).
* *after the commit, before the slot is confirmed*: the next reader asks for the stream from the mark, not
  from the slot.

`DeltaSink` says what holds where a call fails and the process lives on, and `DeltaSink.claim` why one lake
has one reader.

Only whole transactions are committed. Rows of an open one may be written to files early (`write`), but
`commit` is called by the reader when everything written belongs to complete transactions.

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
from deltasmelt.bronze.lake.compaction import COMPACT_ABOVE, RETENTION, compact, tidy
from deltasmelt.bronze.lake.failures import lake_failures
from deltasmelt.bronze.lake.parquet import PartWriter
from deltasmelt.bronze.store.catalog_log import STORAGE, StorageLog
from deltasmelt.bronze.store.changes_table import ChangesTable, moved_meanwhile, remove_leftovers
from deltasmelt.bronze.store.comments import COMMENTS, KeptComments
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
from deltasmelt.bronze.store.streamed_log import PARTITIONS, StreamedLog
from deltasmelt.bronze.store.table_marks import TableMarks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from deltalake.transaction import AddAction

    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.postgres.connection import ServerIdentity
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.store.position import Position

_PREFIX: Final = "stream"
_COMPACT_AFTER_COMMITS: Final = 32
_MANY_FILES: Final = 32
_TIDY_EVERY: Final = 1000
"""Versions; at two a second, every eight minutes."""

_LOGGER = logging.getLogger("deltasmelt.reader")


def snapshot_writer(uri: str, prefix: str) -> PartWriter:
    """A writer of a snapshot's files.

    Args:
        uri: location of `bronze.changes`.
        prefix: begins the files' names.
    """
    return PartWriter(
        uri, prefix, schema=ROWS_SCHEMA, measured=MEASURED, repeating=(*REPEATING, *SAME_IN_A_SNAPSHOT)
    )


class DeltaSink:
    """What a session writes to: the stream's rows and position, shapes, and the marks of tables.

    Where a call fails and the process lives on:

    * *A write or the closing of a file*: its writer removes what it wrote and refuses every later call. So
      does the sink (`write`, `commit`) until `discard`, by which a session ends. Nothing that was written
      before the failure can be named, and no position after it be committed.
    * *A commit*: it may have come about, and the answer was lost (`bronze.store.changes_table`).
    * *What comes after a commit* (a checkpoint, compaction): the commit stands, and the next session finds
      it.

    Threads: the session's writer thread calls `write` and `commit`. The reader's thread, which also runs the
    session, calls `claim`, `discard`, `relations`, `add_relations` and, before a session, `commit`. The
    copies' threads call `parts`, `remove`, `add_relations` and `position`. These and the reader use `tables`.

    * `_writing` is held around `_writer`, `_commits_since_compaction`, `_tidied` and `_claimed`.
    * `_relations_lock` is held around `_relations`, the handle of `bronze.relations`.
    * `_changes`, `_storages`, `_comments`, `_streamed` and `tables` never change, and lock by themselves.

    Args:
        lake: a lake with a path.
        pipeline: name of the pipeline; a lake of another one is refused.
        identity: the source; a lake of another system identifier or database is refused.

    Attributes:
        tables: what bronze says of each table.

    Raises:
        DefiniteError: ``lake-of-another-pipeline``, ``lake-of-another-server``, ``lake-of-another-database``.
        ConfigurationError: the lake is a catalog.
    """

    def __init__(self, lake: Lake, pipeline: str, identity: ServerIdentity) -> None:
        changes = delta.location(lake, "bronze", CHANGES)
        properties = {
            "delta.appendOnly": "true",
            "delta.checkpointInterval": str(delta.checkpoint_interval(changes)),
            **RETENTION,
            FORMAT_PROPERTY: FORMAT,
            **owner_properties(pipeline, identity),
        }
        self._changes = ChangesTable(changes, properties)
        self._relations = delta.open_or_create(
            delta.location(lake, "bronze", RELATIONS),
            RELATIONS_SCHEMA,
            description="Every version of every table's shape",
            properties=properties,
        )
        self._relations_lock = threading.Lock()
        self._storages = StorageLog(delta.location(lake, "control", STORAGE))
        self._comments = KeptComments(delta.location(lake, "control", COMMENTS))
        self._streamed = StreamedLog(delta.location(lake, "control", PARTITIONS), self._storages.known)
        self.tables = TableMarks(self._changes, self._storages, self._comments, self._streamed)
        self._writing = threading.RLock()
        self._writer = self._new_writer()
        self._commits_since_compaction = 0
        self._tidied = self._changes.version
        self._claimed = False

    @property
    def position(self) -> Position | None:
        """Where the stream stands; None before the first commit. Read again from the table.

        Raises:
            DefiniteError: ``lake-in-use``.
            TransientError: ``lake-unwritable``.
        """
        return self._changes.position()

    def relations(self) -> list[Relation]:
        """All versions of shapes known to the lake, by relation and LSN.

        Raises:
            TransientError: ``lake-unwritable``.
        """
        with self._relations_lock, self._failures():
            delta.refresh(self._relations)
            return relations_of(self._relations)

    def add_relations(self, relations: Sequence[Relation]) -> None:
        """Make shapes durable, before any row that needs them; raises as `relations`."""
        with self._relations_lock, self._failures():
            append_relations(self._relations, relations)
            if len(self._relations.file_uris()) > COMPACT_ABOVE:
                compact(self._relations, RELATIONS_SCHEMA, many=COMPACT_ABOVE // 2)

    def write(self, rows: pa.Table) -> None:
        """Take rows of `bronze.changes` in order; they become visible with `commit`.

        Raises:
            TransientError: ``lake-unwritable``.
        """
        with self._writing, self._failures():
            self._writer.write(rows)

    def commit(self, position: Position) -> Position:
        """Make everything written visible and durable together with the position.

        Returns it with its version.

        Raises:
            DefiniteError: ``lake-in-use``: another reader committed to this lake.
            TransientError: ``lake-unwritable``. Whether the commit came about is then seen by `position`.
        """
        with self._writing:
            try:
                with self._failures():
                    parts = self._writer.finish()
                version = self._changes.commit(parts, position.marks(), position)
            except BaseException:
                # Its rows are in no version, or it is not known: nothing may be committed after them.
                self._writer.discard()
                raise
            self._commits_since_compaction += bool(parts)
            if self._commits_since_compaction >= _COMPACT_AFTER_COMMITS:
                self._commits_since_compaction = 0
                self._compact()
            if version // _TIDY_EVERY > self._tidied // _TIDY_EVERY:
                self._tidy()
        return replace(position, version=version)

    def discard(self) -> None:
        """Forget what was written since the last commit; after a failure the sink can be written again."""
        with self._writing:
            self._writer.discard()
            self._writer = self._new_writer()

    @property
    def is_claimed(self) -> bool:
        """Whether this is the lake's only reader."""
        return self._claimed

    def adopt(self) -> None:
        """Take over what an earlier reader still commits, until `claim`."""
        if not self._claimed:
            self._changes.adopt()

    def claim(self, position: Position | None = None) -> None:
        """Become the lake's only reader, and remove what earlier ones left half-done; once is enough.

        Called by the process that holds the slot, before anything is written beside the stream. From then on
        an earlier reader commits nothing, whatever files it still writes; so they can be removed
        (`bronze.store.changes_table`).

        Args:
            position: from which the stream was started, if it was.

        Raises:
            DefiniteError: ``lake-in-use``: another one claims it at the same moment.
            TransientError: ``concurrent-change``: an earlier reader came further than `position` meanwhile,
                so the stream has to be started again; ``lake-unwritable``.
        """
        with self._writing:
            if self._claimed:
                return
            found = self._changes.claim()
            if position is not None and not same_position(found, position):
                raise moved_meanwhile(self._changes.uri)
            with self._changes.held() as changes:
                try:
                    remove_leftovers(changes)
                except (OSError, DeltaError, pa.ArrowException) as error:  # they cost room, and nothing else
                    _LOGGER.warning(
                        "files that an earlier reader left in %s are still there: %s",
                        self._changes.uri,
                        error,
                    )
            self._claimed = True

    def parts(self, prefix: str) -> PartWriter:
        """A writer of files apart from the stream's, for a snapshot; it belongs to the thread that asked."""
        return snapshot_writer(self._changes.uri, prefix)

    @property
    def uri(self) -> str:
        """Location of `bronze.changes`."""
        return self._changes.uri

    def remove(self, parts: Sequence[AddAction]) -> None:
        """Remove files that no commit will name, as far as the lake lets us; a later start removes others."""
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

    def _tidy(self) -> None:
        """Keep the number of log entries and of files that nobody needs bounded."""
        self._tidied = self._changes.maintain(tidy)
        with self._failures():
            with self._relations_lock:
                tidy(self._relations)
            self._storages.tidy()
            self._comments.tidy()
            self._streamed.tidy()

    def _new_writer(self) -> PartWriter:
        return PartWriter(
            self._changes.uri, _PREFIX, schema=CHANGES_SCHEMA, measured=MEASURED, repeating=REPEATING
        )

    def _failures(self) -> AbstractContextManager[None]:
        """Failures of the storage as errors that are tried again."""
        return lake_failures(self._changes.uri, "bronze")
