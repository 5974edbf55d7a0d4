"""What `control.errors` says of the source's tables, and which of them could not be copied.

Looks find problems of tables (`bronze.reader.carried_tables`), copies fail (`bronze.reader.copies`). An error
is recorded once and closed when a look no longer finds it, or with the copy that follows. The error of a copy
that failed stays open until the table is tried again, for no look finds it.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bronze.lake.control import OpenError
from bronze.reader.pauses import Pause

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from bronze.config.timing import Timing
    from bronze.errors import TableError
    from bronze.identifiers import TableName
    from bronze.lake.control_tables import ControlTables
    from bronze.lsn import Lsn

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


@dataclass(frozen=True, slots=True)
class _Failure:
    """A table that could not be copied, or not be made a member of the publication.

    Attributes:
        pause: after which it is tried again.
        mark: its resnapshot mark when it was tried (`bronze.store.resnapshot`).
    """

    pause: Pause
    mark: Lsn | None


class TableErrors:
    """The tables that failed, and what is recorded of all.

    Threads: looks (on the copies' thread or the watch's) and the copies' thread call this side by side; the
    stream's thread never does. One lock holds the failures, the stream's marks and each record together, over
    the write to the lake too: else a look that read the open errors before a copy failed would close what
    that failure says.

    Args:
        control: where errors are recorded.
        timing: how long a table that failed is left alone.
    """

    def __init__(self, control: ControlTables, timing: Timing) -> None:
        self._control = control
        self._timing = timing
        self._lock = threading.Lock()
        self._failed: dict[TableName, _Failure] = {}
        self._of_stream: dict[TableName, Lsn | None] = {}

    def looked(self, problems: Mapping[TableName, Sequence[TableError]]) -> None:
        """Record what a look found.

        Args:
            problems: of each selected table; of a table without any, and of one that is not selected any
                more, errors are closed.

        Raises:
            OSError, DeltaError: the lake cannot be read or written.
        """
        with self._lock:
            open_errors = self._control.open_errors()
            for table, found in problems.items():
                self._open(found)
                if found or table not in self._failed:
                    self._close(table, SOURCE_CODES - {problem.code for problem in found}, open_errors)
            selected = {str(table) for table in problems}
            for error in open_errors:
                if error.scope == "table" and error.name not in selected and error.code in SOURCE_CODES:
                    self._control.close_errors("table", error.name, error.code)

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
                since then asks for another.

        Raises:
            OSError, DeltaError: the lake cannot be read or written.
        """
        _LOGGER.error("%s", error)
        with self._lock:
            self._note(error.table, mark)
            open_errors = self._control.open_errors()
            self._open([error])
            self._close(error.table, SOURCE_CODES - {error.code}, open_errors)

    def tried_again(self, tables: Iterable[TableName]) -> None:
        """Close the errors of those of these tables that failed, so that a second failure is seen as one.

        Raises:
            OSError, DeltaError: the lake cannot be read or written.
        """
        with self._lock:
            open_errors = self._control.open_errors()
            for table in tables:
                if table in self._failed:
                    self._close(table, SOURCE_CODES, open_errors)

    def copied(self, tables: Iterable[TableName]) -> None:
        """These tables are complete in bronze."""
        with self._lock:
            for table in tables:
                self._failed.pop(table, None)

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
            failure, of_stream = self._failed.get(table), self._of_stream.get(table)
        return failure is None or failure.pause.is_over or mark not in (failure.mark, of_stream)

    def _note(self, table: TableName, mark: Lsn | None) -> None:
        before = self._failed.get(table)
        pause = Pause.after(None if before is None else before.pause, self._timing)
        self._failed[table] = _Failure(pause, mark)

    def _open(self, problems: Iterable[TableError]) -> None:
        for problem in problems:
            self._control.open_error(
                OpenError("table", str(problem.table), problem.code, problem.message, problem.remedy)
            )

    def _close(self, table: TableName, codes: Collection[str], open_errors: Iterable[OpenError]) -> None:
        for known in open_errors:
            if known.scope == "table" and known.name == str(table) and known.code in codes:
                self._control.close_errors("table", str(table), known.code)
