"""The one handle of `bronze.changes` that a reader's threads share, and the commits that go through it.

Two readers on one lake cannot interleave. Both write the same application ids, and Delta refuses a commit
whose application id was written since the writer's version. A reader becomes the only one by a mark that
every commit of its own carries (`bronze.store.sink.DeltaSink.claim`). An earlier reader, which does not know
yet that it is over, fails at its next look or commit.

Until that mark is there (`adopt`, `claim`), the reader that holds the slot takes over what the table says: an
earlier reader, which is about to end, may still have a commit to make.

A commit that fails may have come about all the same, and the answer was lost. The next look at the table
shows it: the position of the commit that was tried is as good as the one before it. It may even come about
later, while the next one is tried; that is then refused, and the stream goes on from the late one. So all
that was tried counts until a commit of ours has come about after it. The threads share the handle, so the
next to commit may be another than the one that failed: it looks first, or Delta would refuse it because of a
commit of our own. A failed commit's files are removed only after a later commit of ours, which has the number
that the lost one could still have got; and only those that no version names.

Files of `bronze.changes` that no version names, removed by the lake's new reader.

A process that is killed while it writes leaves them: up to the whole of a table that was being copied.
Nothing else removes them, because vacuum cannot tell them from files that are still to be named
(`bronze.lake.compaction`).

Why it is safe: it runs right after the reader's claim (`bronze.store.sink`), before it writes anything
itself. From then on no commit of an earlier reader comes about, so no file that is not named now will ever
be. Files that were compacted are named as removed; they stay until `bronze.lake.compaction` takes
them, for an older version may be being read. Only files whose names the reader gives are touched.

Commits to `bronze.changes`: the files of rows, if any, and the marks that say what they mean, at once.

Marks alone and none of the ids that stream and snapshots write: such a commit Delta lets pass beside theirs,
from any process (`bronze.store.gaps`, `bronze.store.gaps`, `bronze.stream.timeline`).
"""

from __future__ import annotations

import secrets
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
from pyarrow.fs import FileSelector

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.errors import DefiniteError, TransientError
from deltasmelt.bronze.lake import delta, durability
from deltasmelt.bronze.lake.client import CommitFailedError, Transaction
from deltasmelt.bronze.lake.failures import lake_failures
from deltasmelt.bronze.lake.parquet import delete_files, file_system
from deltasmelt.bronze.lake.torn_log import set_torn_aside
from deltasmelt.bronze.lake.transactions import transaction_version
from deltasmelt.bronze.store.contract import CHANGES_SCHEMA, require_format
from deltasmelt.bronze.store.marks import READER_APP
from deltasmelt.bronze.store.ownership import foreign
from deltasmelt.bronze.store.position import Position, position_of, same_position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from deltalake import DeltaTable
    from deltalake.transaction import AddAction


PREFIXES: Final = ("stream-", "snapshot-")
"""What the names of the reader's files begin with."""


def remove_leftovers(changes: DeltaTable) -> int:
    """Remove what no version names; how many files that were.

    Args:
        changes: `bronze.changes` at its newest version, claimed.

    Raises:
        DeltaError, OSError: the lake cannot be read or written.
    """
    uri = changes.table_uri
    found = perform(Effect.LIST_FILES, uri, lambda: file_system(uri).get_file_info(FileSelector("")))
    names = {file.base_name for file in found if file.base_name.startswith(PREFIXES)}
    if not names:
        return 0
    names -= set(delta.paths_of(changes))
    if names:
        names -= set(_joined(changes))
    delete_files(uri, sorted(names))
    return len(names)


def _joined(changes: DeltaTable) -> list[str]:
    """Files that the log names as removed, and that are still there."""
    return perform(
        Effect.LIST_FILES,
        changes.table_uri,
        lambda: changes.vacuum(0, dry_run=True, enforce_retention_duration=False, full=False),
    )


def commit_changes(changes: DeltaTable, parts: Sequence[AddAction], marks: Sequence[Transaction]) -> None:
    """Write one commit; the handle stays at the version before it, and nothing is flushed yet.

    Raises:
        CommitFailedError: one of these ids was written since the handle's version.
    """
    delta.commit(changes, parts, CHANGES_SCHEMA, marks)


def commit_marks(changes: DeltaTable, uri: str, marks: Sequence[Transaction]) -> None:
    """Write marks alone, in one commit, durably; the handle is at the newest version then.

    Raises:
        CommitFailedError: as `commit_changes`.
    """
    before = changes.version()
    commit_changes(changes, [], marks)
    durability.flush_commits(uri, before, delta.refresh(changes, after=before))
    delta.checkpoint_if_due(changes, before)
    delta.state_marks(changes)


def own_commit_late(uri: str) -> TransientError:
    """The error ``lake-unwritable``: Delta refused a commit because of an earlier one of the same process."""
    return TransientError(
        "a commit that was given up came about after all, while the next one was tried",
        code="lake-unwritable",
        where=uri,
        remedy="nothing to do: the stream goes on from that commit",
    )


def moved_meanwhile(uri: str) -> TransientError:
    """The error ``concurrent-change``: an earlier reader came further while the next one was starting."""
    return TransientError(
        "an earlier reader of this lake made its last commit while this one was starting",
        code="concurrent-change",
        where=uri,
        remedy="nothing to do: the stream is started again, from that commit",
    )


def lake_in_use(uri: str, remedy: str) -> DefiniteError:
    """The error ``lake-in-use``: Delta refused a commit, because another process wrote the same ids.

    Args:
        uri: location of `bronze.changes`.
        remedy: which process to stop.
    """
    return DefiniteError(
        "another process wrote to this table at the same time", code="lake-in-use", where=uri, remedy=remedy
    )


_T = TypeVar("_T")


class ChangesTable:
    """`bronze.changes`, opened for writing; made where it is missing.

    Threads: the session's writer commits, the copies' threads commit and look, the reader's thread looks and
    claims. Each method holds `_lock` for as long as it uses the handle. The lock guards `_table` (which
    version it shows), `_flushed`, `_position`, `_attempted`, `_owner`, `_unseen`, `_adopts` and `_doubtful`.
    `uri` and `_ours` never change.

    Args:
        uri: location of the table.
        properties: that it is made with; they name the pipeline and the source.

    Attributes:
        uri: location of the table.

    Raises:
        DefiniteError: ``lake-of-another-pipeline``, ``lake-of-another-server``, ``lake-of-another-database``.
    """

    def __init__(self, uri: str, properties: Mapping[str, str]) -> None:
        self.uri = uri
        self._lock = threading.Lock()
        set_torn_aside(uri)
        existing = delta.open_table(uri)
        if existing is not None:
            require_format(existing)
            _refuse_foreign(existing, properties, uri)
        self._table = delta.open_or_create(
            uri, CHANGES_SCHEMA, description="Every change, in commit order", properties=properties
        )
        _refuse_foreign(self._table, properties, uri)
        with lake_failures(uri, "bronze"):
            delta.state_marks(self._table)
        self._position = position_of(self._table)
        self._attempted: list[Position] = []  # since the last commit that is known to be there
        self._flushed = self._table.version()
        self._owner = transaction_version(self._table, READER_APP)
        self._ours = secrets.randbits(62)
        self._unseen = False  # the handle may be behind a commit of ours
        self._adopts = False
        self._doubtful: list[str] = []

    @property
    def version(self) -> int:
        """The newest version that this handle has seen and flushed."""
        with self._lock:
            return self._flushed

    @property
    def owner(self) -> Transaction:
        """The mark of this reader, which every commit of its own carries."""
        return Transaction(READER_APP, self._ours)

    def adopt(self) -> None:
        """Take over what an earlier reader still commits, until `claim`."""
        with self._lock:
            self._adopts = True

    def claim(self) -> Position | None:
        """Become the only reader, of whose commits alone the table is made from now on.

        Returns:
            Where the stream stands.

        Raises:
            DefiniteError: ``lake-in-use``: another one claims the table at the same moment.
            TransientError: ``concurrent-change``: an earlier reader made a commit at the same moment;
                ``lake-unwritable``.
        """
        self.commit([], [])
        with self._lock:
            self._adopts = False
            return self._position

    def position(self) -> Position | None:
        """Where the stream stands, read again from the table; None before the first commit.

        Raises:
            DefiniteError: ``lake-in-use``.
            TransientError: ``lake-unwritable``.
        """
        with self._lock, lake_failures(self.uri, "bronze"):
            self._refresh()
            return self._position

    def look(self, read: Callable[[DeltaTable], _T]) -> _T:
        """What `read` finds in the table at its newest version.

        Raises:
            DefiniteError, TransientError: as `position`.
        """
        with self._lock, lake_failures(self.uri, "bronze"):
            self._refresh()
            return read(self._table)

    @contextmanager
    def held(self) -> Iterator[DeltaTable]:
        """The handle as it stands; no other thread uses it until the block ends."""
        with self._lock:
            yield self._table

    def maintain(self, work: Callable[[DeltaTable], object]) -> int:
        """Run maintenance that commits by itself; the version after it.

        Raises:
            DefiniteError, TransientError: as `position`.
        """
        with self._lock, lake_failures(self.uri, "bronze"):
            self._unseen = True
            work(self._table)
            return self._refresh()

    def commit(
        self,
        parts: Sequence[AddAction],
        marks: Sequence[Transaction],
        position: Position | None = None,
        *,
        more: Callable[[DeltaTable], Sequence[Transaction]] | None = None,
    ) -> int:
        """Make files visible and durable together with marks; the version that holds them.

        Args:
            parts: files that are complete on disk; where this fails, they are ours to remove.
            marks: what the commit says besides; the reader's own mark is added.
            position: where the stream stands with this commit, if it is one of the stream.
            more: marks that follow from what the newest version says.

        Raises:
            DefiniteError: ``lake-in-use``: one of the marks' ids was written by another process meanwhile.
            TransientError: ``lake-unwritable``, also where an earlier commit of ours was given up and came
            about late; whether the commit came about is then seen by `position`. ``concurrent-change``:
            before a claim, an earlier reader's.
        """
        with self._lock, lake_failures(self.uri, "bronze"):
            in_doubt, self._doubtful = self._doubtful, [*self._doubtful, *(part.path for part in parts)]
            if self._unseen or more is not None:
                self._refresh()
            if more is not None:
                marks = [*marks, *more(self._table)]
            if position is not None:
                self._attempted.append(position)
            before = self._table.version()
            self._unseen = True
            try:
                commit_changes(self._table, parts, [*marks, self.owner])
            except CommitFailedError as error:
                self._refresh()  # raises where it was another reader
                late = moved_meanwhile if self._adopts else own_commit_late
                raise late(self.uri) from error
            version = self._refresh(after=before)
            self._attempted = []
            self._doubtful = in_doubt
            self._remove_doubtful()
            delta.checkpoint_if_due(self._table, before)
            delta.state_marks(self._table)
            if self._table.version() > version:
                self._refresh()
        return version

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files that no commit will name, as far as the lake lets us; a later start removes others."""
        with suppress(OSError, pa.ArrowException):
            delete_files(self.uri, paths)

    def _remove_doubtful(self) -> None:
        """After a commit of ours: remove files of commits before it that failed and did not come about."""
        if self._doubtful:
            with suppress(OSError, pa.ArrowException):  # the next start removes what is left
                delete_files(self.uri, set(self._doubtful) - set(delta.paths_of(self._table)))
            self._doubtful = []

    def _refresh(self, *, after: int = -1) -> int:
        """Bring the handle to the newest version, later than one that we committed to.

        Delta checks application ids against what was written since the handle's version. What another reader
        wrote must therefore not pass unseen when the handle moves. What was found is on disk then.
        """
        version = delta.refresh(self._table, after=after)
        found, owner = position_of(self._table), transaction_version(self._table, READER_APP)
        known = any(same_position(found, ours) for ours in (self._position, *self._attempted))
        if not self._adopts and (not known or owner not in (self._owner, self._ours)):
            raise self._in_use()
        # The slot is confirmed on the strength of these entries, so they must outlive a power cut.
        durability.flush_commits(self.uri, self._flushed, version)
        self._flushed = version
        self._position = found
        self._owner = owner
        self._unseen = False
        return version

    def _in_use(self) -> DefiniteError:
        return lake_in_use(self.uri, "stop the other reader of this pipeline; one lake has one reader")


def _refuse_foreign(table: DeltaTable, properties: Mapping[str, str], uri: str) -> None:
    for error in foreign(uri, table.metadata().configuration, properties):
        raise error
