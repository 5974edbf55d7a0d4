"""A silver table is rebuilt from bronze alone, as a new version of the Delta table.

The steps of a cycle fold the table's changes since the newest snapshot into a scratch table. The scratch
table is in a folder next to the lake's layers, or in a separate schema (`bronze.lake.catalog.scratch`). One
INSERT OVERWRITE then copies the scratch table's rows into the table. So:

* the rebuild reads no current row of the table, so every wrong current value is gone;
* readers of older versions, and of cuts, see no change; the rebuild is one commit;
* after a kill before the commit, the table is unchanged, and the next start removes the scratch table and
  begins again. After a kill that follows the commit, the table has the right rows, and the next cut names the
  new version.

**History and soft deletes.** The changes since the snapshot lack rows that ended before the snapshot. Only
these rows are copied from the table: versions that began before the snapshot, and rows deleted up to the
snapshot. After a foreign commit, the rows come from the version before the foreign commit (`_before_others`).
The rebuild derives all further rows. The result is not exact if the table's shape changed since the snapshot,
or if the table has columns older than the snapshot (`silver.plan.derivable`). The rebuild then changes
nothing, and raises an error.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import DefiniteError, TableError, TransientError, resnapshot_remedy
from deltasmelt.bronze.lake.client import DeltaError
from deltasmelt.bronze.lake.delta import open_existing, remove_workspaces, workspace
from deltasmelt.bronze.lake.spark_errors import cause_of
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.gaps import is_left_out, is_whole
from deltasmelt.bronze.store.marks import base_of, kept_from
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
from deltasmelt.silver.schema import alter
from deltasmelt.silver.schema.catalog import COMMIT_LSN, DELETED, VALID_FROM_LSN, VALID_TO, VALID_TO_LSN
from deltasmelt.silver.schema.clustering import clustered_again
from deltasmelt.silver.schema.ddl import adopted
from deltasmelt.silver.spark.access import child_session
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
SCRATCH: Final = ".rebuild"  # folder of the lake for derived tables, next to the lake's layers
PURPOSE: Final = "rebuild"  # purpose of the derived tables, stated in a catalog


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
    """Derive a table as of an LSN; return the table's new Delta version.

    The rebuild runs in a sibling session. No other process may rebuild in the lake meanwhile.

    Args:
        settings: the same settings as for the cycles.
        table: the newest shape of the table, or of its history.
        relations: all known table shapes of the source.
        end: the LSN; the table must not hold more, and bronze must hold the LSN.
        own: a version from a cut, without foreign commits up to the version; -1 if none is known.

    Raises:
        TableError: bronze lacks a part of the table, or the rebuild would lose rows that bronze lacks.
        DefiniteError: ``already-running``: another process carried the table beyond the LSN meanwhile.
    """
    bronze = open_existing(lake.uri("bronze", CHANGES))
    snapshot = base_of(bronze, table.table, end)
    if is_left_out(bronze, table.table):
        raise TableError(
            table.table,
            "the source no longer has a table of this name, or the pipeline does not select the table",
            code="rebuild-incomplete",
            remedy="nothing to do, because no cut contains the table; to replicate the table, correct "
            "source.tables",
        )
    if snapshot is None or snapshot < kept_from(bronze) or not is_whole(bronze, table.table, end):
        raise _incomplete(table)
    changes = whole(lake, bronze)
    relation_id, start = table.relation.relation_id, Lsn(snapshot - 1)
    with child_session(spark) as session:
        tune(session, small=False)
        rows = session.sql(activity_query(changes, {relation_id: start}, end)).collect()
        activity = activity_of(rows[0].asDict()) if rows else None
        if activity is None or activity.snapshot != snapshot:
            raise _incomplete(table)  # the snapshot belongs to a former table with this name
        versions = tuple(
            shape for shape in relations if shape.relation_id == relation_id and shape.from_lsn <= end
        )
        remove_workspaces(lake, SCRATCH, PURPOSE)
        with workspace(lake, SCRATCH, PURPOSE) as scratch:
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
        remove_workspaces(lake, SCRATCH, PURPOSE)
        return version


def _incomplete(table: SilverTable) -> TableError:
    return TableError(
        table.table,
        "bronze lacks some rows or changes of the table",
        code="rebuild-incomplete",
        remedy=resnapshot_remedy(table.table, "resnapshot the table"),
    )


def _before_others(
    log: SilverLog, table: SilverTable, newest: Stored, own: int, snapshot: Lsn
) -> Stored | None:
    """Return the version before the first foreign commit; None without one, or if the version lacks rows.

    The version has the rows that ended up to its mark. The rebuild derives all changes since the snapshot. So
    a version with a mark before the snapshot lacks the rows that ended in between. The rebuild then copies
    the rows of the newest version, as the foreign commit left the rows, and logs a warning.
    """
    commit = log.foreign(table.name, newest.version, own, table=table)
    if commit is None:
        return None
    try:
        stored_before = log.read_at(table.name, commit.version - 1)
    except DeltaError as error:  # an OSError may pass: another attempt then reads the version
        _warn_uncorrected(table, f"the version before {commit} no longer exists: {cause_of(error)}")
        return None
    if stored_before is None or stored_before.mark is None or stored_before.mark < snapshot:
        _warn_uncorrected(table, f"a snapshot is newer than the version before {commit}")
        return None
    return stored_before


def _warn_uncorrected(table: SilverTable, why: str) -> None:
    _LOGGER.warning(
        "changes of other programs to silver.%s cannot be undone: %s. Rows that ended before the newest "
        "snapshot stay as the other program left them",
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
    """Copy the rows that ended before the snapshot into the scratch table; return whether any row ended."""
    log = SilverLog(lake, writes=True)
    newest = log.read(table.name)
    if newest is None:
        return False
    stored_before = None
    if lake.place.shows_files:  # a catalog shows no older version's marks for certain
        stored_before = _before_others(log, table, newest, own, snapshot)
    if stored_before is not None:
        try:
            return _copied(session, lake, scratch, table, stored_before, versions=versions, snapshot=snapshot)
        except TableError:
            raise
        except Exception as error:  # noqa: BLE001 - the version's files may be removed
            _warn_uncorrected(table, f"version {stored_before.version} cannot be read: {cause_of(error)}")
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
    """Copy the ended rows like `_keep`, from one version of the table."""
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
    target, writer = scratch.sql("silver", table.name), Writer(scratch, "silver")
    if SilverLog(scratch).read(table.name) is None:
        writer.run(session, table.name, *writer.create(session, table))
    names = [*(column.name for column in table.columns), *table.own_columns]
    values = [_as_of(name, snapshot) if table.history else quote(name) for name in names]
    rows = Insert(dict(zip(names, values, strict=True)), f"{source}\nWHERE {condition}")
    # Replace: an earlier attempt may have committed its copy, although its answer was lost.
    writer.run(session, table.name, rows.into(target, replaces=True))
    return True


def _ended(table: SilverTable, snapshot: Lsn) -> str:
    """Return the SQL condition of rows that the changes since the snapshot lack."""
    if table.history:
        return f"{VALID_FROM_LSN} < {int(snapshot)}"
    return f"{DELETED} AND {COMMIT_LSN} <= {int(snapshot)}"


def _as_of(name: str, snapshot: Lsn) -> str:
    """Return a version's column as of the moment before the snapshot: a later end did not yet exist."""
    if name not in (VALID_TO_LSN, VALID_TO):
        return quote(name)
    return f"CASE WHEN {VALID_TO_LSN} < {int(snapshot)} THEN {name} END"


def _require_no_more(stored: Stored | None, uri: str, end: Lsn) -> None:
    """Refuse to replace rows of a later LSN: changes would be lost, and the mark would hide the loss."""
    if stored is not None and stored.mark is not None and stored.mark > end:
        raise DefiniteError(
            f"the table contains changes up to {stored.mark}, but the rebuild ends at {end}",
            code="already-running",
            where=uri,
            remedy="stop the other process that writes silver, then run this command again",
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
    """Replace the table's rows by the scratch table's rows, in one commit."""
    target, uri, log = lake.sql("silver", table.name), lake.uri("silver", table.name), SilverLog(lake)
    scratch_table, writer = SilverLog(scratch).written(table.name), Writer(lake, "silver", log)
    stored = log.read(table.name)
    _require_no_more(stored, uri, end)
    if stored is None:
        statements = writer.create(session, table)
    else:  # mostly no statement, because a cycle has just run
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
    # No mark if the table already has it: Delta would treat the write as a repeated window, and skip it.
    rows, mark = Insert(values, scratch.sql("silver", table.name)), Mark(SILVER_APP, end, stored.mark)
    writer.insert(session, table.name, rows, mark, replaces=True)
    log.committed(table.name, stored, end, "the table is rebuilt")
    for lost in clustered_again(target, table):
        try:
            writer.run(session, table.name, lost)
        except TransientError:
            raise
        except Exception:  # the rows are right without clustering
            _LOGGER.warning("silver.%s is no longer clustered", table.name, exc_info=True)
    return log.written(table.name).version
