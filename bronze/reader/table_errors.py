"""Record errors of the source's tables in `control.errors`, and determine the tables to retry.

Catalog polls find problems of tables (`bronze.reader.carried_tables`), and copies fail
(`bronze.reader.copies`). An error is recorded once. The first poll without a problem closes the problem's
error. The error of a copy is closed once any process has copied the table. Polls do not find such an error,
and neither a retry nor a restart proves its end.

**Unreadable tables.** The stream cannot read the changes of such a table, because of an unforeseen error. The
session leaves the table out and records a table error; all other tables continue. After a growing pause a new
session carries the table again, and a snapshot heals the missing changes.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.backoff import Pauses
from deltasmelt.bronze.catalog.problems import unreadable
from deltasmelt.bronze.lake.control import OpenError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from deltasmelt.bronze.config.timing import Timing
    from deltasmelt.bronze.errors import TableError
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lsn import Lsn


class UnreadableTables:
    """The tables that are left out, and the end of each table's pause.

    Threads: the stream's thread calls `add`, polls call the other methods; one lock protects both fields.
    """

    def __init__(self, timing: Timing) -> None:
        self._lock = threading.Lock()
        self._errors: dict[TableName, TableError] = {}
        self._pauses = _pauses(timing)

    def add(self, table: TableName, lsn: Lsn, error: Exception) -> bool:
        """Leave a table out; return whether the table is newly left out.

        `lsn` is the commit LSN of the first change that is left out.
        """
        problem = unreadable(table, f"its changes from {lsn} on cannot be read", error)
        with self._lock:
            if table in self._errors:
                return False
            self._errors[table] = problem
            self._pauses.failed(table)
            return True

    def release(self, selected: AbstractSet[TableName], carried: Mapping[TableName, bool]) -> None:
        """Forget tables whose pause is over, and tables that are no longer selected."""
        with self._lock:
            for table in list(self._errors):
                # A table that the last poll carries stays, because a new session reads only tables that a
                # poll has left out.
                over = carried.get(table) is False and not self._pauses.rests(table)
                if over or table not in selected:
                    del self._errors[table]
            for table in self._pauses:
                if table not in selected:
                    self._pauses.passed(table)

    def errors(self) -> dict[TableName, TableError]:
        """Return the error of each table that is left out."""
        with self._lock:
            return dict(self._errors)


class RepeatedCopies:
    """Growing pauses between copies of tables whose changes the stream brings in part, again and again.

    The first copy follows at once. A table without such a change for the longest pause begins anew. Copies
    for other reasons begin no pause. A run with a target does not wait for a pause: the table's gap is
    durable, and the next run copies the table at once.

    Threads: the stream's thread calls `needed`, polls call `resting`, and the copies' thread calls `copied`;
    one lock protects all fields.
    """

    def __init__(self, timing: Timing) -> None:
        self._lock = threading.Lock()
        self._pauses = _pauses(timing)
        self._longest = timing.longest_pause
        self._needed: set[TableName] = set()
        self._copied_at: dict[TableName, float] = {}

    def needed(self, table: TableName) -> None:
        """Note that only a copy has a table's newest rows."""
        with self._lock:
            self._needed.add(table)
            copied_at = self._copied_at.get(table)
            if copied_at is not None and time.monotonic() - copied_at > self._longest:
                self._pauses.passed(table)

    def copied(self, tables: Collection[TableName]) -> None:
        """Begin the next pause of each table that was copied for such changes."""
        with self._lock:
            for table in self._needed.intersection(tables):
                self._needed.discard(table)
                self._copied_at[table] = time.monotonic()
                self._pauses.failed(table)

    def resting(self) -> list[TableName]:
        """Return the tables whose pause lasts."""
        with self._lock:
            return [table for table in self._pauses if self._pauses.rests(table)]


_LOGGER = logging.getLogger("deltasmelt.reader")
SOURCE_CODES: Final = frozenset(
    {
        "character-not-convertible",
        "column-name-reserved",
        "column-rule-key",
        "column-rule-lost",
        "column-rule-unknown",
        "columns-differ-only-in-case",
        "copy-failed",
        "executors-unfit",
        "identity-generated",
        "key-column-unknown",
        "key-generated",
        "key-not-in-identity",
        "partition-identity",
        "partition-not-logged",
        "partition-privilege",
        "permission-denied",
        "publication-column-list",
        "publication-partition-root",
        "publication-row-filter",
        "publication-rules",
        "replica-identity-missing",
        "replica-identity-nothing",
        "row-filter-columns",
        "row-filter-invalid",
        "rule-table-unknown",
        "row-level-security",
        "rules-need-15",
        "schema-privilege",
        "server-error",
        "silver-name-clash",
        "table-unreadable",
        "table-changed",
        "table-gone",
        "table-locked",
        "table-not-published",
        "table-privilege",
        "table-without-key",
    }
)
"""Errors of a table found at the source; silver closes all others."""
_OF_COPIES: Final = frozenset(
    {
        "character-not-convertible",
        "copy-failed",
        "executors-unfit",
        "permission-denied",
        "server-error",
        "table-changed",
        "table-gone",
        "table-locked",
    }
)
"""Errors that end a copy. A poll without such an error proves nothing while the table is not copied."""
_RESTATED: Final = frozenset(
    {
        "identity-generated",
        "replica-identity-missing",
        "replica-identity-nothing",
        "table-unreadable",
        "table-without-key",
    }
)
"""Errors that a poll records again with a new text.

The text depends on the publication's effect on the table, or on the reason of an unreadable table. The stream
does not know the reason as well as the poll.
"""


class TableErrors:
    """The failed tables, and the recorded errors of all tables.

    Threads: polls (on the copies' or the watch's thread) and the copies' thread call the methods
    concurrently; the stream's thread never does. One lock protects the failures, the stream's marks and each
    record, including the write to the lake.

    Args:
        strays: selects the open pipeline errors of other processes; polls close these errors.
    """

    def __init__(
        self,
        control: ControlTables,
        timing: Timing,
        *,
        strays: Callable[[Sequence[OpenError]], Sequence[OpenError]] = lambda _: (),
    ) -> None:
        self._control = control
        self._strays = strays
        # Without the lock, a poll that read the open errors before a copy failed would close the new error.
        self._lock = threading.Lock()
        self._failed = _pauses(timing)  # tables whose copy or joining failed
        self._tried_at: dict[TableName, Lsn | None] = {}  # resnapshot marks at the failure
        self._of_stream: dict[TableName, Lsn | None] = {}

    def record_poll(
        self, problems: Mapping[TableName, Sequence[TableError]], uncopied: Collection[TableName] = ()
    ) -> None:
        """Record the problems found by a poll.

        Args:
            problems: problems of each selected table. Other problems are closed, and so are all problems of
                an unselected table.
            uncopied: tables without a problem that need a copy; errors of their copies stay open.

        Raises:
            OSError, DeltaError: the lake cannot be read or written.
        """
        errors = [_recorded(problem) for of_table in problems.values() for problem in of_table]
        keys = {error.key for error in errors}
        not_copied = {str(table) for table in uncopied} | {error.name for error in errors}
        with self._lock:
            self._forget_unselected(problems)
            failed = {str(table) for table in self._failed if not problems.get(table)}
            open_errors = self._control.open_errors()
            open_keys = {error.key for error in open_errors}
            healed = [
                error
                for error in open_errors
                if error.scope == "table" and error.code in SOURCE_CODES and error.key not in keys
                if error.name not in not_copied or (error.code not in _OF_COPIES and error.name not in failed)
            ]
            # All errors that one poll opens are one commit, and so are all errors that the poll closes.
            self._control.restate_errors(
                [error for error in errors if error.code in _RESTATED or error.key not in open_keys],
                healed=[*healed, *self._strays(open_errors)],
            )

    def _forget_unselected(self, selected: Collection[TableName]) -> None:
        """Forget the failures of tables that are gone; a table of that name begins without a pause."""
        for table in {*self._failed, *self._tried_at, *self._of_stream} - {*selected}:
            self._failed.passed(table)
            self._tried_at.pop(table, None)
            self._of_stream.pop(table, None)

    def cannot_join(self, error: TableError, mark: Lsn | None) -> None:
        """Note the pause of a table that waits for others, and record nothing.

        The current poll records the error of a table that cannot join the publication yet. A renewal of a
        snapshot that waits is no error.
        """
        _LOGGER.warning("%s", error)
        with self._lock:
            self._note(error.table, mark)

    def copy_failed(self, error: TableError, mark: Lsn | None) -> None:
        """Record that a table could not be copied.

        Args:
            mark: the table's resnapshot mark in the poll that requested this copy. A later mark requests
                another copy.

        Raises:
            OSError, DeltaError: the lake cannot be read or written.
        """
        _LOGGER.error("%s", error)
        failed = replace(_recorded(error), commit_lsn=mark)
        with self._lock:
            self._note(error.table, mark)
            before = [entry for entry in self._control.open_errors() if entry.key == failed.key]
            # After a newer request the failure is recorded again: the requester must see that this attempt
            # failed, too.
            self._control.close_all([entry for entry in before if entry.commit_lsn != mark])
            self._control.record_errors([failed])

    def copied(self, tables: Collection[TableName]) -> None:
        """Close the errors of tables that are complete in bronze.

        Raises:
            OSError, DeltaError: the lake cannot be read or written; the next poll closes the errors.
        """
        names = {str(table) for table in tables}
        with self._lock:
            for table in tables:
                self._failed.passed(table)
                self._tried_at.pop(table, None)
            if names:
                open_errors = [error for error in self._control.open_errors() if error.scope == "table"]
                self._control.close_all(
                    [error for error in open_errors if error.name in names and error.code in SOURCE_CODES]
                )

    def may_be_tried(self, table: TableName, mark: Lsn | None, *, by_stream: bool) -> bool:
        """Check whether a table did not fail, its pause is over, or a newer request exists.

        Args:
            by_stream: whether the stream requested the table since the last call. The mark is then the
                stream's mark, and ends no pause, now or later.
        """
        with self._lock:
            if by_stream:  # also during a copy, which may fail later
                self._of_stream[table] = mark
            processed_marks = self._tried_at.get(table), self._of_stream.get(table)
            return not self._failed.rests(table) or mark not in processed_marks

    def _note(self, table: TableName, mark: Lsn | None) -> None:
        self._failed.failed(table)
        self._tried_at[table] = mark


def _pauses(timing: Timing) -> Pauses[TableName]:
    """Return pauses that end a little early, so that the poll at the end of a pause finds the pause over."""
    return Pauses(timing.catalog_poll, timing.longest_pause, share=0.9)


def _recorded(error: TableError) -> OpenError:
    return OpenError("table", str(error.table), error.code, error.message, error.remedy)
