"""Each statement writes the table's LSN, the mark, in the commit of the rows.

**At a location** Delta's ``txn`` action is the mark. The session names the action by settings, and
`deltalake` reads the action. Delta skips a write whose mark is not above the table's mark, so Delta never
applies a window twice.

**In a catalog** only SQL reads the table, and SQL shows no ``txn`` action. So a commit also holds the mark in
``userMetadata`` (`bronze.lake.catalog.commit_marks`). The ``txn`` action stays, for Delta's skip. A statement
that adds or replaces rows uses the DataFrame writer, which accepts both as options. A MERGE has no options,
only settings.

**Where a server guards these settings**, as serverless compute does, a MERGE states the mark in the condition
and has no ``txn`` action. No window is applied twice there either:

* One process at a time writes a layer: the process requires the lake's lock or lease directly before each
  statement (`silver.run.writer`).
* Within the process, an attempt first reads the table's newest version and mark. After a failed statement or
  a lost answer, the next attempt finds the mark, and the window is done.
* A process without the lease meets the owner's MERGE in Delta. Delta rejects the later of two overlapping
  MERGEs, because the later MERGE read files that the earlier MERGE replaced. With row-level conflict
  detection, Delta rejects the later MERGE if both changed the same row.
* A process without the lease may begin after the owner's MERGE, and still know the older mark. The process
  then applies the window again. A fold's values follow from the version before the window, so a MERGE by key
  writes the same rows. A history table has no such protection; only the lock prevents a second application.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lake.catalog import commit_marks
from deltasmelt.bronze.lake.place import place_of
from deltasmelt.silver.spark.tuning import mark_settings, may_set

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lsn import Lsn

KNOWN_AFTER: Final = "known_after"
"""Key in a catalog's commit for the LSN before the window of a MERGE of known rows."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The position of a table after the commit of a statement.

    Attributes:
        app: application id.
        lsn: LSN of the table after the commit.
        position: LSN of the table before the commit; None without a mark.
        known_after: LSN at which the window begins, for a MERGE of known rows alone.
    """

    app: str
    lsn: Lsn
    position: Lsn | None
    known_after: Lsn | None = None

    @property
    def is_new(self) -> bool:
        """Whether the commit needs a mark: a write that corrects rows leaves the table's mark unchanged."""
        return self.position is None or self.lsn > self.position

    @property
    def user_metadata(self) -> str:
        """The ``userMetadata`` of a commit in a catalog."""
        more = {} if self.known_after is None else {KNOWN_AFTER: int(self.known_after)}
        return commit_marks.said({self.app: int(self.lsn)}, **more)


@dataclass(frozen=True, slots=True)
class MarkWriter:
    """The place of the mark in a MERGE: settings of the session for the statement alone, or the condition."""

    settings: Mapping[str, str]
    in_condition: Lsn | None = None

    def conditions(self, column: str) -> tuple[str, ...]:
        """Return conditions for the MERGE over an LSN column of the target, in SQL."""
        return () if self.in_condition is None else (commit_marks.condition(column, int(self.in_condition)),)


def writer_of(session: SparkSession, uri: str, mark: Mark) -> MarkWriter:
    """Return the place of the mark for a MERGE in this session into the table at `uri`."""
    session_settings = mark_settings(mark.app, mark.lsn, mark.position)
    if not place_of(uri).marks_in_metadata:
        return MarkWriter({**_known_rows(mark), **session_settings})
    # In a catalog a write that corrects rows needs no mark.
    if not mark.is_new:
        return MarkWriter({})
    session_settings[commit_marks.USER_METADATA] = mark.user_metadata
    return MarkWriter(session_settings) if may_set(session, session_settings) else MarkWriter({}, mark.lsn)


def may_be_known(session: SparkSession, uri: str) -> bool:
    """Check whether a MERGE of known rows can state its kind in the commit."""
    # A MERGE of known rows (`silver.run.step_runner`) also states the LSN at which its window began, which a
    # condition cannot state.
    return not place_of(uri).marks_in_metadata or may_set(session, {commit_marks.USER_METADATA: ""})


def _known_rows(mark: Mark) -> dict[str, str]:
    """Return settings that mark a commit as a MERGE of known rows (`SilverLog.lacks_rows`)."""
    if mark.known_after is None:
        return {}
    return {commit_marks.USER_METADATA: f"deltasmelt: known rows after {int(mark.known_after)}"}
