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

A table of which bronze lacks changes (`bronze.store.gaps`: it was out of the publication for a while, the
slot was lost, it was rewritten without an event) is left alone and is in no cut until the snapshot behind the
gap has come. So is one that the source has no more, or that the pipeline no longer reads, for good.

A table's history is a second table, with a mark of its own; both are carried side by side as two tables are,
and every cut names both or neither.

A definite error of one table stops that table alone: it keeps its last version and is in no later cut, until
a newer snapshot of it arrives or the process starts again.

**One table's trouble is never everyone's.** Whatever ends a table's part, whether a statement or a look at
its log, is tried once more in the same cycle, from what the table holds then: as after a kill, its mark says
what is done, and its columns say which ALTERs are left. What becomes of it if it fails again is told in
`silver.run.troubles`. A failure that heals by itself (`TransientError`), or after which Spark answers
nothing, ends the cycle after the tables that run beside it are done; no cut is recorded.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from bronze.errors import TableError, TransientError
from bronze.lake.control import Cut, Run
from bronze.lake.delta import location, open_table
from bronze.lsn import ZERO, Lsn
from bronze.store.contract import CHANGES
from bronze.store.gaps import healed_at, is_left_out, is_whole
from bronze.store.marks import snapshot_of
from bronze.store.position import position_of
from bronze.store.relations import read_relations
from silver.errors import failure, table_error
from silver.plan.activity import Activity, activity_of, activity_query
from silver.plan.history_steps import plan_versions
from silver.plan.steps import plan
from silver.run.bronze_window import Source, files_after, whole
from silver.run.refusals import check_relation, refused, there
from silver.run.sessions import Sessions, tune, warm_up
from silver.run.step_runner import SMALL, StepRunner
from silver.run.table_log import SilverLog
from silver.run.troubles import Troubles
from silver.schema import ddl
from silver.schema.catalog import histories, silver_catalog

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

    from bronze.identifiers import TableName
    from bronze.lake.control_tables import ControlTables
    from bronze.lake.location import Lake
    from bronze.shapes import Relation
    from bronze.store.position import Position
    from silver.run.table_log import Stored
    from silver.schema.catalog import SilverTable
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
        self._troubles = Troubles(spark, lake, control)

    @property
    def stopped(self) -> frozenset[TableName]:
        """Tables that an error has stopped."""
        return self._troubles.tables

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
        self._troubles.look(bronze)
        last = self._control.latest_cut("silver")
        relations = read_relations(self._lake)
        end = self._end(position, last, relations, until)
        known = [one for one in relations if one.from_lsn <= end]
        work, runs, troubled = self._carry(known, last, bronze, end)
        if troubled:
            again, more, troubled = self._carry(known, last, bronze, end, only=troubled)
            work, runs = [*work, *again], [*runs, *more]
            self._troubles.settle(troubled, end)
        self._troubles.close_healed((one.table.table for one in work), relations)
        if self._runner.owes:
            self._runner.settle(self._sessions.own())
        healthy = [one.table for one in work]
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
            self._mark(table) for table in [*catalog.values(), *histories(catalog.values(), self._settings)]
        ]
        return min(position.frontier, max([until, last.commit_lsn if last else ZERO, *marks]))

    def _mark(self, table: SilverTable) -> Lsn:
        """LSN of the newest window that a table holds; ZERO where it holds none, or cannot be read."""
        try:
            stored = self._log.read(table.name)
        except Exception:  # noqa: BLE001 - told as that table's own trouble where its part begins
            return ZERO
        return ZERO if stored is None or stored.mark is None else stored.mark

    def _carry(
        self,
        relations: Sequence[Relation],
        last: Cut | None,
        bronze: DeltaTable,
        end: Lsn,
        *,
        only: Collection[TableName] | None = None,
    ) -> tuple[list[_Work], list[Run], dict[TableName, Exception]]:
        """Carry tables to an LSN.

        Returns:
            what was to be done of the tables that stand there now; the runs; what no rule knows, by table.

        Raises:
            TransientError: it will heal by itself.
        """
        troubled: dict[TableName, Exception] = {}
        work = self._work(relations, last, bronze, end, only=only, troubled=troubled)
        runs = self._run_all([one for one in work if one.activity is not None], end, troubled)
        whole = [
            one
            for one in work
            if one.table.table not in troubled and not self._troubles.is_stopped(one.table.table)
        ]
        return whole, runs, troubled

    def _work(
        self,
        relations: Sequence[Relation],
        last: Cut | None,
        bronze: DeltaTable,
        end: Lsn,
        *,
        only: Collection[TableName] | None,
        troubled: dict[TableName, Exception],
    ) -> list[_Work]:
        """What each table that silver has, or begins with, must do."""
        tables = self._begun(relations, last, bronze, end, only=only, troubled=troubled)
        if not tables:
            return []
        starts = {table.relation.relation_id: start for table, start in tables}
        windows = self._windows(bronze, starts, last, end)
        found = []
        for table, start in tables:
            relation_id = table.relation.relation_id
            versions = tuple(one for one in relations if one.relation_id == relation_id)
            with self._troubles.apart(table.table, end, troubled):
                stored = self._log.read(table.name)
                changes, activity = windows[relation_id]
                activity = activity or self._shape_alone(table, stored)
                check_relation(table, stored, relations, start, activity)
                if (stored is None or stored.mark is None) and not (activity and activity.snapshot):
                    continue  # the copy that lets it begin is of another relation of this name
                work = _Work(
                    table, versions, changes, start, activity, self._fresh(table), self._healed(table)
                )
                found += [work, *self._histories(work, last, bronze, end)]
        return found

    def _begun(
        self,
        relations: Sequence[Relation],
        last: Cut | None,
        bronze: DeltaTable,
        end: Lsn,
        *,
        only: Collection[TableName] | None,
        troubled: dict[TableName, Exception],
    ) -> list[tuple[SilverTable, Lsn]]:
        """Tables that can be carried on, and the LSN up to which each is done."""
        tables: list[tuple[SilverTable, Lsn]] = []
        catalog = silver_catalog(relations, self._settings)
        known = there(catalog.values(), bronze, self._settings)
        for table in catalog.values():
            if only is not None and table.table not in only:
                continue
            snapshot = snapshot_of(bronze, table.table)
            if is_left_out(bronze, table.table):
                self._troubles.left_out(table.table)
                continue  # dropped or renamed: no cut from now on can say that it is the source
            if self._troubles.stands(table.table, snapshot, end):
                continue
            with self._troubles.apart(table.table, end, troubled):
                start = self._start(table, last, snapshot, end)
                if start is not None and not is_whole(bronze, table.table, end):
                    continue  # bronze lacks changes of it; a copy behind the gap is on its way
                if why := refused(
                    table, start, there=known, relations=relations, last=last, settings=self._settings
                ):
                    self._troubles.record(why, end)
                elif start is not None:
                    tables.append((table, start))
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
            activity = activity if activity and activity.effective else None
            activity = activity or self._shape_alone(table, self._log.read(table.name))
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
            # In no cut for a while: what it holds is what the last cut that named it says, if that is newer.
            return max(stored.mark, self._control.last_named("silver", table.name) or ZERO)
        return Lsn(snapshot - 1) if snapshot is not None and snapshot <= end else None

    def _windows(
        self, bronze: DeltaTable, starts: dict[int, Lsn], last: Cut | None, end: Lsn
    ) -> dict[int, tuple[str, Activity | None]]:
        """By relation: what is read of bronze for it, and what that holds of it, if anything.

        Mostly all tables go on from the newest cut, and what came since is little. Where some lag behind it,
        and what came since they stopped is much, that is read for them alone.
        """
        groups = [starts]
        if last is not None and not files_after(bronze, min(starts.values())).little:
            behind = {relation: start for relation, start in starts.items() if start < last.commit_lsn}
            others = {relation: start for relation, start in starts.items() if relation not in behind}
            groups = [group for group in (others, behind) if group]
        found: dict[int, tuple[str, Activity | None]] = {}
        for place, group in enumerate(groups):
            changes, activities = self._activities(bronze, group, end, keep=place == 0)
            found |= {relation: (changes, activities.get(relation)) for relation in group}
        return found

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

    def _shape_alone(self, table: SilverTable, stored: Stored | None) -> Activity | None:
        """No change, but the shape alone: a column of which the table's rows have to get a value.

        Nobody wrote to the table since. Or soft deletes were switched on or off.
        """
        wanted = [column for column in table.columns if column.missing is not None]
        if stored is None or stored.mark is None:
            return None
        if ddl.switches(table, stored.fields):
            return Activity.none()
        known = {field.attnum: field.missing for field in stored.fields}
        names = {field.name.lower() for field in stored.fields}
        lacks = any(one.attnum not in known and one.name.lower() not in names for one in wanted)
        unfilled = any(known.get(one.attnum) is not None for one in wanted)
        return Activity.none() if lacks or unfilled else None

    def _run_all(self, busy: Sequence[_Work], end: Lsn, troubled: dict[TableName, Exception]) -> list[Run]:
        """Run all tables side by side; what ends one of them is its own (`silver.run.troubles`)."""
        runs: list[Run] = []
        transient: list[TransientError] = []
        futures = [(one.table.table, self._pool.submit(self._run, one, end)) for one in busy]
        for name, future in futures:
            try:
                with self._troubles.apart(name, end, troubled):
                    runs.append(future.result())
            except TransientError as error:
                transient.append(error)
        if transient:
            raise transient[0]
        return runs

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
                if found is None and step.optional and self._troubles.may_do_without(work.table.table, error):
                    found = failure(work.table.table, error)
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


def _names(tables: Sequence[SilverTable]) -> set[str]:
    return {table.name for table in tables}


__all__ = ["Silver", "warm_up"]
