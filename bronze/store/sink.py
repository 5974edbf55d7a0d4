"""Where changes become durable: the `ChangeSink` (`bronze.store.landing`) on Delta tables, through delta-rs.

What makes it exactly-once, at each point where the process may die:

* *while rows are written*: parquet files without a name in any version. The next reader starts at the last
  marks and writes the rows again.
* *after `bronze.relations`, before `bronze.changes`*: shapes that no row uses yet; see `bronze.relations`.
* *during the commit*: the log entry exists or it does not. It holds the rows and the marks (frontier,
  confirm) together, so a restart finds either both or neither.
* *after the commit, before it is flushed to disk*: whoever opens the lake next flushes what it finds before
  it takes it for its place; an entry of which a power cut left a part is as none (`bronze.lake.torn_log`).
* *after the commit, before the slot is confirmed*: the next reader asks for the stream from the mark, not
  from the slot.

And where a call fails and the process lives on:

* *a write or the closing of a file*: its writer removes what it wrote and refuses every later call, so does
  the sink (`write`, `commit`) until `discard`, by which a session ends. Nothing that was written before the
  failure can be named, and no place that lies after it be committed.
* *a commit*: it may have come about, and the answer was lost. `position` looks at the table then; the place
  of the commit that was tried is as good as the one before it. Its files are removed only once a later commit
  of ours is there, which has the number that the lost one could still have got, and only if no version names
  them.
* *what comes after a commit* (a checkpoint, joining files): the commit stands, and the next session finds it.

Two readers on one lake cannot interleave: both write the same application ids, and Delta refuses a commit
whose application id was written since the writer's version. `claim` makes a reader the only one: it sets a
mark that every commit of its own carries. A reader of before, that does not know yet that it is over, fails
at its next look or commit, whatever files it still writes; so they can be removed (`bronze.store.leftovers`).

Only whole transactions are committed. Rows of an open one may be written to files early (`write`), but
`commit` is called by the reader when everything written belongs to complete transactions.
"""

from __future__ import annotations

import logging
import secrets
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake import Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from bronze.errors import DefiniteError
from bronze.lake import delta, disk
from bronze.lake.compaction import COMPACT_ABOVE, compact
from bronze.lake.failures import lake_failures
from bronze.lake.parquet import PartWriter, delete_files
from bronze.lake.retention import RETENTION, tidy
from bronze.lake.torn_log import set_torn_aside
from bronze.store import gaps, retake
from bronze.store.commits import commit_changes
from bronze.store.contract import (
    CHANGES,
    CHANGES_SCHEMA,
    DATABASE_PROPERTY,
    MEASURED,
    PIPELINE_PROPERTY,
    RELATIONS,
    RELATIONS_SCHEMA,
    REPEATING,
    ROWS_SCHEMA,
    SAME_IN_A_SNAPSHOT,
    SYSTEM_PROPERTY,
)
from bronze.store.leftovers import remove_leftovers
from bronze.store.marks import READER_APP, snapshot_app, snapshot_of
from bronze.store.position import Position, position_of
from bronze.store.relations import append_relations, relations_of
from bronze.store.storage_log import STORAGE, StorageLog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

    from bronze.drift.storage import Storage
    from bronze.identifiers import TableName
    from bronze.lake.location import Lake
    from bronze.lsn import Lsn
    from bronze.postgres.connection import ServerIdentity
    from bronze.shapes import Relation

_PREFIX: Final = "stream"
_JOIN_AFTER_COMMITS: Final = 32
_MANY_FILES: Final = 32
_TIDY_EVERY: Final = 1000
"""Versions; at two a second, every eight minutes."""

_LOGGER = logging.getLogger("deltasmelt.reader")


class DeltaSink:
    """`bronze.store.landing.ChangeSink` on Delta tables of a path, through delta-rs.

    Args:
        lake: a lake with a path.
        pipeline: name of the pipeline; a lake of another one is refused.
        identity: the source; a lake of another system identifier or database is refused.

    Raises:
        DefiniteError: ``lake-of-another-pipeline``, ``lake-of-another-server``, ``lake-of-another-database``.
        ConfigurationError: the lake is a catalog.
    """

    def __init__(self, lake: Lake, pipeline: str, identity: ServerIdentity) -> None:
        self._uri = delta.location(lake, "bronze", CHANGES)
        self._lock = threading.Lock()
        self._commits_since_join = 0
        properties = {
            "delta.appendOnly": "true",
            "delta.checkpointInterval": str(delta.CHECKPOINT_INTERVAL),
            **RETENTION,
            PIPELINE_PROPERTY: pipeline,
            SYSTEM_PROPERTY: str(identity.system_identifier),
            DATABASE_PROPERTY: identity.database,
        }
        set_torn_aside(self._uri)
        existing = delta.open_table(self._uri)
        if existing is not None:
            _refuse_foreign(existing, properties, self._uri)
        self._changes = delta.open_or_create(
            self._uri, CHANGES_SCHEMA, description="Every change, in commit order", properties=properties
        )
        _refuse_foreign(self._changes, properties, self._uri)
        relations_uri = delta.location(lake, "bronze", RELATIONS)
        self._relations = delta.open_or_create(
            relations_uri,
            RELATIONS_SCHEMA,
            description="Every version of every table's shape",
            properties={**properties, "delta.checkpointInterval": str(delta.CHECKPOINT_INTERVAL)},
        )
        self._storages = StorageLog(delta.location(lake, "control", STORAGE))
        self._writer = self._new_writer()
        self._position = self._attempted = position_of(self._changes)
        self._flushed = self._tidied = self._changes.version()
        self._owner = self._changes.transaction_version(READER_APP)
        self._ours = secrets.randbits(62)
        self._claimed = False
        self._doubtful: list[str] = []

    @property
    def position(self) -> Position | None:
        """The place of the stream; None before the first commit. Read again from the table.

        Raises:
            DefiniteError: ``lake-in-use``.
            TransientError: ``lake-unwritable``.
        """
        with self._lock, self._storage():
            self._refresh()
            return self._position

    def relations(self) -> list[Relation]:
        """All versions of shapes known to the lake, by relation and LSN."""
        with self._lock, self._storage():
            delta.refresh(self._relations)
            return relations_of(self._relations)

    def needing_copy(self, tables: Sequence[TableName]) -> set[TableName]:
        """Those of these tables without a complete snapshot, or of which a newer one was asked for.

        By any process.
        """
        with self._lock, self._storage():
            self._refresh()
            return {table for table in tables if retake.needs_copy(self._changes, table)}

    def retakes(self, tables: Sequence[TableName]) -> dict[TableName, Lsn]:
        """Retake marks of these tables, those that have one."""
        with self._lock, self._storage():
            self._refresh()
            marks = {table: retake.retake_of(self._changes, table) for table in tables}
        return {table: mark for table, mark in marks.items() if mark is not None}

    def snapshots(self, tables: Sequence[TableName]) -> dict[TableName, Lsn]:
        """LSN of the newest complete snapshot of these tables, those that have one."""
        with self._lock, self._storage():
            self._refresh()
            marks = {table: snapshot_of(self._changes, table) for table in tables}
        return {table: mark for table, mark in marks.items() if mark is not None}

    def storage_of(self, table: TableName) -> Storage | None:
        """What the catalog said of a table's storage when its rows were copied, or was last looked at."""
        return self._storages.known(table)

    def record_storage(self, seen: dict[TableName, Storage]) -> None:
        """Make durable what the catalog says of tables' storage.

        Raises:
            TransientError: ``lake-unwritable``.
        """
        with self._storage():
            self._storages.record(seen)

    def open_gaps(self, tables: Sequence[TableName], lsn: Lsn, *, beyond: bool = False) -> None:
        """Say that tables lack changes up to an LSN, and ask for them; durable when this returns.

        Raises:
            TransientError: ``lake-unwritable``.
        """
        with self._storage():
            gaps.open_gaps(self._uri, tables, lsn, beyond=beyond)

    def note_membership(
        self, seen: Mapping[TableName, int], left_out: Sequence[TableName], lsn: Lsn
    ) -> list[TableName]:
        """Remember how tables are carried; those with a gap since then are asked for (`bronze.store.gaps`).

        Raises:
            TransientError: ``lake-unwritable``.
        """
        with self._storage():
            return gaps.note(self._uri, seen, left_out, lsn)

    def add_relations(self, relations: Sequence[Relation]) -> None:
        """Make shapes durable, before any row that needs them."""
        with self._lock, self._storage():
            append_relations(self._relations, relations)
            if len(self._relations.file_uris()) > COMPACT_ABOVE:
                compact(self._relations, RELATIONS_SCHEMA, many=COMPACT_ABOVE // 2)

    def write(self, rows: pa.Table) -> None:
        """Take rows of `bronze.changes` in order; they become visible with `commit`.

        Raises:
            TransientError: ``lake-unwritable``.
        """
        with self._storage():
            self._writer.write(rows)

    def commit(self, position: Position) -> Position:
        """Make everything written visible and durable together with the place; returns it with its version.

        Raises:
            DefiniteError: ``lake-in-use``: another reader committed to this lake.
            TransientError: ``lake-unwritable``. Whether the commit came about is then seen by `position`.
        """
        try:
            with self._storage():
                parts = self._writer.finish()
            version = self._commit(parts, position.marks(), position)
        except BaseException:
            # Its rows are in no version, or it is not known: nothing may be committed behind them.
            self._writer.discard()
            raise
        self._commits_since_join += bool(parts)
        if self._commits_since_join >= _JOIN_AFTER_COMMITS:
            self._commits_since_join = 0
            self._join_small_files()
        if version // _TIDY_EVERY > self._tidied // _TIDY_EVERY:
            self._tidy()
        return replace(position, version=version)

    def _join_small_files(self) -> None:
        """Keep the number of the stream's files bounded."""
        with self._lock, self._storage():
            compact(
                self._changes,
                CHANGES_SCHEMA,
                many=_MANY_FILES,
                prefix=_PREFIX,
                measured=MEASURED,
                repeating=REPEATING,
                owner=Transaction(READER_APP, self._ours),
            )
            self._refresh()

    def _tidy(self) -> None:
        """Keep the number of log entries and of files that nobody needs bounded."""
        with self._lock, self._storage():
            tidy(self._changes)
            self._tidied = self._refresh()
            tidy(self._relations)
            self._storages.tidy()

    def _new_writer(self) -> PartWriter:
        return PartWriter(self._uri, _PREFIX, schema=CHANGES_SCHEMA, measured=MEASURED, repeating=REPEATING)

    def discard(self) -> None:
        """Forget what was written since the last commit; after a failure the sink can be written again."""
        self._writer.discard()
        self._writer = self._new_writer()

    def claim(self) -> None:
        """Become the lake's only reader, and remove what earlier ones left half-done; once is enough.

        Called by whoever holds the slot, before anything is written beside the stream.

        Raises:
            DefiniteError: ``lake-in-use``: another one claims it at the same moment.
            TransientError: ``lake-unwritable``.
        """
        if self._claimed:
            return
        self._commit([], [])
        with self._lock:
            try:
                remove_leftovers(self._changes)
            except (OSError, DeltaError, pa.ArrowException) as error:  # they cost room, and nothing else
                _LOGGER.warning(
                    "files that an earlier reader left in %s are still there: %s", self._uri, error
                )
        self._claimed = True

    def parts(self, prefix: str) -> PartWriter:
        """A writer of files apart from the stream's, for a snapshot."""
        return PartWriter(
            self._uri,
            prefix,
            schema=ROWS_SCHEMA,
            measured=MEASURED,
            repeating=(*REPEATING, *SAME_IN_A_SNAPSHOT),
        )

    def commit_snapshot(self, table: TableName, lsn: Lsn, parts: Sequence[AddAction]) -> None:
        """Make a complete snapshot of one table visible and durable, with its mark.

        Raises:
            DefiniteError: ``lake-in-use``: another process took the same snapshot.
        """
        with self._lock, self._storage():
            self._refresh()
            healing = gaps.healing(self._changes, table, lsn)
        self._commit(parts, [Transaction(snapshot_app(table), int(lsn)), *healing])

    def remove(self, parts: Sequence[AddAction]) -> None:
        """Remove files that no commit will name, as far as the lake lets us; a later start removes others."""
        with suppress(OSError, pa.ArrowException):
            delete_files(self._uri, [part.path for part in parts])

    def _commit(
        self, parts: Sequence[AddAction], marks: Sequence[Transaction], position: Position | None = None
    ) -> int:
        with self._lock, self._storage():
            self._attempted = position or self._attempted
            before = self._changes.version()
            in_doubt, self._doubtful = self._doubtful, [*self._doubtful, *(part.path for part in parts)]
            try:
                commit_changes(self._changes, parts, [*marks, Transaction(READER_APP, self._ours)])
            except CommitFailedError as error:
                raise self._in_use() from error
            version = self._refresh(after=before)
            self._doubtful = in_doubt
            self._settle_doubts()
            delta.checkpoint_if_due(self._changes, before)
        return version

    def _settle_doubts(self) -> None:
        """After a commit of ours: remove files of commits before it that failed and did not come about."""
        if self._doubtful:
            with suppress(OSError, pa.ArrowException):  # the next start removes what is left
                delete_files(self._uri, set(self._doubtful) - set(delta.paths_of(self._changes)))
            self._doubtful = []

    def _storage(self) -> AbstractContextManager[None]:
        """Failures of the storage as errors that are tried again."""
        return lake_failures(self._uri, "bronze")

    def _refresh(self, *, after: int = -1) -> int:
        """Bring the handle to the newest version, later than one that we committed to.

        Delta checks application ids against what was written since the handle's version. What another reader
        wrote must therefore not pass unseen when the handle moves. What was found is on disk then.
        """
        version = delta.refresh(self._changes, after=after)
        found, owner = position_of(self._changes), self._changes.transaction_version(READER_APP)
        known = any(_same_place(found, ours) for ours in (self._position, self._attempted))
        if not known or owner not in (self._owner, self._ours):
            raise self._in_use()
        # The slot is confirmed on the strength of these entries, so they must outlive a power cut.
        disk.flush_commits(self._uri, self._flushed, version)
        self._flushed = version
        self._position, self._owner = found, owner
        self._attempted = found
        return version

    def _in_use(self) -> DefiniteError:
        return DefiniteError(
            "another process wrote to this table at the same time",
            code="lake-in-use",
            where=self._uri,
            remedy="stop the other reader of this pipeline; one lake has one reader",
        )


def _same_place(one: Position | None, other: Position | None) -> bool:
    return (one and (one.frontier, one.confirm)) == (other and (other.frontier, other.confirm))


def _refuse_foreign(table: DeltaTable, properties: dict[str, str], uri: str) -> None:
    found = table.metadata().configuration
    for name, code, what in (
        (PIPELINE_PROPERTY, "lake-of-another-pipeline", "pipeline"),
        (SYSTEM_PROPERTY, "lake-of-another-server", "PostgreSQL cluster (system identifier)"),
        (DATABASE_PROPERTY, "lake-of-another-database", "database"),
    ):
        if found.get(name) != properties[name]:
            raise DefiniteError(
                f"this lake holds changes of {what} {found.get(name)!r}, not of {properties[name]!r}",
                code=code,
                where=uri,
                remedy="give another lake.path; or, if the source was replaced for good, move this lake away "
                "and start anew",
            )
