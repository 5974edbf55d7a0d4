"""One silver cycle: every table up to bronze's frontier, then a cut that names them all.

Why it is right, at each point where it may be killed:

* **The frontier.** Bronze's frontier C is read first. Everything up to it is in bronze, whole transactions
  only. The version of `bronze.changes` is pinned; what arrives later is not seen.
* **The window** of a table is (what it holds, C]. What it holds is stated by the mark on the table, written
  by the same commit as the rows. Where its last windows changed nothing, the newest cut that names it states
  it. So each change is applied once, to exactly the state before it.
* **Killed between two tables**: some are at C, others are not. The next cycle's frontier C' >= C carries all
  of them to C'; no cut names the state between.
* **Killed between two ALTERs**, or before the statement: the other ALTERs follow from the table's columns.
* **Killed before the cut**, which is one commit after all tables' own commits: the next cycle has nothing
  left to fold, or more, and records the cut.
* **Another process that writes in spite of lock and lease**, as in a catalog nothing forbids, may have
  carried a table beyond C. Tables at two LSNs are no moment, so no cut is recorded.
* **A statement without effect** may leave no commit. The mark then stays, and folding that window again has
  no effect either.
* **Killed after a catalog's table said its mark again** (`bronze.lake.delta.state_marks`): that is a commit
  without rows, and the next cut names the version after it.

Which tables are carried is in `silver.run.worklist`. A table's history is a second table with its own mark;
every cut names both or neither. One table's failure never stops others: `Silver._carry`,
`silver.run.failed_tables`. Nor does one table's long work, where the caller lets such work go on across
cycles: `silver.run.long_work`.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import TableError, TransientError
from deltasmelt.bronze.lake.control import Cut, Run
from deltasmelt.bronze.lake.kept import KeptTable
from deltasmelt.bronze.lake.leases import Lease, held, still_writing
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.store.comments import CommentsWatch, commented
from deltasmelt.bronze.store.contract import CHANGES, require_format
from deltasmelt.bronze.store.position import position_of
from deltasmelt.bronze.store.relations import RelationsWatch
from deltasmelt.silver.errors import definite, failure
from deltasmelt.silver.plan.history_steps import halves, plan_versions
from deltasmelt.silver.plan.steps import plan
from deltasmelt.silver.run.bronze_window import Source
from deltasmelt.silver.run.failed_tables import FailedTables
from deltasmelt.silver.run.long_work import LongWork
from deltasmelt.silver.run.position import Position
from deltasmelt.silver.run.step_runner import Descriptions, StepRunner
from deltasmelt.silver.run.table_log import SilverLog
from deltasmelt.silver.run.worklist import Attempt, Worklist
from deltasmelt.silver.schema.catalog import histories, silver_catalog
from deltasmelt.silver.schema.decimals import UNREPRESENTABLE_ROWS, lossy_decimals, lossy_inside
from deltasmelt.silver.spark.access import Sessions, access_of, warm_up
from deltasmelt.silver.spark.lazy_session import lazily
from deltasmelt.silver.spark.tuning import leave_a_core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.store.position import Position as BronzePosition
    from deltasmelt.silver.plan.activity import Work
    from deltasmelt.silver.run.stored import Stored
    from deltasmelt.silver.schema.catalog import SilverTable
    from deltasmelt.silver.settings import SilverSettings
    from deltasmelt.silver.spark.lazy_session import LazySession

_JUST_NOW: Final = 1.0
"""Seconds since a look at `bronze.changes` that a cycle takes for its own; what came since, the next has."""

_THREADS: Final = min(4, max(2, os.cpu_count() or 2))


class Silver:
    """Folds bronze into silver; one object per process and lake, one cycle at a time.

    Args:
        spark: a session. One that starts when needed is not started by a cycle that finds nothing to fold.
        lake: where the tables lie.
        settings: silver's.
        control: the lake's control tables.
        changes: `bronze.changes`, where the caller looks at it before each cycle.

    Attributes:
        runs: of the newest cycle that recorded a cut.
        long_work: work that goes on across cycles. While some table is at it, the caller must hold silver's
            lease and maintain no table.
    """

    def __init__(
        self,
        spark: SparkSession | LazySession,
        lake: Lake,
        settings: SilverSettings,
        control: ControlTables,
        *,
        changes: KeptTable | None = None,
    ) -> None:
        self._spark = spark = lazily(spark)
        self._lake = lake
        self._settings = settings
        self._control = control
        self._log = SilverLog(lake, writes=True)
        self._changes = changes or KeptTable(lake, "bronze", CHANGES)
        self._looked_within = 0.0 if changes is None else _JUST_NOW
        self._bronze: DeltaTable | None = None
        self._lease: Lease | None = None
        self._relations = RelationsWatch(lake)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="silver")
        self.runs: list[Run] = []
        self._sessions = Sessions(spark)
        self._source = Source(lake)
        self._comments = CommentsWatch(lake)
        descriptions = Descriptions(lake, self._log)
        self._runner = StepRunner(lake, settings, self._log, descriptions)
        self._troubles = FailedTables(spark, lake, control)
        self.long_work = LongWork(self._troubles)
        self._position = Position(control, self._log)
        self._worklist = Worklist(
            lake,
            settings,
            control,
            log=self._log,
            source=self._source,
            sessions=self._sessions,
            troubles=self._troubles,
            descriptions=descriptions,
            position=self._position,
        )

    @property
    def stopped(self) -> frozenset[TableName]:
        """Tables that an error has stopped."""
        return self._troubles.tables

    def cycle(
        self,
        *,
        until: Lsn | None = None,
        release: Callable[[Iterable[SilverTable]], None] | None = None,
        leaves: bool = False,
    ) -> Cut | None:
        """Carry all tables to bronze's frontier and record the cut.

        Args:
            until: go no further than this LSN, but never less far than what a table already holds.
            release: is given the shapes that are about to be folded, under the lease.
            leaves: let long work of a table go on after the cycle (`silver.run.long_work`); else the cycle
                waits for all work.

        Returns:
            The cut; None where nothing is new.
        """
        bronze = self._open_bronze()
        position = None if bronze is None else position_of(bronze)
        if bronze is None or position is None:
            return None
        self._troubles.begin(bronze)
        before, self._lease = self._lease, held(self._lake, "silver")
        is_same = self._lease is not None and (self._lease is before or self._lease.follows(before))
        self._log.begin(alone=is_same)
        last = self._control.latest_cut("silver")
        relations = commented(self._relations.read(), self._comments.read(bronze))
        end = self._end(position, last, relations, until)
        announced = tuple(relation for relation in relations if relation.from_lsn <= end)
        earlier, failed = self.long_work.take(end, wait_for_all=not leaves)
        long_tables = self.long_work.tables
        if release is not None:
            release(
                table
                for table in silver_catalog(announced, self._settings).values()
                if table.table not in long_tables
            )
        targets = self.long_work.targets
        attempt = Attempt(bronze, announced, last, end, away={*long_tables, *failed}, targets=targets)
        tables, runs = self._carry(attempt, leaves=leaves)
        failed |= attempt.troubled
        if failed:
            long_tables, targets = self.long_work.tables, self.long_work.targets
            retry = replace(attempt, only=failed.keys(), away=long_tables, targets=targets, troubled={})
            self._forget(retry)
            more_tables, more_runs = self._carry(retry, leaves=leaves and bool(tables))
            tables, runs = [*tables, *more_tables], [*runs, *more_runs]
            self._troubles.pause(retry.troubled, end)
        runs = [*earlier, *runs]
        self._troubles.close_healed((table.table for table in tables), relations)
        if self._runner.owes_clustering:
            self._runner.cluster_owed(self._sessions.own(), away=self.long_work.tables)
        names = {table.name for table in tables}
        as_before = last is not None and last.commit_lsn == end and names == set(last.tables)
        if last is not None and names and not last.marks:
            as_before = False  # an earlier version recorded it: see `silver.run.unsigned`
        if as_before and not runs and not self._position.disowned:
            return None
        for silver_table in tables:
            self._log.state_marks(silver_table.name)
        states = self._own({key: stored for key in tables if (stored := self._log.read(key.name))}, end)
        still_writing(self._lake, "silver")
        self._control.record_runs(runs)
        self.runs = runs
        self.long_work.recorded(table.table for table in tables)
        if not names and self.long_work.tables:
            return None  # a cut of nothing would help nobody
        ahead = any(stored.mark is not None and stored.mark > end for stored in states.values())
        if ahead and self._lake.place.needs_session:
            return None  # another process carries them on, and its cut names them
        commit_ts = position.commit_ts if end == position.frontier else None
        cut = Cut(
            "silver",
            end,
            commit_ts,
            {name: state.version for name, state in states.items()},
            datetime.now(UTC),
            {name: state.mark for name, state in states.items() if state.mark is not None},
            {name: state.table_id for name, state in states.items() if state.table_id is not None},
        )
        self._control.record_cut(cut)
        self._position.disowned = False
        return cut

    def _own(self, stands: Mapping[SilverTable, Stored], end: Lsn) -> dict[str, Stored]:
        """Return those that a cut may name: others changed no rows of them, nor of their histories."""
        stopped = set()
        for table, stored in stands.items():
            try:
                self._position.require_own(table, stored)
            except TableError as error:
                self._troubles.stop(error, end)
                stopped.add(table.table)
        return {
            state_table.name: stored
            for state_table, stored in stands.items()
            if state_table.table not in stopped
        }

    def close(self) -> None:
        """Wait for what runs, end the threads and forget what is kept."""
        self._pool.shutdown(wait=True)
        self.long_work.close()
        self._source.close()

    def _open_bronze(self) -> DeltaTable | None:
        """`bronze.changes` at its newest version; its log is read on from where it was read before.

        In a store, as the caller saw it a moment ago.
        """
        table = self._changes.newest(within=self._looked_within)
        if table is not None and table is not self._bronze:
            require_format(table)
        self._bronze = table
        return table

    def _end(
        self, position: BronzePosition, last: Cut | None, relations: Sequence[Relation], until: Lsn | None
    ) -> Lsn:
        if until is None or until >= position.frontier:
            return position.frontier
        catalog = silver_catalog(relations, self._settings)
        marks = [
            self._mark(table)
            for table in [*catalog.values(), *histories(catalog.values(), self._settings)]
            if table.table not in self.long_work.tables
        ]
        marks += self.long_work.furthest()
        return min(position.frontier, max([until, last.commit_lsn if last else ZERO, *marks]))

    def _mark(self, table: SilverTable) -> Lsn:
        """LSN of the newest window that a table holds; ZERO where it holds none, or cannot be read."""
        try:
            stored = self._log.read(table.name)
        except Exception:  # noqa: BLE001 - reported as that table's failure where its part begins
            return ZERO
        return ZERO if stored is None or stored.mark is None else stored.mark

    def _carry(self, attempt: Attempt, *, leaves: bool) -> tuple[list[SilverTable], list[Run]]:
        """Carry tables to an LSN; those that could not be carried are then in `Attempt.troubled`.

        Whatever ends a table's part, a statement or a look at its log, ends that part alone. It is tried once
        more in the same cycle, from what the table holds then, as after a kill: its mark says what is done,
        and its columns say which ALTERs are left. A temporary failure, or one after which Spark no longer
        answers, ends the cycle once the tables beside it are done. No cut is recorded then.

        Returns:
            The tables that a cut may name, and the runs.

        Raises:
            TransientError: a temporary failure.
        """
        entries = self._worklist.entries(attempt)
        works = [entry.work for entry in entries if entry.work is not None]
        # Without other tables a cut would name none: then the cycle waits for long work.
        long = {work.table.table for work in works if self.long_work.suits(work)}
        has_short = attempt.only is not None or any(entry.table.table not in long for entry in entries)
        runs = self._run_all(works, attempt, leaves=leaves and has_short)
        stand = [
            entry.table
            for entry in entries
            if entry.table.table not in attempt.troubled
            and entry.table.table not in self.long_work.tables
            and not self._troubles.is_stopped(entry.table.table)
        ]
        return stand, runs

    def _forget(self, again: Attempt) -> None:
        """Have the tables of a second attempt opened anew: somebody may have removed or restored them."""
        catalog = silver_catalog(again.relations, self._settings)
        tables = [table for table in catalog.values() if table.table in (again.only or ())]
        self._log.forget(table.name for table in [*tables, *histories(tables, self._settings)])

    def _run_all(self, busy: Sequence[Work], attempt: Attempt, *, leaves: bool = False) -> list[Run]:
        """Run all tables side by side; what ends one of them ends it alone (`silver.run.failed_tables`).

        Whatever leaves this, no table is still at work then but those of `long_work`: the next cycle replaces
        the view that all others read.
        """
        runs: list[Run] = []
        transient: list[TransientError] = []
        if busy:
            self._spark.get()
        short: list[tuple[Work, Future[Run]]] = []
        long: list[tuple[Work, Future[Run]]] = []
        for work in busy:
            if leaves and self.long_work.suits(work):
                long.append((work, self.long_work.submit(self._run_long, work)))
            else:
                short.append((work, self._pool.submit(self._run, work)))
        begun_works = [*short, *long]
        try:
            wait(future for _, future in short)
            if long:
                again = attempt.only is not None
                self.long_work.leave(long, attempt.end, again=again, waited=again or bool(short))
                long_tables = self.long_work.tables
                begun_works = [*short, *(pair for pair in long if pair[0].table.table not in long_tables)]
            for work, future in begun_works:
                try:
                    with self._troubles.isolated(work.table.table, attempt.end, attempt.troubled):
                        runs.append(future.result())
                except TransientError as error:
                    transient.append(error)
        finally:
            wait(future for _, future in begun_works)
        if transient:
            raise transient[0]
        return runs

    def _run_long(self, work: Work) -> Run:
        """All steps of one table whose window is large."""
        session = self._sessions.own()
        access = access_of(session)
        access.in_background("long")
        if access.runs_locally:
            leave_a_core(session)
        return self._run(work)

    def _run(self, work: Work) -> Run:
        """All steps of one table."""
        started, clock = datetime.now(UTC), time.monotonic()
        activity = work.activity
        steps = plan_versions(work) if work.table.versioned else plan(work)
        run = Run("silver", work.table.name, "incremental", work.start, work.end, started_at=started)
        run.changes = activity.changes
        left_out: list[str] = []
        remaining = steps[::-1]
        while remaining:
            step = remaining.pop()
            try:
                version = self._runner.run(self._sessions.own(), step, changes=activity.changes)
            except Exception as error:
                failed = definite(work.table.table, error)
                if (
                    failed is None
                    and step.optional
                    and self._troubles.may_do_without(work.table.table, error)
                ):
                    failed = failure(work.table.table, error)
                if not step.optional or failed is None:
                    raise
                if smaller := halves(step):
                    remaining += reversed(smaller)
                else:
                    left_out.append(failed.message)  # the snapshot that follows is its remedy
                continue
            if step.mode == "load":
                run.mode = "snapshot" if step.window.snapshot is not None else "full"
                run.reason = None if run.mode == "snapshot" else "the table was truncated"
            # Where its comments were refused, the table's newest version is that of an earlier run.
            counts = {} if step.mode == "describe" else self._log.counts(work.table.name, version)
            run.inserts += counts.get("inserts", 0)
            run.updates += counts.get("updates", 0)
            run.deletes += counts.get("deletes", 0)
            run.delta_version = version
        run.seconds = time.monotonic() - clock
        run.details = {"plan": [step.mode for step in steps]}
        if lossy_decimals(work.table) or lossy_inside(work.table):
            run.details[UNREPRESENTABLE_ROWS] = self._log.unrepresentable(work.table.name)
        if left_out:
            run.details["changes before the snapshot that were left out"] = left_out
        return run


__all__ = ["Silver", "warm_up"]
