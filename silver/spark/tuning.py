"""Spark's settings that make silver's statements fast: for small and large windows, and for a block.

`silver.spark.semantics` decides the meaning of values; no setting of this module changes a row. A server may
guard a setting, as serverless compute does. The first rejected change shows the guard, and the server's value
stays: Spark then plans statements by the server's value. Only a mark must not be lost (`silver.run.marks`).

Measured: generated code for a small window on a table of ten million rows 10.4 → 6.3 s (`generate_code`); the
first cycle in parallel with a copy of ten million rows 49 → 9.3 s (`leave_a_core`).
"""

from __future__ import annotations

import logging
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.catalog.commit_marks import USER_METADATA
from deltasmelt.bronze.lake.foreign_commits import SIGNATURE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lsn import Lsn

_LOGGER: Final = logging.getLogger("deltasmelt.silver")
DATABRICKS: Final = "DATABRICKS_RUNTIME_VERSION"
"""Variable of every process on Databricks, where the caller finds or gets a session."""
GUARDED: Final = "spark-setting-guarded"
"""Code of an error for all tables: the server forbids every write."""

# Error conditions of a server that guards a setting.
_GUARDED: Final = ("CANNOT_MODIFY_CONFIG", "CANNOT_MODIFY_STATIC_CONFIG", "CONFIG_NOT_AVAILABLE")
_SAID: Final = 300  # characters of a logged reason

SMALL_TARGET: Final = 50_000
"""Rows of a table up to which Spark interprets a small window's MERGE, and runs the MERGE as one task."""

SMALL: Final = 20_000
"""Number of changes up to which a window is small; see `tune`."""

_TUNED: Final = {
    "spark.databricks.delta.merge.materializeSource": ("none", "auto"),
    "spark.sql.codegen.wholeStage": ("false", "true"),
    "spark.sql.codegen.factoryMode": ("NO_CODEGEN", "FALLBACK"),
}
"""Settings for (a small window, a large window); see `tune`."""
# The settings of `_TUNED` that generate code.
_CODE: Final = ("spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode")

NOT_ADAPTIVE: Final = {"spark.sql.adaptive.enabled": "false"}
"""Setting for a statement over few rows: a new plan between stages costs more than a stage."""

FEW_TASKS: Final = {"spark.sql.shuffle.partitions": "2", **NOT_ADAPTIVE}
"""Settings for a small window; a large window has the tasks of the session's owner, or of the cluster."""

_original: WeakKeyDictionary[SparkSession, dict[str, str | None]] = WeakKeyDictionary()
"""Values of `FEW_TASKS` before the first window, by session of this project. One thread owns a session."""

ONE_TASK: Final = {"spark.sql.shuffle.partitions": "1", "spark.sql.files.minPartitionNum": "1"}
"""Settings for a statement that reads and writes few rows: each additional task writes one more file."""

LEAN_COMMITS: Final = {
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
    "spark.databricks.delta.checksumDeletedRecordCountsHistogramMetrics.enabled": "false",
    "spark.databricks.delta.fileSizeHistogramMetrics.enabled": "false",
}
"""Settings that remove unused parts from a version's checksum file.

For a small table these parts are a tenth of a commit's CPU. The number of files, bytes and deletion vectors
stays in the checksum file (`silver.spark.small_reads`).
"""

MARK_SETTINGS: Final = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")
"""Settings that give commits a mark: the application's id, and the version."""
SIGNED: Final = {USER_METADATA: SIGNATURE}
"""The signature of every commit by a session of this project (`bronze.lake.foreign_commits`)."""

FINE_PAGES: Final = {"parquet.page.row.count.limit": "500"}
"""Setting for files sorted by a key, with later lookups of a few rows: the number of rows in a page.

Parquet reads at least one page of a column. A default page has 20,000 rows; a thousandth of the rows, spread
over a file, then touches nearly all pages.
"""

REWRITTEN: Final = {"spark.databricks.delta.merge.deletionVectors.persistent": "false"}
"""Setting for a MERGE into a table of one small file: Delta rewrites the file without a deletion vector.

The MERGE, and all later MERGEs, need a third fewer jobs.
"""


TASK_BYTES: Final = 128 * 2**20  # of files that a task reads, by Spark's default

# Settings for `leave_a_core`.
_LESS_THAN_ALL: Final = {
    "spark.sql.files.maxPartitionBytes": "1t",
    "spark.sql.files.minPartitionNum": "{splits}",  # Spark packs files into this many tasks, or one more
    "spark.sql.shuffle.partitions": "{tasks}",
    "spark.sql.files.maxRecordsPerFile": "{rows}",
}


REFUSED: Final[set[str]] = set()
"""Settings that the server refused to change; no session tries a second time."""


def on_databricks() -> bool:
    """Check whether this process runs on Databricks."""
    return DATABRICKS in os.environ


def setting(spark: SparkSession, name: str, default: str) -> str:
    """Return a setting of a session; the default also where a server does not return the setting."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a job that folds nothing loads no Spark

    try:
        return spark.conf.get(name, default) or default
    except PySparkException:
        return default


def all_settings(spark: SparkSession) -> dict[str, str]:
    """Return a session's visible settings (`getAll` is a property in a JVM, a method in Connect)."""
    known: Any = spark.conf.getAll
    return dict(known() if callable(known) else known)


def cores_of(master: str, *, machine: int) -> int:
    """Return how many tasks a local master runs at once: ``local[2]``, ``local[*]``; 1 without a number."""
    found = re.match(r"local\[(\d+|\*)", master)
    if found is None:
        return 1
    return machine if found[1] == "*" else int(found[1])


def local_cores(session: SparkSession) -> int:
    """Return how many tasks a session in this process's JVM runs at once."""
    # Java counts the cores that a container may use; Python counts those of the machine.
    return cores_of(setting(session, "spark.master", ""), machine=session.sparkContext.defaultParallelism)


def runs_tasks_once(master: str) -> bool:
    """Check whether Spark repeats no task: ``local``, ``local[4]``; not ``local[4,2]``, and no cluster.

    With such a master the first failed task ends the job, and Spark starts no speculative copy of a task.
    """
    return re.fullmatch(r"local(\[[^,\]]*\])?", master) is not None


@contextmanager
def settings(
    spark: SparkSession, optional: Mapping[str, str], *, needed: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Set settings of a session for a block; the end of the block restores the former values.

    Args:
        optional: settings that only make statements fast; a guarded setting is left out.
        needed: settings that the block's statements must not run without.

    Raises:
        DefiniteError: the server guards a needed setting.
    """
    must = needed or {}
    before = {name: spark.conf.get(name, None) for name in [*optional, *must]}
    try:
        for name, value in optional.items():
            change(spark, name, value)
        for name, value in must.items():
            if not change(spark, name, value):
                raise _guarded(name)
        yield
    finally:
        restore_settings(spark, before)


def _guarded(name: str) -> DefiniteError:
    return DefiniteError(
        f"the server does not allow sessions to set {name}; commits need this setting to record the table's "
        "position",
        code=GUARDED,
        remedy="use a server that allows this setting, on Databricks a cluster; or keep the tables in a "
        "catalog (lake.catalog without lake.path), where commits do not need it",
    )


def change(spark: SparkSession, name: str, value: str | None) -> bool:
    """Set or unset a session's setting; return whether the server allows the change."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a cycle that folds nothing loads no Spark

    if name in REFUSED:
        return False
    try:
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)
    except PySparkException as error:
        if not (error.getCondition() or "").startswith(_GUARDED):
            raise
        _LOGGER.info("%s may not be set here: %s", name, " ".join(str(error).split())[:_SAID])
        REFUSED.add(name)
        return False
    return True


def restore_settings(spark: SparkSession, before: Mapping[str, str | None]) -> None:
    """Restore settings of a session; None unsets a setting."""
    for name, former in before.items():
        change(spark, name, former)


def may_set(spark: SparkSession, needed: Mapping[str, str]) -> bool:
    """Check whether the server allows a session all these settings; the settings do not change."""
    try:
        with settings(spark, {}, needed=needed):
            return True
    except DefiniteError:
        return False


def inherit(session: SparkSession, source: SparkSession) -> None:
    """Copy a source's original values to its clone, whatever the source is tuned to now."""
    if source in _original:
        _original[session] = _original[source]


def tune(session: SparkSession, *, small: bool) -> None:
    """Set a session's settings for a statement over a small or a large window.

    Each window has new literals, so Spark would compile new code for some thousand rows; interpretation is
    faster there. Over some hundred thousand rows of a target, interpretation costs twice as much as generated
    code. A MERGE reads its source twice; only a large source is worth caching.
    """
    for name, (for_small, for_large) in _TUNED.items():
        change(session, name, for_small if small else for_large)
    if session not in _original:
        _original[session] = {name: session.conf.get(name, None) for name in FEW_TASKS}
    # A small window is one task or two. A large window has the session's original number of tasks, on a
    # cluster all cores. With adaptive execution on, Spark plans it again from the size of its stages.
    restore_settings(session, FEW_TASKS if small else _original[session])


def generate_code(session: SparkSession) -> None:
    """Generate code for the next statement: the window is small, but the target has many rows to read."""
    for name in _CODE:
        change(session, name, _TUNED[name][1])


def mark_settings(app: str, lsn: Lsn, position: Lsn | None = None) -> dict[str, str]:
    """Return settings that add an application transaction to a commit: the table's LSN after the write."""
    # Delta skips a write whose mark is not above the table's mark. So a write at an LSN that the table
    # already holds has no mark.
    if position is not None and lsn <= position:
        return {}
    return dict(zip(MARK_SETTINGS, (app, str(int(lsn))), strict=True))


def leave_a_core(session: SparkSession, rows: int) -> None:
    """Limit a session's tasks to all cores but one, so that sibling sessions get a core.

    Spark never interrupts a task to free a core. In any pool a job waits until a task has ended, and each job
    of a small statement waits again. The tasks of a large copy take tens of seconds. On a cluster the task
    number does not change: Spark runs a lost task again.

    `session` runs no other work, and its tasks run on this machine. `rows` is the largest number of rows in a
    written file: each task writes many times `TASK_BYTES`, and a MERGE reads whole files.
    """
    cores = local_cores(session)
    if cores > 1:
        for name, value in _LESS_THAN_ALL.items():
            change(session, name, value.format(tasks=cores - 1, splits=max(1, cores - 2), rows=rows))
