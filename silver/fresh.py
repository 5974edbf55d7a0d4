"""Silver's tables at the log's head: a reader gets the rows of the next cycle before the cycle.

A table at the head is the table's rows at some version, combined with a fold of bronze's later changes. Fold
and steps are those of MERGE (`silver.run.step_source`); only the target differs
(`silver.fold.upsert.rows_after`). A read writes no table of the lake, and waits for no cycle.

Why the rows are right:

* *Whole transactions, at one LSN.* All tables of one read are at bronze's frontier, the end of a commit
  (`bronze.store.position`), or at the caller's LSN. Bronze is read after the begin of the read, so the read
  is never behind bronze's state at the begin.
* *Each change once.* The mark of a silver table states the LSN of each version. Version and mark are read
  once, and the version is pinned. A cycle that commits meanwhile changes neither.
* *No gap in between.* Tables are read before bronze. So bronze's frontier is at or after every mark, and
  bronze holds all changes in between, unless bronze has a gap.
* *Excluded tables.* A table that a cycle could not carry (missing changes in bronze, a rejected shape, a
  value without a rule) has no rows at the head. `Head.out` names the table with the reason. An older state is
  never shown.
"""

from __future__ import annotations

import shutil
import uuid
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import DefiniteError, TableError
from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.cached_table import CachedTable
from deltasmelt.bronze.lake.copies import FRESH
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.staging import aside
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.gaps import is_whole
from deltasmelt.bronze.store.position import position_of
from deltasmelt.bronze.store.relations import RelationsWatch
from deltasmelt.silver.errors import definite
from deltasmelt.silver.fold import write_sql
from deltasmelt.silver.fold.upsert import cells, changed_rows, rows_after
from deltasmelt.silver.plan.history_steps import halves, plan_versions
from deltasmelt.silver.plan.steps import plan
from deltasmelt.silver.run import step_source
from deltasmelt.silver.run.bronze_window import Source, files_after
from deltasmelt.silver.run.read_only import PinnedLog, UnavailableTables
from deltasmelt.silver.run.step_runner import StepRunner, reshaping, rows_touched
from deltasmelt.silver.run.table_log import SilverLog
from deltasmelt.silver.run.worklist import Attempt, Worklist
from deltasmelt.silver.run.writer import Writer
from deltasmelt.silver.schema.catalog import histories, silver_catalog
from deltasmelt.silver.spark.access import Sessions, access_of
from deltasmelt.silver.spark.small_reads import table_at
from deltasmelt.silver.spark.tuning import ONE_TASK, SMALL, SMALL_TARGET, generate_code, settings, tune
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.silver.plan.activity import Work
    from deltasmelt.silver.plan.steps import Step
    from deltasmelt.silver.run.stored import Stored
    from deltasmelt.silver.schema.catalog import SilverTable
    from deltasmelt.silver.settings import SilverSettings

# Temporary views of the session that folds tables, one table after the other.
_BEFORE: Final = "smelt_fresh_before"
_MET: Final = "smelt_fresh_met"
_CHANGED: Final = "smelt_fresh_changed"

_LITTLE: Final = 100_000
"""Limit on rows that Spark sends to every task over the table, so that Spark does not shuffle the table."""


@dataclass(frozen=True, slots=True)
class Head:
    """Tables at the log's head.

    Attributes:
        lsn: LSN of the last commit in the tables.
        views: by requested table with rows, the name of a view for `FreshTables.session`.
        out: for each remaining requested table, the reason why the table has no rows.
        relations: all shapes that are known at `lsn`.
    """

    lsn: Lsn
    commit_ts: datetime | None
    views: Mapping[str, str]
    out: Mapping[str, str]
    relations: tuple[Relation, ...]

    def view(self, name: str) -> str:
        """Return the view of a table; a table without rows at the head raises its reason."""
        if name in self.out:
            raise DefiniteError(
                f"silver.{name} cannot be read at the log's head: {self.out[name]}",
                code="not-at-head",
                where=str(self.lsn),
                remedy="read without --fresh for the newest cut; `smelt status` reports what stops the table",
            )
        return self.views[name]


@dataclass(frozen=True, slots=True)
class _Size:
    """The number of a window's changes, and whether the changes are small enough to be sent to every task."""

    changes: int
    is_little: bool


class FreshTables:
    """Creates views of one lake's silver tables at the log's head; one read at a time.

    Args:
        named: returns the name of a table's view; by default a name unique to this object.
        accept_foreign: also show tables with foreign changes, for a comparison with the source.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        settings: SilverSettings,
        control: ControlTables,
        *,
        named: Callable[[str], str] | None = None,
        accept_foreign: bool = False,
    ) -> None:
        token = uuid.uuid4().hex[:12]
        self._named = named or (lambda name: f"smelt_fresh_{token}_{sha256(name.encode()).hexdigest()[:12]}")
        self._spark = spark
        self._lake = lake
        self._settings = settings
        self._control = control
        self._sessions = Sessions(spark, shared=True)
        self._log = PinnedLog(lake, accept_foreign=accept_foreign)
        self._source = Source(lake)
        self._bronze = CachedTable(lake.uri("bronze", CHANGES))
        self._relations = RelationsWatch(lake)
        self._made: set[str] = set()
        self._scratch: list[Lake] = []

    @property
    def session(self) -> SparkSession:
        """A session that finds the views; sibling sessions created after a read find the views too."""
        session = self._sessions.own()
        return self._spark if access_of(session).shares_views else session

    def names(self) -> list[str]:
        """Return the names of all tables that bronze knows, whether silver has the tables yet or not."""
        tables = silver_catalog(self._relations.read(), self._settings).values()
        return [
            version_table.name
            for table in tables
            for version_table in [table, *histories([table], self._settings)]
        ]

    def catalog(self, head: Head) -> dict[TableName, SilverTable]:
        """Return silver's tables in their shapes at the head."""
        return silver_catalog(head.relations, self._settings)

    def is_stored(self, name: str) -> bool:
        """Check whether silver had a table of this name at the last read."""
        stored = self._log.read(name)
        return stored is not None and stored.mark is not None

    def read(self, names: Collection[str], *, at: Lsn | None = None) -> Head:
        """Return the tables as of bronze's last commit, or as of an LSN that bronze has reached.

        `names` includes the names of histories. A lake that does not exist, or does not answer, raises an
        error.
        """
        self._forget()
        last = self._control.latest_cut("silver", at=at)
        self._log.pin(names)
        if at is not None:
            # A table past the LSN is folded from the newest cut at or before it; without a cut, it is
            # excluded.
            named = {name: self._control.last_named("silver", name, at=at) for name in names}
            self._log.go_back({name: state.version for name, state in named.items() if state is not None}, at)
        bronze = self._newest_bronze()
        end, commit_ts = (at, None) if at is not None else _frontier(bronze)
        relations = tuple(relation for relation in self._relations.read() if relation.from_lsn <= end)
        source_tables = self._source_tables(names, relations)
        past = {table for name, table in source_tables.items() if self._log.is_past(name, end)}
        failures = UnavailableTables(self._spark, self._lake, self._control)
        failures.begin(bronze, end)
        torn = self._log.torn(source_tables)
        attempt = Attempt(
            bronze, relations, last, end, only=frozenset(source_tables.values()) - past - torn.keys()
        )
        worklist = Worklist(
            self._lake,
            self._settings,
            self._control,
            log=self._log,
            source=self._source,
            sessions=self._sessions,
            failed_tables=failures,
        )
        views: dict[str, str] = {}
        for entry in worklist.entries(attempt):
            if entry.table.name in names:
                with failures.isolated(entry.table.table, {}):
                    views[entry.table.name] = self._view(entry.table, entry.work, bronze)
        failures.reasons |= (
            dict.fromkeys(past, "the table is past that LSN, and no earlier cut contains the table") | torn
        )
        unavailable = {
            name: self._reason(name, source_tables, failures, attempt) for name in names if name not in views
        }
        return Head(end, commit_ts, views, unavailable, relations)

    def close(self) -> None:
        """Drop cached rows, and remove all views and scratch folders of the reads."""
        self._forget()
        self._source.close()

    def _forget(self) -> None:
        """Remove the views and folders of the last read, so that no statement mixes two reads."""
        while self._scratch:
            _remove(self._scratch.pop())
        for view in self._made:
            access_of(self.session).unshare(view)
        self._made.clear()

    def _newest_bronze(self) -> Table:
        """Return `bronze.changes` at the newest version; read only new entries of the log."""
        return self._bronze.newest() or open_existing(self._lake.uri("bronze", CHANGES))

    def _source_tables(self, names: Collection[str], relations: Iterable[Relation]) -> dict[str, TableName]:
        """Return the source's table for each name."""
        tables = silver_catalog(list(relations), self._settings).values()
        sought = {}
        for table in tables:
            for table_or_history in [table, *histories([table], self._settings)]:
                if table_or_history.name in names:
                    sought[table_or_history.name] = table_or_history.table
        return sought

    def _reason(
        self, name: str, source_tables: Mapping[str, TableName], failures: UnavailableTables, attempt: Attempt
    ) -> str:
        table = source_tables.get(name)
        if table is None:
            return "the source has no such table"
        if table in failures.reasons:
            return failures.reasons[table]
        if not is_whole(attempt.bronze, table, attempt.end):
            return "bronze lacks changes of the table until its next snapshot is complete"
        return "the first snapshot of the table is not complete"

    def _view(self, table: SilverTable, work: Work | None, bronze: Table) -> str:
        """Return a view of a table's rows after the table's work; without work, of the stored rows."""
        session, stored = self._sessions.own(), self._log.read(table.name)
        if work is None:
            if stored is None:
                raise RuntimeError(
                    f"silver.{table.name} does not exist, and bronze has no rows for the table"
                )
            rows = table_at(session, self._lake, "silver", table.name, stored.version)
        else:
            steps = plan_versions(work) if table.versioned else plan(work)
            made = self._rows_of_clone if self._changes_shape(steps, stored) else self._rows
            little = work.activity.changes <= _LITTLE and files_after(bronze, work.start).is_small
            rows = made(session, steps, stored, _Size(work.activity.changes, little))
        view = self._named(table.name)
        self._made.add(view)
        access = access_of(session)
        shared = access.share(rows, view)
        if not access.shares_views:  # clones read the view with this session's settings
            tune(session, small=False)
        return shared

    def _changes_shape(self, steps: Sequence[Step], stored: Stored | None) -> bool:
        """Check whether a step has different columns than the table, or than the step before."""
        shapes = {
            tuple((column.name, column.spark_type, column.attnum) for column in step.table.columns)
            for step in steps
        }
        if stored is None or len(shapes) > 1:
            return len(shapes) > 1
        return any(reshaping("t", step, stored, self._settings) for step in steps)

    # -- as a query

    def _rows(
        self, session: SparkSession, steps: Sequence[Step], stored: Stored | None, size: _Size
    ) -> DataFrame:
        """Return a table's rows after steps that do not change the table's shape."""
        table = steps[0].table
        rows, _ = (0, 0) if stored is None else self._log.size(table.name)
        touched = rows_touched(steps, size.changes, rows)
        small, columns = touched <= SMALL, _columns(table, stored)
        little = size.is_little and touched <= _LITTLE
        tune(session, small=small)
        if small and rows > SMALL_TARGET:
            generate_code(session)
        if stored is not None:
            frame = table_at(session, self._lake, "silver", table.name, stored.version)
        else:
            frame = session.sql(f"SELECT {cells(columns, {})} WHERE false")

        def carry(step: Step) -> None:
            nonlocal frame
            if step.mode != "alter":  # the shape does not change
                frame.createOrReplaceTempView(_BEFORE)
                frame = session.sql(_after(session, step, columns, little=little))

        with settings(session, ONE_TASK if small and rows <= SMALL_TARGET else {}):
            _run_or_halve(steps, carry)
        return frame

    # -- as a clone

    def _rows_of_clone(
        self, session: SparkSession, steps: Sequence[Step], stored: Stored | None, size: _Size
    ) -> DataFrame:
        """Return a table's rows after steps that change the table's shape, run on a clone of the table.

        The steps run as in a cycle, ALTERs included, on a shallow clone in a scratch folder: a separate log
        over the table's files. The read takes as long as the cycle's statements.
        """
        table = steps[0].table
        scratch = self._folder(session, table)
        self._scratch.append(scratch)
        address = scratch.sql("silver", table.name)
        if stored is not None:
            before = f"{self._lake.sql('silver', table.name)} VERSION AS OF {stored.version}"
            Writer(scratch, "silver").run(
                session, table.name, f"CREATE TABLE {address} SHALLOW CLONE {before}"
            )
        runner = StepRunner(scratch, self._settings, SilverLog(scratch))
        _run_or_halve(steps, lambda step: runner.run(session, step, changes=size.changes))
        return session.sql(f"SELECT * FROM {address}")

    def _folder(self, session: SparkSession, table: SilverTable) -> Lake:
        """Return a new scratch folder that all tasks see; a lake without folders raises an error."""
        if self._lake.folder is not None and access_of(session).runs_locally:
            # In the process's own folder, which the next process removes if this process is killed.
            return Lake(path=str(aside(f"{FRESH}/{uuid.uuid4().hex}")))
        if not self._lake.place.shows_files:
            raise TableError(
                table.table,
                "the table's columns change in the window, and deltasmelt cannot clone a table of a catalog "
                "to read it at the head",
                code="table-failed",
                remedy="read again after silver's next cycle, or without --fresh",
            )
        return self._lake.below(f"{FRESH}/{uuid.uuid4().hex}")


def _frontier(bronze: Table) -> tuple[Lsn, datetime | None]:
    """Return the LSN and the time of bronze's last commit."""
    position = position_of(bronze)
    if position is None:
        raise RuntimeError("silver has a cut, but bronze has no position")
    return position.frontier, position.commit_ts


def _run_or_halve(steps: Sequence[Step], carry: Callable[[Step], object]) -> None:
    """Run steps in order; halve a failed optional step, or skip the smallest half, as a cycle does."""
    remaining = [*reversed(steps)]
    while remaining:
        try:
            carry(step := remaining.pop())
        except Exception as error:
            if not step.optional or definite(step.table.table, error) is None:
                raise
            remaining += reversed(halves(step))


def _remove(scratch: Lake) -> None:
    if scratch.folder is not None:
        shutil.rmtree(scratch.folder, ignore_errors=True)
    else:
        objects.discard(scratch.root)


def _columns(table: SilverTable, stored: Stored | None) -> dict[str, str]:
    """Return the type of each column of a table, by name."""
    if stored is not None:
        return {field.name: field.ddl for field in stored.fields}
    return {**{column.name: column.spark_type for column in table.columns}, **table.own_columns}


def _after(session: SparkSession, step: Step, columns: Mapping[str, str], *, little: bool) -> str:
    """Return a query of a table's rows after one step; a view holds the rows before the step."""
    if step.mode in {"load", "append"}:
        fold = step_source.folded(session, step, _BEFORE, keep=False)
        added = f"SELECT {cells(columns, write_sql.inserted(step.table, fold))}\nFROM (\n{fold.query}\n)"
        added = step_source.cached(session, added, _CHANGED)
        listed = ", ".join(map(quote, columns))
        return added if step.mode == "load" else f"SELECT {listed} FROM {_BEFORE}\nUNION ALL\n{added}"
    if step.mode == "versions":
        upsert = step_source.versions(session, step, _BEFORE, lambda _: {}, keep=True)
    else:
        fold = step_source.folded(session, step, _BEFORE, keep=True)
        facts = step.window.facts
        upsert = write_sql.merge(step.table, fold, {}, leaves=facts.deletes or facts.old_tuples > 0)
    session.sql(upsert.source).createOrReplaceTempView(_MET)
    touched = f"(SELECT /*+ BROADCAST(f) */ * FROM {_MET} AS f)" if little else _MET
    step_source.cached(session, changed_rows(_BEFORE, columns, upsert, source=touched), _CHANGED)
    return rows_after(_BEFORE, columns, upsert, source=touched, changed=_CHANGED)
