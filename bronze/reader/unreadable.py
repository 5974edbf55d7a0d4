"""Tables whose changes the stream cannot read, for a reason that no rule knows.

Each is left out and tells so as an error of its own, so that the others go on. After a pause, a longer one
each time, it is carried again, by a new session, and a snapshot heals what is missing.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from bronze.catalog.problems import unreadable
from bronze.reader.pauses import Pause

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from bronze.config.timing import Timing
    from bronze.errors import TableError
    from bronze.identifiers import TableName
    from bronze.lsn import Lsn


class UnreadableTables:
    """The tables that are left out, and until when.

    Threads: the stream's thread calls `add`, looks call the rest; one lock holds both fields.

    Args:
        timing: how long a table is left out.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._lock = threading.Lock()
        self._errors: dict[TableName, TableError] = {}
        self._pauses: dict[TableName, Pause] = {}

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
            self._pauses[table] = Pause.after(self._pauses.get(table), self._timing)
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
                over = carried.get(table) is False and self._pauses[table].is_over
                if over or table not in selected:
                    del self._errors[table]
            for table in self._pauses.keys() - selected:
                del self._pauses[table]

    def errors(self) -> dict[TableName, TableError]:
        """The error of each table that is left out."""
        with self._lock:
            return dict(self._errors)
