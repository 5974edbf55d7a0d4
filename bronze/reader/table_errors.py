"""What `control.errors` says of the source's tables, and which of them could not be copied.

Looks find problems of tables (`bronze.reader.carried_tables`), copies fail (`bronze.reader.copies`). An error
is recorded once. What a look found is closed by the look that finds it no more. What ended a copy is closed
when the table is copied, by whichever process: no look finds such an error, and neither a new attempt nor a
restart shows that it is gone.

A copy that fails once more is recorded anew only where a newer request was made of it: whoever requested it
is to see that this attempt failed, too.

What one look opens is one commit, and so is what it closes.

Tables whose changes the stream cannot read, for a reason that no rule knows.

Each is left out and tells so as an error of its own, so that the others go on. After a pause, a longer one
each time, it is carried again, by a new session, and a snapshot heals what is missing.
"""

from __future__ import annotations

import logging
import threading
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
    """The tables that are left out, and until when.

    Threads: the stream's thread calls `add`, looks call the rest; one lock holds both fields.

    Args:
        timing: how long a table is left out.
    """

    def __init__(self, timing: Timing) -> None:
        self._lock = threading.Lock()
        self._errors: dict[TableName, TableError] = {}
        self._pauses = _pauses(timing)

    def add(self, table: TableName, lsn: Lsn, error: Exception) -> bool:
        """Leave a table out.

        Args:
            table: which.
            lsn: commit LSN of the first of the changes that are left out.
            error: what nobody foresaw.

        Returns:
            Whether that is news.
        """
        problem = unreadable(table, f"its changes from {lsn} on cannot be read", error)
        with self._lock:
            if table in self._errors:
                return False
            self._errors[table] = problem
            self._pauses.failed(table)
            return True

    def release(self, selected: AbstractSet[TableName], carried: Mapping[TableName, bool]) -> None:
        """Forget those whose pause is over, and those that are selected no longer.

        Args:
            selected: the tables that are selected now.
            carried: which tables the last look carries. One that it does carry stays: only a table that a
                look has left out is read by a new session.
        """
        with self._lock:
            for table in list(self._errors):
                over = carried.get(table) is False and not self._pauses.rests(table)
                if over or table not in selected:
                    del self._errors[table]
            for table in self._pauses:
                if table not in selected:
                    self._pauses.passed(table)

    def errors(self) -> dict[TableName, TableError]:
        """The error of each table that is left out."""
        with self._lock:
            return dict(self._errors)


_LOGGER = logging.getLogger("deltasmelt.reader")
SOURCE_CODES: Final = frozenset(
    {
        "character-not-convertible",
        "column-name-reserved",
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
        "replica-identity-missing",
        "replica-identity-nothing",
        "row-level-security",
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
"""Errors of a table that are found at the source; the others are silver's to close."""
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
"""Errors that end a copy. A look that does not find one proves nothing while the table is not copied."""
_RESTATED: Final = frozenset(
    {
        "identity-generated",
        "replica-identity-missing",
        "replica-identity-nothing",
        "table-unreadable",
        "table-without-key",
    }
)
"""Errors that a look records anew where its text is another: what the publication does to the table, and why
the table cannot be read, which the stream does not know as well."""


class TableErrors:
    """The tables that failed, and what is recorded of all.

    Threads: looks (on the copies' thread or the watch's) and the copies' thread call this side by side; the
    stream's thread never does. One lock holds the failures, the stream's marks and each record together, over
    the write to the lake too: else a look that read the open errors before a copy failed would close what
    that failure says.

    Args:
        control: where errors are recorded.
        timing: how long a table that failed is left alone.
        strays: which of the open errors are the pipeline's and another process's; looks close them.
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
        self._lock = threading.Lock()
        self._failed = _pauses(timing)  # could not be copied, or not be made a member of the publication
        self._tried_at: dict[TableName, Lsn | None] = {}  # the resnapshot marks of these tables at that time
        self._of_stream: dict[TableName, Lsn | None] = {}

    def looked(
        self, problems: Mapping[TableName, Sequence[TableError]], uncopied: Collection[TableName] = ()
    ) -> None:
        """Record what a look found.

        Args:
            problems: of each selected table; what is not among them is closed, as is all of a table that is
                not selected any more.
            uncopied: tables without a problem that need a copy; what ended one stays open.

        Raises:
            OSError, DeltaError: the lake cannot be read or written.
        """
        found = [_recorded(problem) for each in problems.values() for problem in each]
        keys = {error.key for error in found}
        not_copied = {str(table) for table in uncopied} | {error.name for error in found}
        with self._lock:
            failed = {str(table) for table in self._failed if not problems.get(table)}
            known = self._control.open_errors()
            before = {error.key for error in known}
            healed = [
                error
                for error in known
                if error.scope == "table" and error.code in SOURCE_CODES and error.key not in keys
                if error.name not in not_copied or (error.code not in _OF_COPIES and error.name not in failed)
            ]
            self._control.restate_errors(
                [error for error in found if error.code in _RESTATED or error.key not in before],
                healed=[*healed, *self._strays(known)],
            )

    def cannot_join(self, error: TableError, mark: Lsn | None) -> None:
        """A table cannot be made a member of the publication yet; the look that found so records it.

        Args:
            error: why.
            mark: the table's resnapshot mark, if it has one.
        """
        _LOGGER.warning("%s", error)
        with self._lock:
            self._note(error.table, mark)

    def copy_failed(self, error: TableError, mark: Lsn | None) -> None:
        """Record that a table could not be copied.

        Args:
            error: why.
            mark: the table's resnapshot mark as the look had it that asked for this copy. One that was set
                since then asks for another. With a mark that the open error does not have, the error is
                recorded anew.

        Raises:
            OSError, DeltaError: the lake cannot be read or written.
        """
        _LOGGER.error("%s", error)
        failed = replace(_recorded(error), commit_lsn=mark)
        with self._lock:
            self._note(error.table, mark)
            before = [one for one in self._control.open_errors() if one.key == failed.key]
            self._control.close_all([one for one in before if one.commit_lsn != mark])
            self._control.record_errors([failed])

    def copied(self, tables: Collection[TableName]) -> None:
        """These tables are complete in bronze: their errors are closed.

        Raises:
            OSError, DeltaError: the lake cannot be read or written; the next look closes them.
        """
        names = {str(table) for table in tables}
        with self._lock:
            for table in tables:
                self._failed.passed(table)
                self._tried_at.pop(table, None)
            if names:
                known = [one for one in self._control.open_errors() if one.scope == "table"]
                self._control.close_all(
                    [one for one in known if one.name in names and one.code in SOURCE_CODES]
                )

    def may_be_tried(self, table: TableName, mark: Lsn | None, *, by_stream: bool) -> bool:
        """Whether a table did not fail, or its pause is over, or it was asked for since.

        Args:
            table: which.
            mark: its resnapshot mark now.
            by_stream: the stream asked for it since this was asked last. The mark is its own then, and ends
                no pause, now or later.
        """
        with self._lock:
            if by_stream:  # also of one that is being copied, which may fail later
                self._of_stream[table] = mark
            known = self._tried_at.get(table), self._of_stream.get(table)
            return not self._failed.rests(table) or mark not in known

    def _note(self, table: TableName, mark: Lsn | None) -> None:
        self._failed.failed(table)
        self._tried_at[table] = mark


def _pauses(timing: Timing) -> Pauses[TableName]:
    """Return pauses that end a little early, so that the poll at the end of a pause finds it over."""
    return Pauses(timing.look, timing.longest_pause, share=0.9)


def _recorded(error: TableError) -> OpenError:
    return OpenError("table", str(error.table), error.code, error.message, error.remedy)
