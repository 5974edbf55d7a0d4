"""Commits to `bronze.changes`: the files of rows, if any, and the marks that say what they mean, at once.

Marks alone and none of the ids that stream and snapshots write: such a commit Delta lets pass beside theirs,
from any process (`bronze.store.resnapshot`, `bronze.store.gaps`, `bronze.stream.timeline`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bronze.errors import DefiniteError, TransientError
from bronze.lake import delta, disk
from bronze.store.contract import CHANGES_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalake import DeltaTable, Transaction
    from deltalake.transaction import AddAction


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
    disk.flush_commits(uri, before, delta.refresh(changes, after=before))
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
