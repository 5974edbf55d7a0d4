"""A silver table derived again from bronze alone, as a new version of the same Delta table.

The table's changes since its newest snapshot are folded, by the very steps of a cycle, into a table of their
own in a folder beside the lake's layers; then one INSERT OVERWRITE makes its rows the table's. So:

* nothing of what the table holds is read: whatever was wrong with it is gone;
* readers of older versions, and of cuts, read on; the change is one commit;
* killed before that commit, the table is as it was, and the next start removes the folder and begins again.
  Killed after it, the table has the same rows as before, which every cut's LSN allows; the new cut is missing
  and the next cycle's names the new version.

The commit carries the mark of the LSN that the rows stand at, unless the table has it already: Delta would
take that for a window done twice and skip the write.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

from bronze.delta import location, open_existing
from bronze.errors import TableError
from bronze.gaps import is_whole
from bronze.lake import Lake
from bronze.lsn import Lsn
from bronze.position import snapshot_of
from bronze.tables import CHANGES
from silver import ddl
from silver.catalog import OWN_COLUMNS
from silver.sessions import own_session, tune
from silver.sql import quote
from silver.steps import StepRunner
from silver.tables import SILVER_APP, SilverLog
from silver.window import activity_of, activity_query, plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from bronze.shapes import Relation
    from silver.catalog import SilverTable
    from silver.settings import SilverSettings

SCRATCH: Final = ".rebuild"
"""Folder of the lake, beside its layers, in which tables are derived."""

_APP_ID: Final = "spark.databricks.delta.write.txnAppId"
_APP_VERSION: Final = "spark.databricks.delta.write.txnVersion"


def rebuild(
    spark: SparkSession,
    lake: Lake,
    settings: SilverSettings,
    table: SilverTable,
    *,
    relations: Sequence[Relation],
    end: Lsn,
) -> int:
    """Derive a table as of an LSN; returns its new Delta version.

    Args:
        spark: a session; a new one beside it is used.
        lake: with a path.
        settings: as of the cycles.
        table: its newest shape.
        relations: all known shapes.
        end: the LSN; the table must not hold more, and bronze must hold it.

    Raises:
        TableError: bronze does not have all of the table.
    """
    bronze = open_existing(location(lake, "bronze", CHANGES))
    snapshot = snapshot_of(bronze, table.table)
    if snapshot is None or snapshot > end or not is_whole(bronze, table.table, end):
        raise TableError(
            table.table,
            "bronze does not have all rows and changes of it",
            code="rebuild-incomplete",
            remedy=f"take it again: smelt snapshot FILE {table.table}",
        )
    scratch = Lake(path=f"{lake.path}/{SCRATCH}")
    shutil.rmtree(str(scratch.path), ignore_errors=True)
    session, log = own_session(spark), SilverLog(spark, scratch)
    changes = f"{lake.sql('bronze', CHANGES)} VERSION AS OF {bronze.version()}"
    relation_id, start = table.relation.relation_id, Lsn(snapshot - 1)
    tune(session, small=False)
    rows = session.sql(activity_query(changes, {relation_id: start}, end)).collect()
    activity = activity_of(rows[0].asDict())
    versions = [one for one in relations if one.relation_id == relation_id and one.from_lsn <= end]
    runner = StepRunner(scratch, settings, log)
    for step in plan(changes, versions, activity, start, end, settings=settings):
        runner.run(session, step, changes=activity.changes)
    tune(session, small=False)
    version = _replace(session, lake, scratch, settings, table, end=end)
    shutil.rmtree(str(scratch.path), ignore_errors=True)
    return version


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
    target, log = lake.sql("silver", table.name), SilverLog(session, lake)
    made = SilverLog(session, scratch).read(table.name)
    if made is None:
        raise RuntimeError(f"silver.{table.name} was derived but is not there")
    stored = log.read(table.name)
    statements = (
        [ddl.create(target, table)]
        if stored is None
        else ddl.steps(target, table, stored.fields, settings, emptied=True)
    )
    for statement in statements:
        session.sql(statement)
    stored = log.read(table.name)
    if stored is None:
        raise RuntimeError(f"silver.{table.name} was made but is not there")
    known = {field.attnum: field.name for field in made.fields if field.attnum is not None}
    pairs = [(name, quote(name)) for name in OWN_COLUMNS]
    for column in stored.fields:
        if column.name in OWN_COLUMNS:
            continue
        source = known.get(column.attnum) if column.attnum is not None else column.name
        pairs.append((column.name, f"CAST(NULL AS {column.ddl})" if source is None else quote(source)))
    names, values = ", ".join(quote(name) for name, _ in pairs), ", ".join(value for _, value in pairs)
    if stored.mark is None or stored.mark < end:
        session.conf.set(_APP_ID, SILVER_APP)
        session.conf.set(_APP_VERSION, str(int(end)))
    try:
        source = scratch.sql("silver", table.name)
        session.sql(f"INSERT OVERWRITE {target} ({names})\nSELECT {values}\nFROM {source}").collect()
    finally:
        session.conf.unset(_APP_ID)
        session.conf.unset(_APP_VERSION)
    done = log.read(table.name)
    if done is None:
        raise RuntimeError(f"silver.{table.name} was written but is not there")
    return done.version
