"""One silver cycle: every table up to bronze's frontier, then a cut that names them all.

Why it is right, at each point where it may be killed:

* Bronze's frontier C is read first. Everything up to it is in bronze, whole transactions only, and the
  version of `bronze.changes` is pinned; what arrives later is not seen.
* A table's window is (what it holds, C]. What it holds is told by the mark on the table, written by the same
  commit as the rows, or, where its last windows changed nothing, by the newest cut that names it. So each
  change is applied to exactly the state that precedes it, exactly once.
* Killed between two tables: some are at C, others not. The next cycle's frontier C' >= C carries all of them
  to C'; no cut names the state between. Killed between two ALTERs or before the statement: the rest of the
  ALTERs follows from the table's own columns.
* The cut is one commit after all tables' own commits. Killed before it: the next cycle has nothing left to
  fold, or more, and records the cut. Should a statement leave no commit because it has no effect, the mark
  stays behind, and folding that window again has no effect either.

A table of which bronze lacks changes (`bronze.gaps`: it was out of the publication for a while, the slot was
lost, it was rewritten without an event) is left alone and is in no cut until the snapshot behind the gap has
come. So is one that the source has no more, or that the pipeline no longer reads, for good.

A table's history is a second table, with a mark of its own; both are carried side by side as two tables are,
and every cut names both or neither.

A definite error of one table stops that table alone: it keeps its last version and is in no later cut, until
a newer snapshot of it arrives or the process starts again. Any other failure ends the cycle after the tables
that run beside it are done; no cut is recorded.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from bronze.control import Cut, OpenError, Run
from bronze.delta import location, open_table
from bronze.errors import TableError
from bronze.gaps import healed_at, is_left_out, is_whole
from bronze.lsn import ZERO, Lsn
from bronze.position import position_of, snapshot_of
from bronze.relations import read_relations
from bronze.tables import CHANGES
from silver import ddl
from silver.catalog import check_names, histories, silver_catalog
from silver.errors import CODES, table_error
from silver.segments import plan_versions
from silver.sessions import Sessions, tune, warm_up
from silver.source import Source, files_after, whole
from silver.steps import SMALL, StepRunner
from silver.tables import SilverLog
from silver.window import Activity, activity_of, activity_query, plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

    from bronze.control_tables import ControlTables
    from bronze.identifiers import TableName
    from bronze.lake import Lake
    from bronze.position import Position
    from bronze.shapes import Relation
    from silver.catalog import SilverTable
    from silver.settings import SilverSettings

_THREADS: Final = min(4, max(2, os.cpu_count() or 2))


@dataclass(frozen=True, slots=True)
class _Work:
    """One table's part of a cycle.

    Attributes:
        changes: what is read of bronze, as Spark SQL.
        fresh: the table holds nothing yet.
        healed: LSN of the snapshot that made good what bronze lacks of the table, if anything.
    """

    table: SilverTable
    versions: tuple[Relation, ...]
    changes: str
    start: Lsn
    activity: Activity | None
    fresh: bool = False
    healed: Lsn | None = None


class Silver:
    """Folds bronze into silver; one object per process and lake, one cycle at a time."""

    def __init__(
        self, spark: SparkSession, lake: Lake, settings: SilverSettings, control: ControlTables
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._settings = settings
        self._control = control
        self._log = SilverLog(spark, lake)
        self._bronze: DeltaTable | None = None
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="silver")
        self._sessions = Sessions(spark)
        self._source = Source(lake)
        self._runner = StepRunner(lake, settings, self._log)
        self._stopped: dict[TableName, Lsn | None] = {}

    @property
    def stopped(self) -> frozenset[TableName]:
        """Tables that a definite error has stopped."""
        return frozenset(self._stopped)

    def cycle(self, *, until: Lsn | None = None) -> Cut | None:
        """Carry all tables to bronze's frontier and record the cut.

        Args:
            until: go no further than this LSN, but never behind what a table already holds.

        Returns:
            The cut; None where there is nothing new.
        """
        bronze = self._open_bronze()
        position = None if bronze is None else position_of(bronze)
        if bronze is None or position is None:
            return None
        last = self._control.latest_cut("silver")
        relations = read_relations(self._lake)
        end = self._end(position, last, relations, until)
        known = [one for one in relations if one.from_lsn <= end]
        work = self._work(known, last, bronze, end)
        busy = [one for one in work if one.activity is not None]
        runs = self._run_all(busy, end)
        self._close_healed(work, relations)
        healthy = [one.table for one in work if one.table.table not in self._stopped]
        if last is not None and last.commit_lsn == end and not runs and _names(healthy) == set(last.tables):
            return None
        versions = {table.name: stored.version for table in healthy if (stored := self._log.read(table.name))}
        self._control.record_runs(runs)
        commit_ts = position.commit_ts if end == position.frontier else None
        cut = Cut("silver", end, commit_ts, versions, datetime.now(UTC))
        self._control.record_cut(cut)
        return cut

    def close(self) -> None:
        """Wait for what runs, end the threads and forget what is kept."""
        self._pool.shutdown(wait=True)
        self._source.close()

    def _open_bronze(self) -> DeltaTable | None:
        """`bronze.changes` at its newest version; its log is read on from where it was read before."""
        if self._bronze is None:
            self._bronze = open_table(location(self._lake, "bronze", CHANGES))
        else:
            self._bronze.update_incremental()
        return self._bronze

    def _end(
        self, position: Position, last: Cut | None, relations: Sequence[Relation], until: Lsn | None
    ) -> Lsn:
        if until is None or until >= position.frontier:
            return position.frontier
        catalog = silver_catalog(relations, self._settings)
        marks = [
            stored.mark or ZERO
            for table in [*catalog.values(), *histories(catalog.values(), self._settings)]
            if (stored := self._log.read(table.name)) is not None
        ]
        return min(position.frontier, max([until, last.commit_lsn if last else ZERO, *marks]))

    def _work(
        self,
        relations: Sequence[Relation],
        last: Cut | None,
        bronze: DeltaTable,
        end: Lsn,
    ) -> list[_Work]:
        """What each table that silver has, or begins with, must do."""
        tables = self._begun(relations, last, bronze, end)
        if not tables:
            return []
        starts = {table.relation.relation_id: start for table, start in tables}
        changes, activities = self._activities(bronze, starts, end)
        found = []
        for table, start in tables:
            relation_id = table.relation.relation_id
            versions = tuple(one for one in relations if one.relation_id == relation_id)
            activity = activities.get(relation_id) or self._shape_alone(table)
            if recreated := _made_again(table, relations, start, activity):
                self._stop(recreated, end)
            else:
                work = _Work(
                    table, versions, changes, start, activity, self._fresh(table), self._healed(table)
                )
                found += [work, *self._histories(work, last, bronze, end)]
        return found

    def _begun(
        self, relations: Sequence[Relation], last: Cut | None, bronze: DeltaTable, end: Lsn
    ) -> list[tuple[SilverTable, Lsn]]:
        """Tables that can be carried on, and the LSN up to which each is done."""
        tables: list[tuple[SilverTable, Lsn]] = []
        catalog = silver_catalog(relations, self._settings)
        for table in catalog.values():
            snapshot = snapshot_of(bronze, table.table)
            if is_left_out(bronze, table.table):
                self._stopped.pop(table.table, None)
                continue  # dropped or renamed: no cut from now on can say that it is the source
            if table.table in self._stopped:
                if snapshot is None or snapshot > end or snapshot == self._stopped[table.table]:
                    continue
                del self._stopped[table.table]
            start = self._start(table, last, snapshot, end)
            if start is not None and not is_whole(bronze, table.table, end):
                continue  # bronze lacks changes of it; a copy behind the gap is on its way
            if start is not None:
                try:
                    check_names(table, catalog.values(), self._settings)
                except TableError as error:
                    self._stop(error, end)
                    continue
                tables.append((table, start))
            elif renamed := _former_name(table, relations, last):
                self._stop(renamed, end)
        return tables

    def _histories(self, work: _Work, last: Cut | None, bronze: DeltaTable, end: Lsn) -> list[_Work]:
        """What the history of a table must do, where it has one; mostly it stands where the table stands."""
        found = []
        for table in histories([work.table], self._settings):
            start = self._start(table, last, snapshot_of(bronze, table.table), end)
            if start is None:
                continue
            relation_id = table.relation.relation_id
            changes, activity = work.changes, work.activity
            if start != work.start:
                starts = {relation_id: start}
                changes, activities = self._activities(bronze, starts, end, keep=False)
                activity = activities.get(relation_id)
            activity = activity if activity and activity.effective else self._shape_alone(table)
            fresh = self._fresh(table)
            found.append(
                replace(work, table=table, changes=changes, start=start, activity=activity, fresh=fresh)
            )
        return found

    def _fresh(self, table: SilverTable) -> bool:
        stored = self._log.read(table.name) if table.versioned else None
        return stored is None or stored.mark is None

    def _healed(self, table: SilverTable) -> Lsn | None:
        return None if self._bronze is None else healed_at(self._bronze, table.table)

    def _start(self, table: SilverTable, last: Cut | None, snapshot: Lsn | None, end: Lsn) -> Lsn | None:
        """The LSN up to which the table is done; None while no snapshot lets it begin by `end`."""
        stored = self._log.read(table.name)
        if stored is not None and stored.mark is not None:
            if last is not None and table.name in last.tables:
                return max(stored.mark, last.commit_lsn)
            return stored.mark
        return Lsn(snapshot - 1) if snapshot is not None and snapshot <= end else None

    def _activities(
        self, bronze: DeltaTable, starts: dict[int, Lsn], end: Lsn, *, keep: bool = True
    ) -> tuple[str, dict[int, Activity]]:
        """What is read of bronze, and what it holds of each relation; of those without changes, nothing."""
        changes = whole(self._lake, bronze)
        low = min(starts.values())
        later = files_after(bronze, low)
        if not later.rows:
            return changes, {}
        session, small = self._sessions.own(), later.rows <= SMALL
        tune(session, small=small)
        if keep and later.little:
            changes = self._source.keep(session, bronze, later, relations=starts, low=low, end=end, one=small)
        found = {
            row["relation_id"]: activity_of(row.asDict())
            for row in session.sql(activity_query(changes, starts, end)).collect()
        }
        return changes, {relation: activity for relation, activity in found.items() if activity.effective}

    def _shape_alone(self, table: SilverTable) -> Activity | None:
        """No change, but the shape alone: a column of which the table's rows have to get a value.

        Nobody wrote to the table since. Or soft deletes were switched on or off.
        """
        wanted = [column for column in table.columns if column.missing is not None]
        stored = self._log.read(table.name)
        if stored is None or stored.mark is None:
            return None
        if ddl.switches(table, stored.fields):
            return Activity.none()
        known = {field.attnum: field.missing for field in stored.fields}
        names = {field.name.lower() for field in stored.fields}
        lacks = any(one.attnum not in known and one.name.lower() not in names for one in wanted)
        unfilled = any(known.get(one.attnum) is not None for one in wanted)
        return Activity.none() if lacks or unfilled else None

    def _run_all(self, busy: Sequence[_Work], end: Lsn) -> list[Run]:
        """Run all tables side by side; their own errors stop them, the first other failure is raised."""
        runs: list[Run] = []
        failures: list[Exception] = []
        futures = [(one.table.table, self._pool.submit(self._run, one, end)) for one in busy]
        for name, future in futures:
            try:
                runs.append(future.result())
            except TableError as error:
                self._stop(error, end)
            except Exception as error:  # noqa: BLE001 - told apart here, raised below
                found = table_error(name, str(error))
                if found is None:
                    failures.append(error)
                else:
                    self._stop(found, end)
        if failures:
            raise failures[0]
        return runs

    def _stop(self, error: TableError, end: Lsn) -> None:
        self._stopped[error.table] = None if self._bronze is None else snapshot_of(self._bronze, error.table)
        self._control.open_error(
            OpenError("table", str(error.table), error.code, error.message, error.remedy, commit_lsn=end)
        )

    def _close_healed(self, work: Sequence[_Work], relations: Sequence[Relation]) -> None:
        """Close errors of silver's own kinds on tables that went through, or that the source has no more."""
        found = [one for one in self._control.open_errors() if one.scope == "table" and one.code in CODES]
        if not found or self._bronze is None:
            return
        done = {str(one.table.table) for one in work if one.table.table not in self._stopped}
        done |= {str(one.table) for one in relations if is_left_out(self._bronze, one.table)}
        for error in found:
            if error.name in done:
                self._control.close_errors("table", error.name, error.code)

    def _run(self, work: _Work, end: Lsn) -> Run:
        """All steps of one table."""
        started, clock = datetime.now(UTC), time.monotonic()
        activity = work.activity
        if activity is None:
            raise ValueError(work.table.name)
        changes, settings = work.changes, self._settings
        if work.table.versioned:
            steps = plan_versions(
                changes,
                work.versions,
                activity,
                work.start,
                end,
                settings=settings,
                history=work.table.history,
                fresh=work.fresh,
                healed=work.healed,
            )
        else:
            steps = plan(changes, work.versions, activity, work.start, end, settings=settings)
        run = Run("silver", work.table.name, "incremental", work.start, end, started_at=started)
        run.changes = activity.changes
        left_out: list[str] = []
        for step in steps:
            try:
                version = self._runner.run(self._sessions.own(), step, changes=activity.changes)
            except Exception as error:
                found = table_error(work.table.table, str(error))
                found = error if isinstance(error, TableError) else found
                if not step.optional or found is None:
                    raise
                left_out.append(found.message)  # the snapshot that follows is its remedy
                continue
            if step.mode == "load":
                run.mode = "snapshot" if step.window.snapshot is not None else "full"
                run.reason = None if run.mode == "snapshot" else "the table was truncated"
            counts = self._log.counts(work.table.name, version)
            run.inserts += counts.get("inserts", 0)
            run.updates += counts.get("updates", 0)
            run.deletes += counts.get("deletes", 0)
            run.delta_version = version
        run.seconds = time.monotonic() - clock
        run.details = {"plan": [step.mode for step in steps]}
        if left_out:
            run.details["changes before the snapshot that were left out"] = left_out
        return run


def _former_name(table: SilverTable, relations: Sequence[Relation], last: Cut | None) -> TableError | None:
    """An error where the table is in silver under another name, which it had before."""
    names = {one.table for one in relations if one.relation_id == table.relation.relation_id} - {table.table}
    known = sorted(name for name in names if last is not None and name.silver_name in last.tables)
    if not known:
        return None
    return TableError(
        table.table,
        f"the table was called {known[0]} before; silver.{known[0].silver_name} stays as it was",
        code="table-renamed",
        remedy=f"take it again under its new name: smelt snapshot FILE {table.table}",
    )


def _made_again(
    table: SilverTable, relations: Sequence[Relation], start: Lsn, activity: Activity | None
) -> TableError | None:
    """An error where the table was dropped and made again, without a snapshot of the new one."""
    relation_id = table.relation.relation_id
    others = {one.relation_id for one in relations if one.table == table.table} - {relation_id}
    born = min(one.from_lsn for one in relations if one.relation_id == relation_id)
    if not others or start >= born or (activity and activity.snapshot and activity.snapshot >= born):
        return None
    return TableError(
        table.table,
        "the table was dropped and made again; silver has the rows of the old one",
        code="table-recreated",
        remedy=f"take it again: smelt snapshot FILE {table.table}",
    )


def _names(tables: Sequence[SilverTable]) -> set[str]:
    return {table.name for table in tables}


__all__ = ["Silver", "warm_up"]
