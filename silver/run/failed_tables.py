"""Decides whether a failure in a cycle belongs to one table, and when to retry the table.

* A definite error stops the table until a newer snapshot of the table, or until the process restarts. The
  errors of the next point are the exception.
* The same cycle retries three kinds of failure once, from the table's current mark. The kinds are an unknown
  error, an error that a user may repair in the lake (``table-failed``, ``catalog-name-taken``), and a log
  that lacks a commit (``table-put-back``, ``lake-commit-lost``). A second failure is recorded, and the table
  pauses: half a minute, and twice as long after each further failure, up to ten minutes. A newer snapshot
  of the table ends the pause.
* A lake that does not answer is no table's failure. Nor is a statement that failed because of the storage or
  the network (`silver.spark.failure_scope`). Both raise a `TransientError`, and the cycle is retried after a
  pause. If one table meets such a failure in several cycles in a row while the lake answers, the failure
  counts as the table's own. The remaining tables then no longer wait.
* If Spark does not answer, or its server forbids every write, no table can be carried: the cause is raised
  unchanged.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.backoff import Pauses
from deltasmelt.bronze.errors import SmeltError, TransientError
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.leases import COMMIT_LOST, PUT_BACK
from deltasmelt.bronze.lake.spark_errors import cause_of
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.gaps import is_left_out
from deltasmelt.bronze.store.marks import snapshot_of
from deltasmelt.silver.errors import CODES, definite, failure
from deltasmelt.silver.spark.failure_scope import (
    EXECUTOR_LOST,
    Patience,
    answers,
    is_everyones,
    outage,
    unreachable,
)
from deltasmelt.silver.spark.lazy_session import LazySession, lazily

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.errors import TableError
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.bronze.shapes import Relation

_LOGGER: Final = logging.getLogger("deltasmelt.silver")

_UNDONE: Final = frozenset({"table-failed", "catalog-name-taken", COMMIT_LOST, PUT_BACK})
"""Codes of errors after which a table can continue without a newer snapshot."""


class FailedTables:
    """The stopped and paused tables of one lake, each with the snapshot at the failure."""

    def __init__(self, spark: SparkSession | LazySession, lake: Lake, control: ControlTables) -> None:
        self._spark = lazily(spark)
        self._lake = lake
        self._control = control
        self._bronze: Table | None = None
        self._stopped: dict[TableName, Lsn | None] = {}
        self._paused: Pauses[TableName] = Pauses()
        self._snapshots: dict[TableName, Lsn | None] = {}
        self._patience: Patience[TableName] = Patience(lake)

    @property
    def tables(self) -> frozenset[TableName]:
        """The stopped and paused tables."""
        return frozenset({*self._stopped, *self._paused})

    @property
    def have_ended_pauses(self) -> bool:
        """Check whether a paused table may be retried, without a new version of bronze."""
        return any(not self._paused.rests(table) for table in self._paused)

    def begin(self, bronze: Table) -> None:
        """Begin a cycle that reads this version of `bronze.changes`."""
        self._bronze = bronze

    def is_stopped(self, table: TableName) -> bool:
        """Check whether a definite error has stopped a table."""
        return table in self._stopped

    def skips(self, table: TableName, snapshot: Lsn | None, end: Lsn) -> bool:
        """Check whether this cycle skips a table.

        Args:
            table: the source's table to carry.
            snapshot: the table's newest snapshot; a new snapshot by the cycle's end restarts a stopped table.
            end: LSN to which the cycle carries tables.
        """
        if self._paused.rests(table) and snapshot == self._snapshots[table]:
            return True
        if table in self._stopped:
            if snapshot is None or snapshot > end or snapshot == self._stopped[table]:
                return True
            del self._stopped[table]
        return False

    def forget(self, table: TableName) -> None:
        """Forget a table's failures because the source no longer has the table."""
        self._stopped.pop(table, None)
        self._passed(table)

    @contextmanager
    def isolated(
        self,
        table: TableName,
        end: Lsn,
        troubled: dict[TableName, Exception],
        snapshot: Lsn | None = None,
    ) -> Iterator[None]:
        """Run a table's part: a definite error stops the table, an undecided error is stored in `troubled`.

        Args:
            table: the table whose part runs.
            end: LSN to which the part carries the table.
            troubled: receives errors for a retry, by table.
            snapshot: the part's newest snapshot; None: the newest snapshot of the cycle.

        Raises:
            TransientError: a temporary failure.
            Exception: Spark did not start, is lost, or forbids every write: no table's failure.
        """
        try:
            yield
        except Exception as error:  # any error: the error must stop this table alone
            if is_everyones(error, self._spark):
                raise
            is_ours = isinstance(error, SmeltError)
            own = failure(table, error) if is_ours else definite(table, error)
            if own is not None and own.code not in _UNDONE:
                self.stop(own, end, snapshot)
            else:
                trace = None if is_ours else error
                _LOGGER.warning("%s not updated to %s: %s", table, end, cause_of(error), exc_info=trace)
                troubled[table] = error

    def pause(self, troubled: Mapping[TableName, Exception], end: Lsn) -> None:
        """Record the errors of tables after a second failure, and pause the tables.

        Raises:
            TransientError: the lake, or the network to the lake, does not answer.
            Exception: the cause, where Spark no longer answers.
        """
        if not troubled:
            return
        first = next(iter(troubled.values()))
        self._check_answers(first)
        waits: TransientError | None = None
        for table, error in troubled.items():
            if (found := self._patience.waits(table, error)) is not None:
                found.__cause__ = error
                waits = waits or found
                continue
            self._paused.failed(table)
            self._snapshots[table] = self.snapshot(table)
            self.record(failure(table, error), end)
        if waits is not None:
            raise waits

    def may_do_without(self, table: TableName, error: Exception) -> bool:
        """Check whether an optional statement that failed for an unknown reason may be skipped.

        The statement may be skipped once a failure has paused the table: before, a retry may succeed.
        """
        found = outage(error)
        if table not in self._paused or (found is not None and found.code != EXECUTOR_LOST):
            return False  # a lost executor pauses a table only after `Patience`
        try:
            self._check_answers(error)
        except Exception as other:  # noqa: BLE001 - the next failed statement reports the error
            _LOGGER.info("%s: %s", table, other)
            return False
        return True

    def record(self, error: TableError, end: Lsn) -> None:
        """Open a table's error; first close an open error with another cause."""
        self._control.restate_error(
            OpenError("table", str(error.table), error.code, error.message, error.remedy, commit_lsn=end)
        )

    def close_healed(self, done: Iterable[TableName], relations: Sequence[Relation]) -> None:
        """Close errors of silver's kinds on tables that passed, or that the source no longer has.

        Args:
            done: tables that passed the cycle without an error.
            relations: all known table shapes of the source.
        """
        names = set()
        for table in done:
            self._passed(table)
            names.add(str(table))
        found = [one for one in self._control.open_errors() if one.scope == "table" and one.code in CODES]
        bronze = self._bronze
        if not found or bronze is None:
            return
        names |= {str(one.table) for one in relations if is_left_out(bronze, one.table)}
        for error in found:
            if error.name in names:
                self._control.close_errors("table", error.name, error.code)

    def _passed(self, table: TableName) -> None:
        self._paused.passed(table)
        self._snapshots.pop(table, None)
        self._patience.passed(table)

    def stop(self, error: TableError, end: Lsn, snapshot: Lsn | None = None) -> None:
        """Stop a table until a snapshot newer than `snapshot` (default: the newest); record the error."""
        self._stopped[error.table] = self.snapshot(error.table) if snapshot is None else snapshot
        self.record(error, end)

    def snapshot(self, table: TableName) -> Lsn | None:
        """Return the LSN of a table's newest snapshot within the cycle; None without a snapshot."""
        return None if self._bronze is None else snapshot_of(self._bronze, table)

    def _check_answers(self, first: Exception) -> None:
        """Check that Spark and the lake answer.

        Raises:
            TransientError: the lake does not answer.
            Exception: Spark does not answer; the first cause is raised, as the more exact error.
        """
        if not answers(self._spark, after=first):
            raise first
        try:
            open_existing(self._lake.uri("bronze", CHANGES))
        except Exception as error:  # noqa: BLE001 - any error: the lake cannot be read
            raise unreachable(cause_of(error), self._lake) from first
