"""Silver's tables at the log's head: what they will hold after the next cycle, read before it.

A table at the head is its rows at some version, and the fold of what bronze holds after that. The fold is the
one that MERGE uses (`silver.run.step_source`), and so are the steps; only its target is another
(`silver.fold.upsert.rows_after`). Nothing of the lake's tables is written, and no cycle is waited for.

**Why it is right.**

* *Whole transactions, at one LSN.* All tables of one look are at bronze's frontier, which is a commit's end
  (`bronze.store.position`). It was reached before the look began, so a look is never behind what bronze held.
* *Each change once.* A version of a silver table says by its mark up to where it holds the log. Version and
  mark are read once, and the version is pinned. A cycle that commits meanwhile changes neither.
* *Nothing between.* Tables are looked at before bronze is. So bronze's frontier is at or after every mark: it
  holds all changes between, unless it has a gap.
* *Out of the cut.* A table that a cycle could not carry (bronze lacks changes, a refused shape, a value that
  no rule gives) has no rows at the head. It is named in `Head.out` with the reason, and never shown as of an
  older moment.

**A changed shape.** Where the window changes the table's columns, its steps run as in a cycle, ALTERs
included, on a shallow clone of the table in a scratch folder: a log of its own over the table's files. It
takes as long as the cycle's statements would.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import DefiniteError, TableError
from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.delta import location, open_existing, refresh
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.gaps import is_whole
from deltasmelt.bronze.store.position import position_of
from deltasmelt.bronze.store.relations import RelationsWatch
from deltasmelt.silver.errors import definite
from deltasmelt.silver.fold import merge
from deltasmelt.silver.fold.upsert import cells, changed_rows, rows_after
from deltasmelt.silver.plan.history_steps import halves, plan_versions
from deltasmelt.silver.plan.steps import plan
from deltasmelt.silver.run import step_source
from deltasmelt.silver.run.aside import Aside, PinnedLog
from deltasmelt.silver.run.bronze_window import Source, files_after
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

    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.silver.plan.activity import Work
    from deltasmelt.silver.plan.steps import Step
    from deltasmelt.silver.run.stored import Stored
    from deltasmelt.silver.schema.catalog import SilverTable
    from deltasmelt.silver.settings import SilverSettings

_BEFORE: Final = "smelt_fresh_before"
_MET: Final = "smelt_fresh_met"
_CHANGED: Final = "smelt_fresh_changed"
"""Temporary views of the session in which tables are folded, one after the other."""

_LITTLE: Final = 100_000
"""Rows up to which they are sent to every task that reads the table, so that this is not shuffled."""

_SCRATCH: Final = "_fresh"
"""Folder beside the lake's layers, where tasks do not all see the folder of one machine."""


@dataclass(frozen=True, slots=True)
class Head:
    """Tables at the log's head.

    Attributes:
        lsn: of the last commit that they hold.
        commit_ts: when that was committed at the source.
        views: of each table that was asked for and can be shown, a view that `FreshTables.session` finds.
        out: why another one cannot be shown.
        relations: all shapes that are known at `lsn`.
    """

    lsn: Lsn
    commit_ts: datetime | None
    views: Mapping[str, str]
    out: Mapping[str, str]
    relations: tuple[Relation, ...]

    def view(self, name: str) -> str:
        """The view of a table.

        Raises:
            DefiniteError: it cannot be shown.
        """
        if name in self.out:
            raise DefiniteError(
                f"silver.{name} cannot be read at the log's head: {self.out[name]}",
                code="not-at-head",
                where=str(self.lsn),
                remedy="ask without --fresh for the newest cut; `smelt status` says what stops the table",
            )
        return self.views[name]


@dataclass(frozen=True, slots=True)
class _Size:
    """Of a window: its changes, and whether these are few and short enough to be sent to every task."""

    changes: int
    is_little: bool


class FreshTables:
    """Makes views of one lake's silver tables at the log's head; one look at a time.

    Args:
        spark: the session whose statements shall read them.
        lake: where the tables lie.
        settings: silver's.
        control: the lake's control tables.
        named: gives the name of a table's view; by default one that no other object gives.
        as_found: show a table also where others changed its rows: for who compares them with the source.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        settings: SilverSettings,
        control: ControlTables,
        *,
        named: Callable[[str], str] | None = None,
        as_found: bool = False,
    ) -> None:
        token = uuid.uuid4().hex[:12]
        self._named = named or (lambda name: f"smelt_fresh_{token}_{sha256(name.encode()).hexdigest()[:12]}")
        self._spark = spark
        self._lake = lake
        self._settings = settings
        self._control = control
        self._sessions = Sessions(spark, shared=True)
        self._log = PinnedLog(lake, as_found=as_found)
        self._source = Source(lake)
        self._bronze: DeltaTable | None = None
        self._relations = RelationsWatch(lake)
        self._made: set[str] = set()
        self._scratch: list[Lake] = []

    @property
    def session(self) -> SparkSession:
        """A session that finds the views, as those beside it do that are made after a look."""
        session = self._sessions.own()
        return self._spark if access_of(session).shares_views else session

    def names(self) -> list[str]:
        """The tables that can be asked for: of all that bronze knows, whether silver has them yet or not."""
        tables = silver_catalog(self._relations.read(), self._settings).values()
        return [
            version_table.name
            for table in tables
            for version_table in [table, *histories([table], self._settings)]
        ]

    def catalog(self, head: Head) -> dict[TableName, SilverTable]:
        """Silver's tables as they are at the head."""
        return silver_catalog(head.relations, self._settings)

    def is_stored(self, name: str) -> bool:
        """Whether silver had a table of this name when it was looked at."""
        stored = self._log.read(name)
        return stored is not None and stored.mark is not None

    def look(self, names: Collection[str], *, at: Lsn | None = None) -> Head:
        """The tables of these names as of the last commit that bronze holds now, or as of an LSN.

        A table that is past a given LSN is folded from the newest cut at or before it. One that no such cut
        names is out.

        Args:
            names: names of tables of silver, histories among them.
            at: an LSN that bronze has reached.

        Raises:
            DefiniteError: there is no lake.
            TransientError: it does not answer.
        """
        self._forget()
        last = self._control.latest_cut("silver", at=at)
        self._log.pin(names)
        if at is not None:
            named = {name: self._control.last_named("silver", name, at=at) for name in names}
            self._log.go_back({name: state.version for name, state in named.items() if state is not None}, at)
        bronze = self._newest_bronze()
        end, commit_ts = (at, None) if at is not None else _frontier(bronze)
        relations = tuple(relation for relation in self._relations.read() if relation.from_lsn <= end)
        wanted_tables = self._wanted(names, relations)
        past = {table for name, table in wanted_tables.items() if self._log.is_past(name, end)}
        aside = Aside(self._spark, self._lake, self._control)
        aside.begin(bronze)
        torn = self._log.torn(wanted_tables)
        attempt = Attempt(
            bronze, relations, last, end, only=frozenset(wanted_tables.values()) - past - torn.keys()
        )
        worklist = Worklist(
            self._lake,
            self._settings,
            self._control,
            log=self._log,
            source=self._source,
            sessions=self._sessions,
            troubles=aside,
        )
        views: dict[str, str] = {}
        for entry in worklist.entries(attempt):
            if entry.table.name in names:
                with aside.isolated(entry.table.table, end, {}):
                    views[entry.table.name] = self._view(entry.table, entry.work, bronze)
        aside.out |= dict.fromkeys(past, "it is past that LSN, and no cut before it names the table") | torn
        unavailable = {
            name: self._why(name, wanted_tables, aside, attempt) for name in names if name not in views
        }
        return Head(end, commit_ts, views, unavailable, relations)

    def close(self) -> None:
        """Forget what is kept, and remove what was written to look."""
        self._forget()
        self._source.close()

    def _forget(self) -> None:
        """Take away what the last look made, so that no statement reads it beside what the next one makes."""
        while self._scratch:
            _remove(self._scratch.pop())
        for view in self._made:
            access_of(self.session).unshare(view)
        self._made.clear()

    def _newest_bronze(self) -> DeltaTable:
        """`bronze.changes` at its newest version; its log is read on from where it was read before."""
        if self._bronze is None:
            self._bronze = open_existing(location(self._lake, "bronze", CHANGES))
        else:
            refresh(self._bronze)
        return self._bronze

    def _wanted(self, names: Collection[str], relations: Iterable[Relation]) -> dict[str, TableName]:
        """The source's table of each name."""
        tables = silver_catalog(list(relations), self._settings).values()
        sought = {}
        for table in tables:
            for table_or_history in [table, *histories([table], self._settings)]:
                if table_or_history.name in names:
                    sought[table_or_history.name] = table_or_history.table
        return sought

    def _why(self, name: str, wanted: Mapping[str, TableName], aside: Aside, attempt: Attempt) -> str:
        table = wanted.get(name)
        if table is None:
            return "the source has no such table"
        if table in aside.out:
            return aside.out[table]
        if not is_whole(attempt.bronze, table, attempt.end):
            return "bronze lacks changes of it, until its next snapshot has come"
        return "its first snapshot has not come to its end"

    def _view(self, table: SilverTable, work: Work | None, bronze: DeltaTable) -> str:
        """A view of a table's rows at the end of its work; without work they are there."""
        session, stored = self._sessions.own(), self._log.read(table.name)
        if work is None:
            if stored is None:
                raise RuntimeError(f"silver.{table.name} is not there, and there is nothing to make it of")
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
        if not access.shares_views:  # readers of the view are clones, with the settings that are left here
            tune(session, small=False)
        return shared

    def _changes_shape(self, steps: Sequence[Step], stored: Stored | None) -> bool:
        """Whether a step has other columns than the table, or than the step before it."""
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
        """A table's rows after steps that leave its shape as it is."""
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
            if step.mode != "alter":  # of a shape that is as it is
                frame.createOrReplaceTempView(_BEFORE)
                frame = session.sql(_after(session, step, columns, little=little))

        with settings(session, ONE_TASK if small and rows <= SMALL_TARGET else {}):
            _each(steps, carry)
        return frame

    # -- as a clone

    def _rows_of_clone(
        self, session: SparkSession, steps: Sequence[Step], stored: Stored | None, size: _Size
    ) -> DataFrame:
        """A table's rows after steps that change its shape: they run on a clone of it."""
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
        _each(steps, lambda step: runner.run(session, step, changes=size.changes))
        return session.sql(f"SELECT * FROM {address}")

    def _folder(self, session: SparkSession, table: SilverTable) -> Lake:
        """A folder of its own that all tasks see.

        Raises:
            TableError: there is none.
        """
        if self._lake.folder is not None and access_of(session).runs_locally:
            return Lake(path=tempfile.mkdtemp(prefix="smelt-fresh-"))
        if self._lake.place.needs_session:
            raise TableError(
                table.table,
                "its columns change in the window, and of a catalog's table no clone is made to look ahead",
                code="table-failed",
                remedy="ask again after silver's next cycle, or without --fresh",
            )
        return self._lake.below(f"{_SCRATCH}/{uuid.uuid4().hex}")


def _frontier(bronze: DeltaTable) -> tuple[Lsn, datetime | None]:
    """The LSN of the last commit that bronze holds, and when that was."""
    position = position_of(bronze)
    if position is None:
        raise RuntimeError("silver has a cut, but bronze has no position")
    return position.frontier, position.commit_ts


def _each(steps: Sequence[Step], carry: Callable[[Step], object]) -> None:
    """Do steps in order. One that a snapshot follows may fail: as a cycle does, halve it or leave it out."""
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
    """The type of each of a table's columns, by name."""
    if stored is not None:
        return {field.name: field.ddl for field in stored.fields}
    return {**{column.name: column.spark_type for column in table.columns}, **table.own_columns}


def _after(session: SparkSession, step: Step, columns: Mapping[str, str], *, little: bool) -> str:
    """A query of a table's rows after one step; those before it are a view."""
    if step.mode in {"load", "append"}:
        fold = step_source.folded(session, step, _BEFORE, keep=False)
        added = f"SELECT {cells(columns, merge.inserted(step.table, fold))}\nFROM (\n{fold.query}\n)"
        added = step_source.kept(session, added, _CHANGED)
        listed = ", ".join(map(quote, columns))
        return added if step.mode == "load" else f"SELECT {listed} FROM {_BEFORE}\nUNION ALL\n{added}"
    if step.mode == "versions":
        upsert = step_source.versions(session, step, _BEFORE, lambda _: {}, keep=True)
    else:
        fold = step_source.folded(session, step, _BEFORE, keep=True)
        facts = step.window.facts
        upsert = merge.merge(step.table, fold, {}, leaves=facts.deletes or facts.old_tuples > 0)
    session.sql(upsert.source).createOrReplaceTempView(_MET)
    touched = f"(SELECT /*+ BROADCAST(f) */ * FROM {_MET} AS f)" if little else _MET
    step_source.kept(session, changed_rows(_BEFORE, columns, upsert, source=touched), _CHANGED)
    return rows_after(_BEFORE, columns, upsert, source=touched, changed=_CHANGED)
