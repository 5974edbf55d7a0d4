"""A silver table rebuilt from bronze alone, as a new version of the same Delta table.

The table's changes since its newest snapshot are folded, by the very steps of a cycle, into a scratch table
in a folder beside the lake's layers, or in a schema of its own (`bronze.lake.scratch`). Then one INSERT
OVERWRITE makes its rows the table's. So:

* nothing of what the table holds is read: whatever was wrong with it is gone;
* readers of older versions, and of cuts, are not affected; the change is one commit;
* killed before that commit, the table is as it was, and the next start removes the scratch and begins again.
  Killed after it, the table has the right rows, and the next cut names the new version.

The commit carries the mark of the LSN that the rows are of, unless the table has it already: Delta would
take that for a window done twice and skip the write.

**History and soft deletes.** What ended before the snapshot is not in the changes since. So those rows alone
are taken from the table: versions that began before the snapshot (as if still valid, if they ended after it),
and rows deleted up to the snapshot. Of a table that somebody else wrote to, they are taken from the version
before that (`_before_others`). Everything else is derived. That is not exact if the table's shape changed
since the snapshot, or if it has columns from before it (`silver.plan.derivable`). Then nothing is done, and
the error says so.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import DefiniteError, TableError, TransientError, resnapshot_remedy
from deltasmelt.bronze.lake.client import DeltaError
from deltasmelt.bronze.lake.delta import checkpoint_interval, location, make_room, open_existing
from deltasmelt.bronze.lake.scratch import remove_workspaces, workspace
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.gaps import is_left_out, is_whole
from deltasmelt.bronze.store.marks import snapshot_of
from deltasmelt.silver.errors import cause
from deltasmelt.silver.fold.upsert import Insert
from deltasmelt.silver.plan.activity import Work, activity_of, activity_query
from deltasmelt.silver.plan.derivable import obstacle
from deltasmelt.silver.plan.history_steps import plan_versions
from deltasmelt.silver.plan.steps import plan
from deltasmelt.silver.run.bronze_window import whole
from deltasmelt.silver.run.marks import Mark
from deltasmelt.silver.run.step_runner import StepRunner
from deltasmelt.silver.run.stored import SILVER_APP
from deltasmelt.silver.run.table_log import SilverLog
from deltasmelt.silver.run.writer import Writer
from deltasmelt.silver.schema import alter, ddl
from deltasmelt.silver.schema.catalog import COMMIT_LSN, DELETED, VALID_FROM_LSN, VALID_TO, VALID_TO_LSN
from deltasmelt.silver.schema.clustering import clustered_again
from deltasmelt.silver.schema.ddl import adopted
from deltasmelt.silver.spark.access import beside
from deltasmelt.silver.spark.tuning import tune
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.silver.run.stored import Stored
    from deltasmelt.silver.schema.catalog import SilverTable
    from deltasmelt.silver.settings import SilverSettings

_LOGGER: Final = logging.getLogger("deltasmelt.silver")
SCRATCH: Final = ".rebuild"
"""Folder of the lake, beside its layers, in which tables are derived."""
_PURPOSE: Final = "rebuild"
"""What such tables are for, in a catalog."""


def rebuild(
    spark: SparkSession,
    lake: Lake,
    settings: SilverSettings,
    table: SilverTable,
    *,
    relations: Sequence[Relation],
    end: Lsn,
    own: int = -1,
) -> int:
    """Derive a table as of an LSN; returns its new Delta version.

    Args:
        spark: a session; a new one beside it is used.
        lake: nobody else may rebuild in it meanwhile.
        settings: as of the cycles.
        table: its newest shape; or its history.
        relations: all known shapes.
        end: the LSN; the table must not hold more, and bronze must hold it.
        own: a version of the table that no one else has written to, as a cut names it; -1 if none is known.

    Raises:
        TableError: bronze does not have all of the table, or what it lacks cannot be kept.
        DefiniteError: ``already-running``: something else carried the table beyond the LSN meanwhile.
    """
    bronze = open_existing(location(lake, "bronze", CHANGES))
    snapshot = snapshot_of(bronze, table.table)
    if is_left_out(bronze, table.table):
        raise TableError(
            table.table,
            "the source no longer has a table of this name, or the pipeline does not select it",
            code="rebuild-incomplete",
            remedy="none is needed, as no cut names it; to replicate it, correct source.tables",
        )
    if snapshot is None or snapshot > end or not is_whole(bronze, table.table, end):
        raise _incomplete(table)
    changes = whole(lake, bronze)
    relation_id, start = table.relation.relation_id, Lsn(snapshot - 1)
    with beside(spark) as session:
        tune(session, small=False)
        rows = session.sql(activity_query(changes, {relation_id: start}, end)).collect()
        activity = activity_of(rows[0].asDict()) if rows else None
        if activity is None or activity.snapshot != snapshot:
            raise _incomplete(table)  # the snapshot is of a former table of this name
        versions = tuple(
            shape for shape in relations if shape.relation_id == relation_id and shape.from_lsn <= end
        )
        remove_workspaces(lake, SCRATCH, _PURPOSE)
        with workspace(lake, SCRATCH, _PURPOSE) as scratch:
            keeps_rows = table.versioned and _keep(
                session, lake, scratch, table, versions=versions, snapshot=snapshot, own=own
            )
            work = Work(table, versions, changes, activity, start, end, settings, fresh=not keeps_rows)
            steps = plan_versions(work) if table.versioned else plan(work)
            runner = StepRunner(scratch, settings, SilverLog(scratch))
            for step in steps:
                runner.run(session, step, changes=activity.changes)
            tune(session, small=False)
            version = _replace(session, lake, scratch, settings, table, end=end)
        remove_workspaces(lake, SCRATCH, _PURPOSE)
        return version


def _incomplete(table: SilverTable) -> TableError:
    return TableError(
        table.table,
        "bronze lacks some of its rows or changes",
        code="rebuild-incomplete",
        remedy=resnapshot_remedy(table.table, "resnapshot it"),
    )


def _before_others(
    log: SilverLog, table: SilverTable, newest: Stored, own: int, snapshot: Lsn
) -> Stored | None:
    """Return the version before the first one by others; None where there is none, or its rows are too few.

    That version has the rows that ended up to its mark. What came since the snapshot is derived. So a version
    whose mark is before the snapshot lacks the rows that ended between the two. The rows are then copied from
    the newest version, as others left them, and the log says so.
    """
    commit = log.foreign(table.name, newest.version, own, table=table)
    if commit is None:
        return None
    try:
        stored_before = log.read_at(table.name, commit.version - 1)
    except DeltaError as error:
        _warn_kept(table, f"the version before {commit} is gone: {cause(error)}")
        return None
    if stored_before is None or stored_before.mark is None or stored_before.mark < snapshot:
        _warn_kept(table, f"a snapshot is newer than the version before {commit}")
        return None
    return stored_before


def _warn_kept(table: SilverTable, why: str) -> None:
    _LOGGER.warning(
        "what others did to silver.%s cannot be taken back: %s. Rows that ended before the newest snapshot "
        "are kept as they are",
        table.name, why,
    )  # fmt: skip


def _keep(
    session: SparkSession,
    lake: Lake,
    scratch: Lake,
    table: SilverTable,
    *,
    versions: Sequence[Relation],
    snapshot: Lsn,
    own: int,
) -> bool:
    """Put what ended before the snapshot into the scratch table; whether there was any.

    Raises:
        TableError: that cannot be done exactly.
    """
    log = SilverLog(lake, writes=True)
    newest = log.read(table.name)
    if newest is None:
        return False
    stored_before = None
    if not lake.place.needs_session:
        stored_before = _before_others(log, table, newest, own, snapshot)
    if stored_before is not None:
        try:
            return _copied(session, lake, scratch, table, stored_before, versions=versions, snapshot=snapshot)
        except TableError:
            raise
        except Exception as error:  # noqa: BLE001 - files of that version may be removed
            _warn_kept(table, f"version {stored_before.version} cannot be read: {cause(error)}")
    return _copied(session, lake, scratch, table, newest, versions=versions, snapshot=snapshot)


def _copied(
    session: SparkSession,
    lake: Lake,
    scratch: Lake,
    table: SilverTable,
    stored: Stored,
    *,
    versions: Sequence[Relation],
    snapshot: Lsn,
) -> bool:
    """As `_keep`, from one version of the table."""
    source = f"{lake.sql('silver', table.name)} VERSION AS OF {stored.version}"
    condition = _ended(table, snapshot)
    any_ended = bool(session.sql(f"SELECT 1 FROM {source} WHERE {condition} LIMIT 1").collect())
    if reason := obstacle(table, stored.fields, versions, snapshot, ended=any_ended):
        raise TableError(
            table.table,
            f"silver.{table.name} {reason}",
            code="rebuild-incomplete",
            remedy=resnapshot_remedy(table.table, "if its current rows are wrong"),
        )
    if not any_ended:
        return False
    target, uri = scratch.sql("silver", table.name), scratch.uri("silver", table.name)
    if SilverLog(scratch).read(table.name) is None:
        make_room(uri)
        Writer(scratch, "silver").run(session, table.name, *ddl.create(target, table))
    names = [*(column.name for column in table.columns), *table.own_columns]
    values = [_as_of(name, snapshot) if table.history else quote(name) for name in names]
    rows = Insert(dict(zip(names, values, strict=True)), f"{source}\nWHERE {condition}")
    Writer(scratch, "silver").run(session, table.name, rows.into(target, replaces=False))
    return True


def _ended(table: SilverTable, snapshot: Lsn) -> str:
    """The condition of rows that the changes since the snapshot do not give."""
    if table.history:
        return f"{VALID_FROM_LSN} < {int(snapshot)}"
    return f"{DELETED} AND {COMMIT_LSN} <= {int(snapshot)}"


def _as_of(name: str, snapshot: Lsn) -> str:
    """A column of a version as it was right before the snapshot: what ended later still held."""
    if name not in (VALID_TO_LSN, VALID_TO):
        return quote(name)
    return f"CASE WHEN {VALID_TO_LSN} < {int(snapshot)} THEN {name} END"


def _require_no_more(stored: Stored | None, uri: str, end: Lsn) -> None:
    """Refuse to replace rows of a later LSN: their changes would be lost, and the mark would hide it."""
    if stored is not None and stored.mark is not None and stored.mark > end:
        raise DefiniteError(
            f"the table holds changes up to {stored.mark}, and {end} is what it was derived as of",
            code="already-running",
            where=uri,
            remedy="stop the other process that carries silver on, then run this again",
        )


def _replace(
    session: SparkSession,
    lake: Lake,
    scratch: Lake,
    settings: SilverSettings,
    table: SilverTable,
    *,
    end: Lsn,
) -> int:
    """The scratch table's rows become the table's, in one commit."""
    target, uri, log = lake.sql("silver", table.name), lake.uri("silver", table.name), SilverLog(lake)
    scratch_table, writer = SilverLog(scratch).written(table.name), Writer(lake, "silver", log)
    stored = log.read(table.name)
    _require_no_more(stored, uri, end)
    if stored is None:
        make_room(uri)
        statements = ddl.create(target, table, checkpoints=checkpoint_interval(uri))
    else:  # mostly none, because a cycle has just run
        statements, fields = adopted(target, table, stored.fields, stored.relation)
        statements += alter.steps(target, table, fields, settings, emptied=False)
    writer.run(session, table.name, *statements)
    stored = log.written(table.name)
    _require_no_more(stored, uri, end)
    by_attnum = {field.attnum: field.name for field in scratch_table.fields if field.attnum is not None}
    by_name = {field.name for field in scratch_table.fields if field.attnum is None}
    values = {}
    for field in stored.fields:
        source = by_attnum.get(field.attnum) if field.attnum is not None else field.name
        exists = source is not None and (field.attnum is not None or source in by_name)
        values[field.name] = quote(str(source)) if exists else f"CAST(NULL AS {field.ddl})"
    rows, mark = Insert(values, scratch.sql("silver", table.name)), Mark(SILVER_APP, end, stored.mark)
    writer.insert(session, table.name, rows, mark, replaces=True)
    log.committed(table.name, stored, end, "the table is rebuilt")
    for lost in clustered_again(target, table):
        try:
            writer.run(session, table.name, lost)
        except TransientError:
            raise
        except Exception:  # its rows are right
            _LOGGER.warning("silver.%s is no longer clustered", table.name, exc_info=True)
    return log.written(table.name).version
