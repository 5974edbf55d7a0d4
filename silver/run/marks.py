"""How a statement tells which LSN its table is at, in the very commit of its rows.

**At a location** Delta's ``txn`` action does it. A session names it by settings, and `deltalake` reads it.
Delta skips a write whose mark is not above the table's, so a window is never applied twice.

**In a catalog** only SQL reads the table, and SQL shows no ``txn`` actions. So a commit also says its mark in
its ``userMetadata`` (`bronze.lake.catalog.commit_marks`); the ``txn`` action stays beside it, for Delta's
skip. A statement that adds or replaces rows goes through the DataFrame writer, which takes both as options. A
MERGE has no options, but settings.

**Where a server guards these settings**, as serverless compute does, a MERGE tells its mark in its condition,
and carries no ``txn`` action. Why no window is applied twice there either:

* One process at a time writes a layer: it holds the lake's lock or lease, and requires it right before each
  statement (`silver.run.writer`).
* Within it, whoever runs a statement has read the table's newest version and mark first. So it is where a
  statement failed, or its answer was lost: the next attempt finds the mark, and the window is done.
* Another process that writes in spite of all that has its MERGE meet ours in Delta. Of two that overlap, the
  later one is refused, as it read files that the other replaced; where rows are ordered one by one, as it
  changed the same row. One that begins between the other's end and
  its own look at the mark applies a window again. A fold's values follow from the version before the window,
  so a MERGE by key leaves the same rows again. Of a history that does not hold: the lock alone guards it.

A MERGE of known rows (`silver.run.step_runner`) must say where its window began, which a condition does not
tell. There it is not used.
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
"""What a commit in a catalog says beside its mark: a MERGE of known rows, of a window after this LSN."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What a table holds once a statement is committed.

    Attributes:
        app: application id.
        lsn: that the table is at then.
        position: that it is at before; None where it has no mark.
        known_after: of a MERGE of known rows: where its window begins.
    """

    app: str
    lsn: Lsn
    position: Lsn | None
    known_after: Lsn | None = None

    @property
    def is_new(self) -> bool:
        """Whether the statement has anything to tell: a write that mends rows leaves the mark as it is."""
        return self.position is None or self.lsn > self.position

    @property
    def said(self) -> str:
        """The ``userMetadata`` of a commit in a catalog."""
        more = {} if self.known_after is None else {KNOWN_AFTER: int(self.known_after)}
        return commit_marks.said({self.app: int(self.lsn)}, **more)


@dataclass(frozen=True, slots=True)
class MarkWriter:
    """How a MERGE tells its mark.

    Attributes:
        settings: of its session, for this statement alone.
        in_condition: LSN that its condition tells; None where the settings do.
    """

    settings: Mapping[str, str]
    in_condition: Lsn | None = None

    def conditions(self, column: str) -> tuple[str, ...]:
        """What is to stand in the MERGE's condition.

        Args:
            column: of the target, as SQL names it; it holds LSNs.
        """
        return () if self.in_condition is None else (commit_marks.condition(column, int(self.in_condition)),)


def telling(session: SparkSession, uri: str, mark: Mark) -> MarkWriter:
    """How a MERGE into a table tells its mark.

    Args:
        session: in which it runs.
        uri: location of the table.
        mark: to tell.
    """
    wanted = mark_settings(mark.app, mark.lsn, mark.position)
    if not place_of(uri).needs_session:
        return MarkWriter({**_known_rows(mark), **wanted})
    if not mark.is_new:
        return MarkWriter({})
    wanted[commit_marks.USER_METADATA] = mark.said
    return MarkWriter(wanted) if may_set(session, wanted) else MarkWriter({}, mark.lsn)


def may_be_known(session: SparkSession, uri: str) -> bool:
    """Whether a MERGE of known rows can say that it is one."""
    return not place_of(uri).needs_session or may_set(session, {commit_marks.USER_METADATA: ""})


def _known_rows(mark: Mark) -> dict[str, str]:
    """Settings by which a commit says that it is a MERGE of known rows (`SilverLog.lacks_rows`)."""
    if mark.known_after is None:
        return {}
    return {commit_marks.USER_METADATA: f"deltasmelt: known rows after {int(mark.known_after)}"}
