"""Which tables of silver failed, and when the next cycle may carry a failed table again.

* A definite error stops the table until a newer snapshot of the table, or until the process restarts.
* Any further failure pauses the table after a second attempt in the same cycle, which continues from the
  table's current mark. A newer snapshot of the table ends the pause.

`silver.spark.failure_scope` decides between the two, and which failures are no table's.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import SmeltError
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lsn import ZERO
from deltasmelt.bronze.store.gaps import is_left_out
from deltasmelt.bronze.store.marks import snapshot_of
from deltasmelt.silver.errors import CODES, definite, failure
from deltasmelt.silver.spark.failure_scope import EXECUTOR_LOST, FailedUnits, outage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.errors import TableError
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.silver.spark.lazy_session import LazySession

_LOGGER: Final = logging.getLogger("deltasmelt.silver")


class FailedTables(FailedUnits["TableName"]):
    """The stopped and paused tables of one lake, each with the snapshot at the failure."""

    def __init__(self, spark: SparkSession | LazySession, lake: Lake, control: ControlTables) -> None:
        super().__init__(spark, lake, self._record_pause, _definite)
        self._control = control
        self._bronze: Table | None = None
        self._end = ZERO
        self._stopped: dict[TableName, Lsn | None] = {}
        self._snapshots: dict[TableName, Lsn | None] = {}
        self._of_histories: set[tuple[str, str, str]] = set()  # errors of this cycle

    @property
    def tables(self) -> frozenset[TableName]:
        """The stopped and paused tables."""
        return frozenset({*self._stopped, *self})

    def begin(self, bronze: Table, end: Lsn) -> None:
        """Begin a cycle that reads this version of `bronze.changes`, and carries tables to an LSN."""
        self._bronze, self._end = bronze, end
        self._of_histories.clear()

    def is_stopped(self, table: TableName) -> bool:
        """Check whether a definite error has stopped a table."""
        return table in self._stopped

    def skips(self, table: TableName) -> bool:
        """Check whether this cycle skips a table; a new snapshot by the cycle's end restarts the table."""
        snapshot = self.snapshot(table)
        if self.rests(table) and snapshot == self._snapshots[table]:
            return True
        if table in self._stopped:
            if snapshot is None or snapshot > self._end or snapshot == self._stopped[table]:
                return True
            del self._stopped[table]
        return False

    def forget(self, table: TableName) -> None:
        """Forget a table's failures because the source no longer has the table."""
        self._stopped.pop(table, None)
        self.passed(table)

    def isolated(
        self, table: TableName, undecided: dict[TableName, Exception], snapshot: Lsn | None = None
    ) -> AbstractContextManager[None]:
        """Run a table's part: a definite error stops the table, any other error is stored in `undecided`.

        `snapshot` is the part's newest snapshot; None: the newest snapshot of the cycle.
        """
        return self.attempting(table, undecided, lambda error: self.stop(failure(table, error), snapshot))

    def _record_pause(self, table: TableName, error: Exception) -> None:
        self._snapshots[table] = self.snapshot(table)
        self.record(failure(table, error))

    def may_do_without(self, table: TableName, error: Exception) -> bool:
        """Check whether an optional statement that failed for an unknown reason may be skipped."""
        # Skip the statement only once a failure has paused the table: before, a retry may succeed.
        found = outage(error)
        if table not in self or (found is not None and found.code != EXECUTOR_LOST):
            return False  # a lost executor pauses a table only after some cycles
        try:
            self.require_answers(error)
        except Exception as other:  # noqa: BLE001 - the next failed statement reports the error
            _LOGGER.info("%s: %s", table, other)
            return False
        return True

    def record(self, error: TableError) -> None:
        """Open a table's error; first close an open error with another cause."""
        self._control.restate_error(
            OpenError(
                "table", str(error.table), error.code, error.message, error.remedy, commit_lsn=self._end
            )
        )

    def close_healed(self, done: Iterable[TableName], relations: Sequence[Relation]) -> None:
        """Close errors of silver's kinds on tables that passed the cycle, or that the source has lost."""
        names = set()
        for table in done:
            self.passed(table)
            names.add(str(table))
        found = [one for one in self._control.open_errors() if one.scope == "table" and one.code in CODES]
        bronze = self._bronze
        if not found or bronze is None:
            return
        names |= {str(one.table) for one in relations if is_left_out(bronze, one.table)}
        for error in found:
            if error.name in names and error.key not in self._of_histories:
                self._control.close_errors("table", error.name, error.code)

    def passed(self, key: TableName) -> bool:
        """Forget the failures of a table, and the snapshot at the last failure."""
        self._snapshots.pop(key, None)
        return super().passed(key)

    def record_history(self, error: TableError) -> None:
        """Open the error of a history whose table goes on: the table closes the error in no such cycle."""
        self._of_histories.add(("table", str(error.table), error.code))
        self.record(error)

    def stop(self, error: TableError, snapshot: Lsn | None = None) -> None:
        """Stop a table until a snapshot newer than `snapshot` (default: the newest); record the error."""
        self._stopped[error.table] = self.snapshot(error.table) if snapshot is None else snapshot
        self.record(error)

    def snapshot(self, table: TableName) -> Lsn | None:
        """Return the LSN of a table's newest snapshot within the cycle; None without a snapshot."""
        return None if self._bronze is None else snapshot_of(self._bronze, table)


def _definite(table: TableName, error: Exception) -> TableError | None:
    return failure(table, error) if isinstance(error, SmeltError) else definite(table, error)
