"""What has ended a table's part of a cycle: whether the cause is the table's own, and when it is tried again.

* A definite error stops the table until it has a newer snapshot, or the process starts again.
* What no rule knows, what somebody may undo in the lake (``table-failed``), and a log that lacks a commit
  (``table-put-back``, ``lake-commit-lost``) is tried once more in the same cycle, from what the table holds
  then: its mark says from where. If it fails again it is recorded, and the table pauses, each time longer; a
  newer snapshot of it ends the pause.
* A lake that does not answer is no table's failure. Nor is a statement that failed because of the storage or
  the network to it (`silver.spark.errors`). That is a `TransientError`, and the cycle is repeated after a
  pause. If one table meets it in several cycles in a row while the lake answers, it counts as that table's
  own failure: the others no longer wait for it.
* If Spark itself no longer answers, or its server lets no table be written, nothing can be carried: the cause
  is raised as it is.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.backoff import Pauses
from deltasmelt.bronze.errors import SmeltError, TransientError
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.delta import location, open_existing
from deltasmelt.bronze.lake.leases import COMMIT_LOST, PUT_BACK
from deltasmelt.bronze.lake.spark_errors import is_out_of_reach
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.gaps import is_left_out
from deltasmelt.bronze.store.marks import snapshot_of
from deltasmelt.silver.errors import CODES, cause, definite, failure
from deltasmelt.silver.spark.errors import (
    EXECUTOR_LOST,
    Patience,
    answers,
    outage,
    unreachable,
)
from deltasmelt.silver.spark.lazy_session import LazySession, lazily
from deltasmelt.silver.spark.tuning import GUARDED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

    from deltasmelt.bronze.errors import TableError
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.bronze.shapes import Relation

_LOGGER: Final = logging.getLogger("deltasmelt.silver")

_UNDONE: Final = frozenset({"table-failed", "catalog-name-taken", COMMIT_LOST, PUT_BACK})
"""Codes of errors after which a table can be carried on without a newer snapshot."""


class FailedTables:
    """Of the tables of one lake: which have stopped, why, and since which snapshot."""

    def __init__(self, spark: SparkSession | LazySession, lake: Lake, control: ControlTables) -> None:
        self._spark = lazily(spark)
        self._lake = lake
        self._control = control
        self._bronze: DeltaTable | None = None
        self._stopped: dict[TableName, Lsn | None] = {}
        self._paused: Pauses[TableName] = Pauses()
        self._snapshots: dict[TableName, Lsn | None] = {}
        self._patience: Patience[TableName] = Patience(lake)

    @property
    def tables(self) -> frozenset[TableName]:
        """Those that have stopped."""
        return frozenset({*self._stopped, *self._paused})

    def begin(self, bronze: DeltaTable) -> None:
        """A cycle begins, which sees this version of `bronze.changes`."""
        self._bronze = bronze

    def is_stopped(self, table: TableName) -> bool:
        """Whether a definite error has stopped a table."""
        return table in self._stopped

    def skips(self, table: TableName, snapshot: Lsn | None, end: Lsn) -> bool:
        """Whether a table is skipped in this cycle.

        Args:
            table: which.
            snapshot: its newest one; one that is new, by the cycle's end, ends what stopped it.
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
        """The source no longer has a table: what stopped it no longer matters."""
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
        """A table's part of the cycle: its definite errors stop it, what may pass is put down in `troubled`.

        Args:
            table: the table.
            end: LSN to which the part carries the table.
            troubled: takes what may pass.
            snapshot: the table's newest one of which the part knew; None: as this cycle sees it.

        Raises:
            TransientError: a temporary failure.
            Exception: Spark could not be started, is gone, or lets no table be written: no table's failure.
        """
        try:
            yield
        except TransientError:
            raise
        except SmeltError as error:
            if error is self._spark.failure or error.code == GUARDED:
                raise
            if error.code in _UNDONE:
                _LOGGER.warning("%s could not be updated to %s: %s", table, end, error)
                troubled[table] = error
            else:
                self.stop(failure(table, error), end, snapshot)
        except Exception as error:  # of any kind: it must stop this table alone
            if error is self._spark.failure or is_out_of_reach(error):
                raise
            found = definite(table, error)
            if found is not None:
                self.stop(found, end, snapshot)
            else:
                _LOGGER.warning("%s could not be updated to %s", table, end, exc_info=error)
                troubled[table] = error

    def pause(self, troubled: Mapping[TableName, Exception], end: Lsn) -> None:
        """Record what ended tables twice, and skip them for a while.

        Raises:
            TransientError: the lake, or the network to it, does not answer.
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
        """Whether a statement that is not needed for good may be left out, which failed for a reason unknown.

        So it is once the table has rested because of a failure: until then the reason may pass.
        """
        found = outage(error)
        if table not in self._paused or (found is not None and found.code != EXECUTOR_LOST):
            return False  # a step that takes its executor along rests only after `Patience`
        try:
            self._check_answers(error)
        except Exception as other:  # noqa: BLE001 - what fails next reports it
            _LOGGER.info("%s: %s", table, other)
            return False
        return True

    def record(self, error: TableError, end: Lsn) -> None:
        """Open a table's error; an open one with another cause is closed first."""
        self._control.restate_error(
            OpenError("table", str(error.table), error.code, error.message, error.remedy, commit_lsn=end)
        )

    def close_healed(self, done: Iterable[TableName], relations: Sequence[Relation]) -> None:
        """Close errors of silver's own kinds on tables that went through, or that the source no longer has.

        Args:
            done: tables that went through.
            relations: all known shapes.
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
        """Stop a table until it has a newer snapshot than this, by default than the newest; record why."""
        self._stopped[error.table] = self.snapshot(error.table) if snapshot is None else snapshot
        self.record(error, end)

    def snapshot(self, table: TableName) -> Lsn | None:
        """Return the LSN of a table's newest snapshot that the cycle sees; None where there is none."""
        return None if self._bronze is None else snapshot_of(self._bronze, table)

    def _check_answers(self, first: Exception) -> None:
        """Whether Spark and the lake answer at all.

        Raises:
            TransientError: the lake does not.
            Exception: Spark does not; the first cause, which says more.
        """
        if not answers(self._spark, after=first):
            raise first
        try:
            open_existing(location(self._lake, "bronze", CHANGES))
        except Exception as error:  # noqa: BLE001 - whatever it is, the lake cannot be read
            raise unreachable(cause(error), self._lake) from first
