"""One silver cycle carries every table to bronze's frontier, then records a cut that names all tables.

The cycle is correct wherever a kill, a failed call or a foreign process interrupts:

* **The frontier.** The cycle first reads bronze's frontier C. Bronze holds everything up to C, in whole
  transactions only. The cycle pins the version of `bronze.changes`, and reads no later change.
* **The window** of a table is (the table's LSN, C]. The mark on the table states the LSN, in the commit of
  the rows. If the last windows changed nothing, the newest cut that names the table states the LSN. So
  each change is applied once, to exactly the state before the change.
* **Killed between two tables**: some tables are at C, the rest are not. The next cycle's frontier C' >= C
  carries all tables to C'; no cut names the state in between.
* **Killed between two ALTERs**, or before the statement: the remaining ALTERs follow from the table's
  columns.
* **Killed before the cut**, a commit after all tables' commits: the next cycle folds nothing, or later
  changes, and records the cut.
* **A process that writes without lock and lease**, as a catalog permits, may have carried a table beyond C.
  Tables at two LSNs form no consistent state, so the cycle records no cut.
* **A statement without effect** may leave no commit. The mark then does not change, and a second fold of the
  window has no effect either.

`silver.run.worklist` decides which tables a cycle carries. A table's history is a second table with a
separate mark; every cut names both or neither. A table's failure never stops further tables (`Silver._carry`,
`silver.run.failed_tables`). Nor does a table's long work, where the caller allows long work to continue
across cycles (`silver.run.long_work`).
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import TableError, TransientError
from deltasmelt.bronze.lake.cached_table import CachedTable
from deltasmelt.bronze.lake.control import Cut, Run
from deltasmelt.bronze.lake.leases import Lease, held, still_writing
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.store.comments import CommentsWatch, commented
from deltasmelt.bronze.store.contract import CHANGES, require_format
from deltasmelt.bronze.store.position import position_of
from deltasmelt.bronze.store.relations import RelationsWatch
from deltasmelt.silver.errors import definite, failure
from deltasmelt.silver.plan.history_steps import halves, plan_versions
from deltasmelt.silver.plan.steps import plan
from deltasmelt.silver.run.bronze_window import Source, files_after
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
from deltasmelt.silver.spark.tuning import TASK_BYTES, leave_a_core, local_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.store.position import Position as BronzePosition
    from deltasmelt.silver.plan.activity import Work
    from deltasmelt.silver.run.stored import Stored
    from deltasmelt.silver.schema.catalog import SilverTable
    from deltasmelt.silver.settings import SilverSettings
    from deltasmelt.silver.spark.lazy_session import LazySession

_JUST_NOW: Final = 1.0  # seconds for which a caller's read of `bronze.changes` serves a cycle

_WORKERS: Final = 4
"""Default number of tables merged at once by a Spark elsewhere; a local Spark merges as many as its cores."""
_LEAST_LOCAL: Final = 2
_MOST_LOCAL: Final = 16


class Silver:
    """Folds bronze into silver; one object per process and lake, one cycle at a time.

    A cycle without changes to fold does not start a lazy session. `changes` is the cached table
    `bronze.changes`, where the caller reads the table before each cycle.

    Attributes:
        runs: the runs of the newest cycle with a cut.
        long_work: work that continues across cycles. While a table has long work, the caller must hold
            silver's lease and maintain no table.
    """

    def __init__(
        self,
        spark: SparkSession | LazySession,
        lake: Lake,
        settings: SilverSettings,
        control: ControlTables,
        *,
        changes: CachedTable | None = None,
    ) -> None:
        self._spark = spark = lazily(spark)
        self._lake = lake
        self._settings = settings
        self._control = control
        self._log = SilverLog(lake, writes=True)
        self._changes = changes or CachedTable(lake.uri("bronze", CHANGES))
        self._looked_within = 0.0 if changes is None else _JUST_NOW
        self._bronze: Table | None = None
        self._lease: Lease | None = None
        self._relations = RelationsWatch(lake)
        self._pool: ThreadPoolExecutor | None = None
        self.runs: list[Run] = []
        self._folding: Sequence[Future[Run]] = ()
        self._sessions = Sessions(spark)
        self._source = Source(lake)
        self._comments = CommentsWatch(lake)
        descriptions = Descriptions(lake, self._log)
        self._runner = StepRunner(lake, settings, self._log, descriptions)
        self._failed_tables = FailedTables(spark, lake, control)
        self.long_work = LongWork(self._failed_tables)
        self._local_long_work = threading.Lock()
        self._position = Position(control, self._log)
        self._worklist = Worklist(
            lake,
            settings,
            control,
            log=self._log,
            source=self._source,
            sessions=self._sessions,
            failed_tables=self._failed_tables,
            descriptions=descriptions,
            position=self._position,
        )

    @property
    def stopped(self) -> frozenset[TableName]:
        """Tables that an error has stopped."""
        return self._failed_tables.tables

    @property
    def owes_retry(self) -> bool:
        """Check whether the pause of a failed table is over, and no long work of the table is under way."""
        return self._failed_tables.owes_retry and not self.long_work.tables

    @property
    def folding(self) -> tuple[int, int]:
        """Return how many tables the present cycle has folded, and how many it folds; any thread may read."""
        futures = self._folding
        return sum(future.done() for future in futures), len(futures)

    def cycle(
        self,
        *,
        until: Lsn | None = None,
        release: Callable[[Iterable[SilverTable]], None] | None = None,
        leaves: bool = False,
    ) -> Cut | None:
        """Carry all tables to bronze's frontier; return the recorded cut, or None where nothing is new.

        Args:
            until: limit of the cycle; tables beyond this LSN raise the limit to their own LSN.
            release: receives the shapes to be folded, under the lease.
            leaves: let long work of a table continue after the cycle (`silver.run.long_work`); otherwise the
                cycle waits for all work.
        """
        bronze = self._open_bronze()
        position = None if bronze is None else position_of(bronze)
        if bronze is None or position is None:
            return None
        before, self._lease = self._lease, held(self._lake, "silver")
        is_same = self._lease is not None and (self._lease is before or self._lease.follows(before))
        self._log.begin(alone=is_same)
        last = self._control.latest_cut("silver")
        relations = commented(self._relations.read(), self._comments.read(bronze))
        end = self._end(position, last, relations, until)
        self._failed_tables.begin(bronze, end)
        announced = tuple(relation for relation in relations if relation.from_lsn <= end)
        earlier, failed = self.long_work.take(wait_for_all=not leaves)
        long_tables = self.long_work.tables
        if release is not None:
            release(
                table
                for table in silver_catalog(announced, self._settings).values()
                if table.table not in long_tables
            )
        targets = self.long_work.targets
        attempt = Attempt(bronze, announced, last, end, unfinished={*long_tables, *failed}, targets=targets)
        tables, runs = self._carry(attempt, leaves=leaves)

        def carry_again(failed_tables: Collection[TableName]) -> dict[TableName, Exception]:
            unfinished, targets = self.long_work.tables, self.long_work.targets
            again = replace(attempt, only=failed_tables, unfinished=unfinished, targets=targets, undecided={})
            self._forget(again)
            more_tables, more_runs = self._carry(again, leaves=leaves and bool(tables))
            tables.extend(more_tables)
            runs.extend(more_runs)
            return again.undecided

        self._failed_tables.retry(failed | attempt.undecided, carry_again)
        runs = [*earlier, *runs]
        self._failed_tables.close_healed((table.table for table in tables), relations)
        if self._runner.owes_clustering:
            self._runner.cluster_owed(self._sessions.own(), unfinished=self.long_work.tables)
        names = {table.name for table in tables}
        as_before = last is not None and last.commit_lsn == end and names == set(last.tables)
        if last is not None and names and not last.marks:
            as_before = False  # an earlier version recorded the cut: see `silver.run.unsigned`
        if as_before and not runs and not self._position.disowned:
            return None
        # A kill after this restatement is harmless: the commit has no rows, and the next cut names its
        # version.
        for silver_table in tables:
            self._log.state_marks(silver_table.name)
        states = self._own({key: stored for key in tables if (stored := self._log.read(key.name))})
        # The lease must still hold: a process that paused for longer than the lease records no cut.
        still_writing(self._lake, "silver")
        self._control.record_runs(runs)
        self.runs = runs
        self.long_work.recorded(table.table for table in tables)
        if not names and self.long_work.tables:
            return None  # a cut without tables helps no reader
        ahead = any(stored.mark is not None and stored.mark > end for stored in states.values())
        if ahead:
            return None  # another process carries the tables, and records a cut
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

    def _own(self, stored_tables: Mapping[SilverTable, Stored]) -> dict[str, Stored]:
        """Return the tables for the cut: no foreign commit changed rows of the table or of its history."""
        stopped = set()
        for table, stored in stored_tables.items():
            try:
                self._position.require_own(table, stored)
            except TableError as error:
                self._failed_tables.stop(error)
                stopped.add(table.table)
        return {
            state_table.name: stored
            for state_table, stored in stored_tables.items()
            if state_table.table not in stopped
        }

    def close(self) -> None:
        """Wait for running work, end the threads and drop cached rows."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        self.long_work.close()
        self._source.close()

    def _open_bronze(self) -> Table | None:
        """Return `bronze.changes` at the newest version; read only new entries of the log."""
        # In a store, a recent read by the caller serves the cycle.
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
        """Return the LSN of a table's newest window; ZERO without a window or for an unreadable table."""
        try:
            stored = self._log.read(table.name)
        except Exception:  # noqa: BLE001 - the table's part reports the error
            return ZERO
        return ZERO if stored is None or stored.mark is None else stored.mark

    def _carry(self, attempt: Attempt, *, leaves: bool) -> tuple[list[SilverTable], list[Run]]:
        """Carry tables to an LSN; return the tables for a cut, and the runs.

        Afterwards `Attempt.undecided` holds the failed tables. A failed statement, or a failed read of a
        table's log, ends the table's part alone. The cycle retries the part once, from the table's actual
        state, as after a kill: the mark states the finished windows, and the columns show the missing ALTERs.
        A temporary failure, or a failure after which Spark no longer answers, ends the cycle once the
        parallel tables are done. The cycle then records no cut.
        """
        entries = self._worklist.entries(attempt)
        works = [entry.work for entry in entries if entry.work is not None]
        # Without further tables the cut would be empty, so the cycle waits for long work.
        long = {work.table.table for work in works if self.long_work.suits(work)}
        has_short = attempt.only is not None or any(entry.table.table not in long for entry in entries)
        runs = self._run_all(works, attempt, leaves=leaves and has_short)
        stand = [
            entry.table
            for entry in entries
            if entry.table.table not in attempt.undecided
            and entry.table.table not in self.long_work.tables
            and not self._failed_tables.is_stopped(entry.table.table)
        ]
        return stand, runs

    def _forget(self, again: Attempt) -> None:
        """Open the tables of a second attempt again, because a user may have removed or restored some."""
        catalog = silver_catalog(again.relations, self._settings)
        tables = [table for table in catalog.values() if table.table in (again.only or ())]
        self._log.forget(table.name for table in [*tables, *histories(tables, self._settings)])

    def _run_all(self, busy: Sequence[Work], attempt: Attempt, *, leaves: bool = False) -> list[Run]:
        """Run all tables in parallel; a failure ends only its table's part (`silver.run.failed_tables`).

        On return, and on every error, only tables of `long_work` still run.
        """
        if not busy:
            return []
        pool = self._begun_pool()
        runs: list[Run] = []
        transient: list[TransientError] = []
        short: list[tuple[Work, Future[Run]]] = []
        long: list[tuple[Work, Future[Run]]] = []
        for work in busy:
            if leaves and self.long_work.suits(work):
                long.append((work, self.long_work.submit(partial(self._run_long, work, attempt.bronze))))
            else:
                short.append((work, pool.submit(self._run, work)))
        begun_works = [*short, *long]
        self._folding = [future for _, future in short]
        try:
            wait(future for _, future in short)
            if long:
                again = attempt.only is not None
                self.long_work.leave(long, attempt.end, again=again, waited=again or bool(short))
                long_tables = self.long_work.tables
                begun_works = [*short, *(pair for pair in long if pair[0].table.table not in long_tables)]
            for work, future in begun_works:
                try:
                    with self._failed_tables.isolated(work.table.table, attempt.undecided):
                        runs.append(future.result())
                except TransientError as error:
                    transient.append(error)
        finally:  # also after an error: the next cycle replaces the view that all tables read
            wait(future for _, future in begun_works)
            self._folding = ()
        if transient:
            raise transient[0]
        return runs

    def _begun_pool(self) -> ThreadPoolExecutor:
        """Return the threads that merge tables; start Spark first, whose cores bound the threads."""
        session = self._spark.get()
        if self._pool is None:
            workers = self._settings.workers
            if workers is None and access_of(session).runs_locally:
                workers = min(_MOST_LOCAL, max(_LEAST_LOCAL, local_cores(session)))
            self._pool = ThreadPoolExecutor(workers or _WORKERS, thread_name_prefix="silver")
        return self._pool

    def _run_long(self, work: Work, bronze: Table) -> Run:
        """Run all steps of a table with a large window of `bronze`."""
        session = self._sessions.own()
        access = access_of(session)
        access.in_background("long")
        if not access.runs_locally:
            return self._run(work)
        later = files_after(bronze, work.start, work.end, [work.table.relation.relation_id])
        leave_a_core(session, later.rows_in(TASK_BYTES))
        with self._local_long_work:  # each takes all cores except one
            return self._run(work)

    def _run(self, work: Work) -> Run:
        """Run all steps of a table."""
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
                    and self._failed_tables.may_do_without(work.table.table, error)
                ):
                    failed = failure(work.table.table, error)
                if not step.optional or failed is None:
                    raise
                if smaller := halves(step):
                    remaining += reversed(smaller)
                else:
                    left_out.append(failed.message)  # the following snapshot corrects the rows
                continue
            if step.mode == "load":
                run.mode = "snapshot" if step.window.snapshot is not None else "full"
                run.reason = None if run.mode == "snapshot" else "the table was truncated"
            # After rejected comments, the newest version belongs to an earlier run: count no rows.
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
