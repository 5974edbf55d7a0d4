"""The single handle of `bronze.changes` that a reader's threads share, and the commits through this handle.

**A single reader.** Two readers on the same lake cannot interleave. Both write equal application ids, and
Delta refuses a commit if its application id was written since the writer's version. A reader becomes the only
reader by a mark in each of its commits (`bronze.store.sink.DeltaSink.claim`). An earlier, replaced reader
fails at the next refresh or commit. Between `adopt` and `claim` the reader with the slot accepts new commits
in the table: an earlier reader may still have a commit to make.

**Lost answers.** A commit that fails may still have succeeded, with only the answer lost. The next refresh
shows this: the position of the attempted commit is as good as the position before. The commit may even
succeed later, during the next attempt. Delta then refuses the next attempt, and the stream continues from the
late commit. All attempted positions therefore count until a later commit of this reader succeeds.
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
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import CommitFailedError, Transaction
from deltasmelt.bronze.lake.failures import lake_failures
from deltasmelt.bronze.lake.parquet import delete_files, file_system
from deltasmelt.bronze.store.contract import CHANGES_SCHEMA, require_format
from deltasmelt.bronze.store.marks import READER_APP, kept_from
from deltasmelt.bronze.store.ownership import foreign
from deltasmelt.bronze.store.position import Position, position_of, same_position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from deltasmelt.bronze.lake.client import AddAction
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.lsn import Lsn


PREFIXES: Final = ("stream-", "snapshot-")
"""Prefixes of the names of the reader's files."""


def remove_leftovers(changes: Table) -> int:
    """Remove files that no version names; return the number of removed files.

    A process that is killed during a write leaves such files: up to the whole of a table that was being
    copied. Only the lake's new reader removes the files, because vacuum cannot distinguish them from files
    that a later commit names (`bronze.lake.compaction`).

    The removal is safe, because it runs right after the reader's claim (`bronze.store.sink`), before the
    reader itself writes. From the claim on no commit of an earlier reader succeeds, so an unnamed file stays
    unnamed.

    `changes` is `bronze.changes` at its newest version, claimed.

    Raises:
        DeltaError, OSError: the lake cannot be read or written.
    """
    uri = changes.table_uri
    files = perform(Effect.LIST_FILES, uri, lambda: file_system(uri).get_file_info(FileSelector("")))
    names = {file.base_name for file in files if file.base_name.startswith(PREFIXES)}
    if not names:
        return 0
    names -= set(changes.paths())
    if names:
        # The log names compacted files as removed. `bronze.lake.compaction` removes these files later,
        # because a process may be reading an older version.
        names -= set(changes.removed_files())  # joined files
    delete_files(uri, sorted(names))
    return len(names)


def commit_changes(changes: Table, parts: Sequence[AddAction], marks: Sequence[Transaction]) -> None:
    """Write one commit; the handle stays at the version before, and nothing is flushed yet.

    Raises:
        CommitFailedError: an id was written since the handle's version.
    """
    changes.commit(parts, CHANGES_SCHEMA, marks)


def commit_marks(changes: Table, marks: Sequence[Transaction]) -> None:
    """Write marks alone, in one durable commit; afterwards the handle is at the newest version.

    Delta allows such a commit in parallel with commits of stream and snapshots, from any process, if the ids
    differ (`bronze.store.gaps`, `bronze.stream.timeline`).

    Raises:
        CommitFailedError: an id was written since the handle's version.
    """
    version = changes.version()
    commit_changes(changes, [], marks)
    changes.settle(version)
    changes.state_marks()


def own_commit_late(uri: str) -> TransientError:
    """Return ``lake-unwritable``: Delta refused a commit because of an earlier commit of this process."""
    return TransientError(
        "an earlier commit that the reader had abandoned became visible during the next commit",
        code="lake-unwritable",
        where=uri,
        remedy="nothing to do: the stream continues after this commit",
    )


def moved_meanwhile(uri: str) -> TransientError:
    """Return ``concurrent-change``: an earlier reader committed while the next reader was starting."""
    return TransientError(
        "an earlier reader of this lake made its last commit during the start of this reader",
        code="concurrent-change",
        where=uri,
        remedy="nothing to do: the stream restarts after this commit",
    )


def lake_in_use(uri: str, remedy: str) -> DefiniteError:
    """Return ``lake-in-use``: Delta refused a commit because another process wrote the same ids.

    `remedy` names the process to stop.
    """
    return DefiniteError(
        "another process wrote to this table at the same time", code="lake-in-use", where=uri, remedy=remedy
    )


_T = TypeVar("_T")


class ChangesTable:
    """`bronze.changes`, opened for writing; created if missing.

    Threads: the session's writer commits; the copies' threads commit and read; the reader's thread reads and
    claims. Each method holds `_lock` while it uses the handle. The lock guards `_table` (including the
    handle's version), `_flushed`, `_position`, `_attempted`, `_owner`, `_unseen`, `_adopts` and `_doubtful`.
    `uri` and `_ours` never change.

    Args:
        properties: properties of a new table; they name the pipeline and the source.

    Raises:
        DefiniteError: ``lake-of-another-pipeline``, ``lake-of-another-server``, ``lake-of-another-database``.
    """

    def __init__(self, uri: str, properties: Mapping[str, str]) -> None:
        self.uri = uri
        self._lock = threading.Lock()
        self._table = delta.open_or_create(
            uri, CHANGES_SCHEMA, description="Every change, in commit order", properties=properties
        )
        require_format(self._table)
        for error in foreign(uri, self._table.metadata().configuration, properties):
            raise error
        with lake_failures(uri, "bronze"):
            self._table.state_marks()
        self._position = position_of(self._table)
        self._attempted: list[Position] = []  # since the last commit known to have succeeded
        self._flushed = self._table.version()
        self._owner = self._table.transaction_version(READER_APP)
        self._kept_from = kept_from(self._table)
        self._ours = secrets.randbits(62)
        self._unseen = False  # the handle may be behind a commit of this reader
        self._adopts = False
        self._doubtful: list[str] = []

    @property
    def version(self) -> int:
        """The newest version that the handle has read and flushed."""
        with self._lock:
            return self._flushed

    @property
    def kept_from(self) -> Lsn:
        """The mark of removed changes in the newest version that the handle has read."""
        with self._lock:
            return self._kept_from

    @property
    def owner(self) -> Transaction:
        """The mark of this reader, part of each commit."""
        return Transaction(READER_APP, self._ours)

    def adopt(self) -> None:
        """Accept commits of an earlier reader, until `claim`."""
        with self._lock:
            self._adopts = True

    def claim(self) -> Position | None:
        """Become the only reader: from now on no commit of another reader succeeds.

        Returns:
            The position of the stream.

        Raises:
            DefiniteError: ``lake-in-use``: another reader claims the table concurrently.
            TransientError: ``concurrent-change``: an earlier reader committed concurrently;
                ``lake-unwritable``.
        """
        self.commit([], [])
        with self._lock:
            self._adopts = False
            return self._position

    def position(self) -> Position | None:
        """Refresh the table and return the position of the stream; None before the first commit.

        Raises:
            DefiniteError: ``lake-in-use``.
            TransientError: ``lake-unwritable``.
        """
        with self._lock, lake_failures(self.uri, "bronze"):
            self._refresh()
            return self._position

    def read_newest(self, read: Callable[[Table], _T]) -> _T:
        """Refresh the table and return the result of `read`; raises like `position`."""
        with self._lock, lake_failures(self.uri, "bronze"):
            self._refresh()
            return read(self._table)

    @contextmanager
    def held(self) -> Iterator[Table]:
        """Yield the handle at its present version; no other thread uses the handle until the block ends."""
        with self._lock:
            yield self._table

    def maintain(self, work: Callable[[Table], object]) -> int:
        """Run maintenance with its own commits; return the version afterwards; raises like `position`."""
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
        more: Callable[[Table], Sequence[Transaction]] | None = None,
    ) -> int:
        """Make files visible and durable together with marks; return the version with both.

        Args:
            parts: files that are complete on disk; after a failure this class removes them.
            marks: the marks of the commit; this method adds the reader's own mark.
            position: position of the stream after this commit, for a commit of the stream.
            more: returns marks that depend on the newest version.

        Raises:
            DefiniteError: ``lake-in-use``: another process wrote an id of the marks meanwhile.
            TransientError: ``lake-unwritable``, also if an earlier commit of this reader was given up and
                succeeded late; `position` then shows whether the commit succeeded. ``concurrent-change``:
                before a claim, an earlier reader's commit.
        """
        with self._lock, lake_failures(self.uri, "bronze"):
            in_doubt, self._doubtful = self._doubtful, [*self._doubtful, *(part.path for part in parts)]
            # Another thread may have committed through the shared handle. Without a refresh Delta would
            # refuse this commit because of this reader's own commit.
            if self._unseen or more is not None:
                self._refresh()
            if more is not None:
                marks = [*marks, *more(self._table)]
            if position is not None:
                self._attempted.append(position)
            old_version = self._table.version()
            self._unseen = True
            try:
                commit_changes(self._table, parts, [*marks, self.owner])
            except CommitFailedError as error:
                self._refresh()  # raises for a commit of another reader
                late = moved_meanwhile if self._adopts else own_commit_late
                raise late(self.uri) from error
            version = self._refresh(after=old_version)
            self._attempted = []
            self._doubtful = in_doubt
            # The version number that a lost commit could have taken is in use now, so its files can be
            # removed.
            self._remove_doubtful()
            self._table.checkpoint_if_due(old_version)
            self._table.state_marks()
            if self._table.version() > version:
                self._refresh()
        return version

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files that no commit will name, as far as possible; a later start removes the rest."""
        with suppress(OSError, pa.ArrowException):
            delete_files(self.uri, paths)

    def _remove_doubtful(self) -> None:
        """Remove the files of earlier commits that have finally failed; call after a successful commit."""
        if self._doubtful:
            with suppress(OSError, pa.ArrowException):  # the next start removes the rest
                delete_files(self.uri, set(self._doubtful) - set(self._table.paths()))
            self._doubtful = []

    def _refresh(self, *, after: int = -1) -> int:
        """Move the handle to the newest version, greater than `after`; flush new entries to disk."""
        version = self._table.refresh(after=after)
        position, owner = position_of(self._table), self._table.transaction_version(READER_APP)
        # Delta compares application ids with the ids written since the handle's version. A move of the handle
        # must therefore not hide the commit of another reader.
        is_own = any(same_position(position, own) for own in (self._position, *self._attempted))
        if not self._adopts and (not is_own or owner not in (self._owner, self._ours)):
            raise self._in_use()
        # The reader confirms the slot because of these entries, so the entries must survive a power cut.
        self._table.flush(self._flushed, version)
        self._flushed = version
        self._position = position
        self._owner = owner
        self._kept_from = kept_from(self._table)
        self._unseen = False
        return version

    def _in_use(self) -> DefiniteError:
        return lake_in_use(self.uri, "stop the other reader of this pipeline; one lake has one reader")
