"""A cycle's work: the tables to carry, each with its LSN and its changes.

A table is carried from its actual state. The mark on the table states the LSN; where the last windows changed
nothing, the newest cut that names the table does. A table that silver lacks begins with the newest snapshot.
A history is a separate table with a separate mark.

A cycle skips some tables, and no cut names them: tables with missing changes in bronze, tables that the
source no longer has or the pipeline no longer reads, tables that an error has stopped, and tables with long
work of an earlier cycle.

Some tables are rejected with an error. Each cycle repeats the checks, so a rejection ends with its cause.
`smelt rebuild` runs the checks too, as a rebuild would otherwise overwrite another table's rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltasmelt.bronze.errors import TableError, resnapshot_remedy
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.store.gaps import healed_at, is_left_out, is_whole
from deltasmelt.bronze.store.marks import base_of, kept_from, snapshot_of
from deltasmelt.silver.errors import name_refused
from deltasmelt.silver.plan.activity import Activity, Work, activities_in, activity_of, activity_query
from deltasmelt.silver.run.bronze_window import files_after, rows_here, whole
from deltasmelt.silver.run.long_work import LONG
from deltasmelt.silver.run.position import Position
from deltasmelt.silver.run.step_runner import Descriptions
from deltasmelt.silver.schema import alter, deleted_keys, padding
from deltasmelt.silver.schema.catalog import check_table, histories, history_of, silver_catalog
from deltasmelt.silver.spark.tuning import SMALL, tune

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.control import Cut
    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.silver.run.bronze_window import Later, Source
    from deltasmelt.silver.run.failed_tables import FailedTables
    from deltasmelt.silver.run.stored import Stored
    from deltasmelt.silver.run.table_log import SilverLog
    from deltasmelt.silver.schema.catalog import SilverTable
    from deltasmelt.silver.settings import SilverSettings
    from deltasmelt.silver.spark.access import Sessions


def claimants(tables: Collection[SilverTable], bronze: Table, settings: SilverSettings) -> list[SilverTable]:
    """Return the tables that silver has or will have, for checks of tables that claim one name."""
    if not settings.history:
        return []
    return [
        table
        for table in tables
        if snapshot_of(bronze, table.table) is not None and not is_left_out(bronze, table.table)
    ]


def same_names(
    lake: Lake, tables: Collection[SilverTable], bronze: Table, settings: SilverSettings
) -> dict[TableName, TableError]:
    """Return errors of tables that a catalog would store as one table, histories included; none at a path."""
    if not lake.place.folds_case:
        return {}
    of_source = [table for table in tables if not is_left_out(bronze, table.table)]
    return case_collisions([*of_source, *histories(of_source, settings)])


def case_collisions(tables: Iterable[SilverTable]) -> dict[TableName, TableError]:
    """Return errors of tables whose names differ only in case, because a catalog ignores case."""
    found: dict[str, list[SilverTable]] = {}
    for table in tables:
        found.setdefault(table.name.lower(), []).append(table)
    errors: dict[TableName, TableError] = {}
    for same in found.values():
        for one in same:
            other = next((other for other in same if other.name != one.name), None)
            if other is not None:  # `check_table` reports two equal names
                whose = f"the history of {other.table}" if other.history else f"the table of {other.table}"
                why = f" next to {whose}: the catalog ignores case"
                errors.setdefault(one.table, name_refused(one.table, f"silver.{one.name}", why))
    return errors


def rejection_of(
    table: SilverTable,
    start: Lsn | None,
    *,
    existing: Sequence[SilverTable],
    relations: Sequence[Relation],
    last: Cut | None,
    settings: SilverSettings,
) -> TableError | None:
    """Return the error that forbids carrying a table at present; None without an error.

    `start` is the LSN up to which the table is done, None while no snapshot lets the table begin; `existing`
    comes from `claimants`.
    """
    if start is None:
        return _former_name(table, relations, last)
    if table.problem is not None:
        return table.problem
    try:
        check_table(table, existing, settings)
    except TableError as error:
        return error
    return None


def _former_name(table: SilverTable, relations: Sequence[Relation], last: Cut | None) -> TableError | None:
    """Return an error if silver has the table under a former name."""
    names = {one.table for one in relations if one.relation_id == table.relation.relation_id} - {table.table}
    known = sorted(name for name in names if last is not None and name.silver_name in last.tables)
    if not known:
        return None
    return TableError(
        table.table,
        f"the table was renamed from {known[0]}; silver.{known[0].silver_name} stays unchanged",
        code="table-renamed",
        remedy=resnapshot_remedy(table.table, "resnapshot the table under its new name"),
    )


def check_relation(
    table: SilverTable,
    stored: Stored | None,
    relations: Sequence[Relation],
    start: Lsn,
    activity: Activity | None,
) -> None:
    """Check that the changes belong to the relation of silver's rows, or that a snapshot replaces the rows.

    Raises:
        TableError: the rows are another relation's: the table was recreated, or took another table's name.
    """
    relation_id = table.relation.relation_id
    if stored is None or (activity is not None and activity.snapshot is not None):
        return
    if stored.relation is None:
        # Tables older than the property: the rows are another relation's if this relation is younger.
        others = {one.relation_id for one in relations if one.table == table.table} - {relation_id}
        born = min(one.from_lsn for one in relations if one.relation_id == relation_id)
        if not others or start >= born:
            return
    elif stored.relation == str(relation_id):
        return
    raise TableError(
        table.table,
        "the table was recreated, or another table now has this name; silver has the rows of the old table",
        code="table-recreated",
        remedy=resnapshot_remedy(table.table, "resnapshot the table"),
    )


def check_kept(
    table: SilverTable, start: Lsn, activity: Activity | None, kept: Lsn, healed: Lsn | None
) -> None:
    """Check that bronze still has the changes after `start`, or that a snapshot replaces their effect.

    `kept` is the LSN from which on bronze has all changes (`bronze.store.retention`). A boundary respects
    silver's positions, so only a table that was rolled back or that the source left out is behind `kept`.
    `healed` is the LSN of the snapshot that healed a gap, if any (`Work.healed`).

    Raises:
        TableError: ``changes-removed``.
    """
    if start + 1 >= kept:
        return
    if resumes_at(table, None if activity is None else activity.snapshot, kept, healed) is not None:
        return
    rebuild = f"accept that silver.{table.name} lacks what changed in between: smelt rebuild FILE silver "
    raise TableError(
        table.table,
        f"silver.{table.name} contains the changes up to {start}, and bronze has removed the changes before "
        f"{kept} (bronze.retention)",
        code="changes-removed",
        remedy=f"restore a newer copy of silver.{table.name}; or {rebuild}{table.table}"
        if table.versioned
        else resnapshot_remedy(table.table, "resnapshot the table"),
    )


def resumes_at(table: SilverTable, snapshot: Lsn | None, kept: Lsn, healed: Lsn | None) -> Lsn | None:
    """Return the snapshot with which a table behind `kept` continues; None if changes are missing.

    `snapshot` is the table's newest snapshot; `healed` is as in `check_kept`.
    """
    # The snapshot replaces all current rows. A history and soft deletes need every change in between, except
    # before the snapshot that healed a gap: silver omits these changes in any case.
    replaces = healed if table.versioned else snapshot
    return replaces if replaces is not None and replaces >= kept else None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a cycle to carry tables to an LSN.

    Attributes:
        bronze: `bronze.changes` at the version that the cycle reads.
        relations: all shapes that are known at `end`.
        last: the newest cut of silver; None before the first cut.
        end: LSN to which the attempt carries the tables.
        only: tables of a second attempt, which the first attempt could not carry; None: all tables.
        unfinished, targets: tables with long work (`silver.run.long_work`), and silver's names of such
            tables.
        undecided: errors without a decision, by table; the attempt fills the mapping.
    """

    bronze: Table
    relations: tuple[Relation, ...]
    last: Cut | None
    end: Lsn
    only: Collection[TableName] | None = None
    unfinished: Collection[TableName] = ()
    targets: Collection[str] = ()
    undecided: dict[TableName, Exception] = field(default_factory=dict)


def _check_kept(attempt: Attempt, table: SilverTable, start: Lsn, activity: Activity | None) -> None:
    if kept := kept_from(attempt.bronze):
        check_kept(table, start, activity, kept, healed_at(attempt.bronze, table.table))


@dataclass(frozen=True, slots=True)
class WorklistEntry:
    """A table that silver has or begins, and the table's work; None: the table is done."""

    table: SilverTable
    work: Work | None


@dataclass(frozen=True, slots=True)
class _Reading:
    """A table's part of bronze as Spark SQL, and the table's changes after `start`, if any.

    `described`: the part holds no change, but the table lacks comments of the source, or a change feed.
    """

    changes: str
    activity: Activity | None
    start: Lsn
    described: bool = False


def _asked(
    session: SparkSession, changes: str, later: Later, starts: Mapping[int, Lsn], end: Lsn
) -> dict[int, Activity]:
    """Return the activity of each relation by one statement."""
    # File statistics already count the rows of a large copy, so the query need not.
    copied = sum(later.snapshots.values()) if len(starts) == 1 else 0
    copied = copied if copied >= LONG else 0
    rows = session.sql(activity_query(changes, starts, end, copied=not copied)).collect()
    return {row["relation_id"]: activity_of(row.asDict(), copied) for row in rows}


class Worklist:
    """Makes a cycle's list of one lake's tables from an `Attempt`."""

    def __init__(
        self,
        lake: Lake,
        settings: SilverSettings,
        control: ControlTables,
        *,
        log: SilverLog,
        source: Source,
        sessions: Sessions,
        failed_tables: FailedTables,
        descriptions: Descriptions | None = None,
        position: Position | None = None,
    ) -> None:
        self._lake = lake
        self._descriptions = Descriptions(lake, log) if descriptions is None else descriptions
        self._position = Position(control, log, corrects=False) if position is None else position
        self._settings = settings
        self._log = log
        self._source = source
        self._sessions = sessions
        self._failed_tables = failed_tables

    def entries(self, attempt: Attempt) -> list[WorklistEntry]:
        """Return an entry for each table that silver has or begins, and for each history.

        Raises:
            TransientError: a temporary failure.
        """
        begun = self._started(attempt)
        if not begun:
            return []
        windows = self._windows(attempt, {table.relation.relation_id: start for table, start in begun})
        found = []
        for table, start in begun:
            with self._failed_tables.isolated(table.table, attempt.undecided):
                stored = self._log.read(table.name)
                changes, activity = windows[table.relation.relation_id]
                reading = self._reading(table, stored, changes, activity, start)
                activity = reading.activity
                check_relation(table, stored, attempt.relations, start, activity)
                if (stored is None or stored.mark is None) and not (activity and activity.snapshot):
                    continue  # the snapshot belongs to another relation with this name
                _check_kept(attempt, table, start, activity)
                found += [self._entry(attempt, table, reading), *self._histories(attempt, table, reading)]
        return found

    def _started(self, attempt: Attempt) -> list[tuple[SilverTable, Lsn]]:
        """Return the tables to carry, each with the LSN up to which the table is done."""
        bronze, last, end = attempt.bronze, attempt.last, attempt.end
        tables: list[tuple[SilverTable, Lsn]] = []
        catalog = silver_catalog(attempt.relations, self._settings)
        known = claimants(catalog.values(), bronze, self._settings)
        same_name = same_names(self._lake, catalog.values(), bronze, self._settings)
        for table in catalog.values():
            # Long work of an earlier cycle still writes the table.
            if table.table in attempt.unfinished or table.name in attempt.targets:
                continue
            if attempt.only is not None and table.table not in attempt.only:
                continue
            if is_left_out(bronze, table.table):
                self._failed_tables.forget(table.table)
                self._log.forget(names := (table.name, history_of(table).name))
                self._position.forget(names)
                continue  # dropped or renamed: no later cut can state the table
            # An error has stopped the table (`silver.run.failed_tables`).
            if self._failed_tables.skips(table.table):
                continue
            with self._failed_tables.isolated(table.table, attempt.undecided):
                start = self._start(attempt, table)
                if start is not None and not is_whole(bronze, table.table, end):
                    continue  # bronze lacks changes; the snapshot after the gap will follow
                if why := same_name.get(table.table) or rejection_of(
                    table,
                    start,
                    existing=known,
                    relations=attempt.relations,
                    last=last,
                    settings=self._settings,
                ):
                    self._failed_tables.record(why)
                elif start is not None:
                    tables.append((table, start))
        return tables

    def _entry(self, attempt: Attempt, table: SilverTable, reading: _Reading) -> WorklistEntry:
        """Return the table with its work, if the window holds changes."""
        if reading.activity is None:
            return WorklistEntry(table, None)
        relation_id = table.relation.relation_id
        stored = self._log.read(table.name) if table.versioned else None
        return WorklistEntry(
            table,
            Work(
                table,
                tuple(one for one in attempt.relations if one.relation_id == relation_id),
                reading.changes,
                reading.activity,
                reading.start,
                attempt.end,
                self._settings,
                fresh=stored is None or stored.mark is None,
                again=self._mark_ahead(table, reading.start),
                healed=healed_at(attempt.bronze, table.table),
                described=reading.described,
            ),
        )

    def _mark_ahead(self, table: SilverTable, start: Lsn) -> Lsn | None:
        """Return the table's mark, where the last window is folded again."""
        stored = self._log.read(table.name)
        return stored.mark if stored is not None and stored.mark is not None and stored.mark > start else None

    def _histories(self, attempt: Attempt, table: SilverTable, reading: _Reading) -> list[WorklistEntry]:
        """Return the entry of a table's history, if the table has one."""
        found = []
        for history in histories([table], self._settings):
            start = self._start(attempt, history)
            if start is None:
                continue
            try:
                _check_kept(attempt, history, start, None)
            except TableError as error:
                # Bronze lacks changes of the history alone, so the table goes on.
                self._failed_tables.record_history(error)
                continue
            changes, activity = reading.changes, reading.activity
            # Mostly both are at the same LSN, and one read of bronze serves both.
            if start != reading.start:
                relation_id = history.relation.relation_id
                changes, activities = self._activities(attempt, {relation_id: start}, keep=False)
                activity = activities.get(relation_id)
            activity = activity if activity and activity.effective else None
            stored = self._log.read(history.name)
            found.append(
                self._entry(attempt, history, self._reading(history, stored, changes, activity, start))
            )
        return found

    def _reading(
        self, table: SilverTable, stored: Stored | None, changes: str, activity: Activity | None, start: Lsn
    ) -> _Reading:
        """Return what a table needs with the given changes, or without changes."""
        activity = activity or self._shape_alone(table, stored)
        begun = stored is not None and stored.mark is not None
        if activity is None and begun and self._descriptions.due(table, stored):
            return _Reading(changes, Activity.none(), start, described=True)
        return _Reading(changes, activity, start)

    def _start(self, attempt: Attempt, table: SilverTable) -> Lsn | None:
        """Return the LSN up to which the table is done; None without a snapshot by the end."""
        stored, snapshot = self._log.read(table.name), snapshot_of(attempt.bronze, table.table)
        if stored is not None and stored.mark is not None:
            within = snapshot if snapshot is not None and snapshot <= attempt.end else None
            held = self._position.held(table, stored, attempt.last, within, attempt.relations)
            if not held.is_in_cut and (begun := self._log.lacks_rows(table.name)) is not None:
                return begun  # the whole MERGE after the MERGE of known rows is missing
            return held.lsn
        self._position.begin_anew(table.name, stored, attempt.last)
        base = base_of(attempt.bronze, table.table, attempt.end)
        return None if base is None else Lsn(base - 1)

    def _windows(self, attempt: Attempt, starts: Mapping[int, Lsn]) -> dict[int, tuple[str, Activity | None]]:
        """Return by relation a part of bronze as Spark SQL, and the relation's changes, if any."""
        last, groups = attempt.last, [starts]
        later = files_after(attempt.bronze, min(starts.values()), attempt.end, starts)
        # Mostly all tables continue from the newest cut, and few changes followed: one read. Otherwise tables
        # that lag behind the newest cut get a separate read, and so does each large copy.
        if not later.is_small:
            copies = {one: start for one, start in starts.items() if later.snapshots.get(one, 0) >= LONG}
            done = ZERO if last is None else last.commit_lsn
            lagging = {one: start for one, start in starts.items() if start < done and one not in copies}
            others = {one: start for one, start in starts.items() if one not in {*copies, *lagging}}
            alone = [{one: start} for one, start in copies.items()]
            groups = [group for group in (others, lagging, *alone) if group]
        found: dict[int, tuple[str, Activity | None]] = {}
        for number, group in enumerate(groups):
            of_all = later if len(groups) == 1 else None
            changes, activities = self._activities(attempt, group, keep=number == 0, later=of_all)
            found |= {relation: (changes, activities.get(relation)) for relation in group}
        return found

    def _activities(
        self, attempt: Attempt, starts: Mapping[int, Lsn], *, keep: bool, later: Later | None = None
    ) -> tuple[str, dict[int, Activity]]:
        """Return a part of bronze as Spark SQL, and the changes of each relation that has changes."""
        bronze, end = attempt.bronze, attempt.end
        changes, low = whole(self._lake, bronze), min(starts.values())
        later = files_after(bronze, low, end, starts) if later is None else later
        if not later.rows:
            return changes, {}
        small = later.rows <= SMALL
        # In a store each file would cost one more request.
        counted = None if self._lake.is_remote or not small else rows_here(bronze, later, low)
        found = {} if counted is None else activities_in(counted, starts, end)
        if counted is not None and not any(activity.effective for activity in found.values()):
            return changes, {}
        session = self._sessions.own()
        tune(session, small=small)
        if keep and later.is_small:
            changes = self._source.keep(
                session, bronze, later, relations=starts, low=low, end=end, small=small
            )
            self._sessions.show_views()
        if counted is None:
            found = _asked(session, changes, later, starts, end)
        return changes, {relation: activity for relation, activity in found.items() if activity.effective}

    def _shape_alone(self, table: SilverTable, stored: Stored | None) -> Activity | None:
        """Return an activity without changes if only the table's shape changed."""
        if (
            stored is None
            or stored.mark is None
            or stored.relation not in {None, str(table.relation.relation_id)}
        ):
            return None
        due = (
            # The source or a setting changed the shape, or rows lack the value of a new column.
            alter.is_due(table, stored.fields, self._settings)
            or padding.is_padded(table, stored.fields, stored.properties)
            or deleted_keys.is_rekeyed(table, stored.properties)
        )
        return Activity.none() if due else None
