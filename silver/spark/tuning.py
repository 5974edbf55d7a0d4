"""Spark's settings by which silver's statements are fast: for small and for large windows, and for a while.

What decides what values mean is in `silver.spark.semantics`; nothing here changes a row. A server may guard
such a setting, as serverless compute does. It is found out at the first try, and the server's own value
counts: statements are then planned by that. Only a mark must not be lost (`silver.run.marks`).
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
"""Variable of every process on Databricks, where a session is there already or is given."""
GUARDED: Final = "spark-setting-guarded"
"""Code of an error that no table has alone: the server lets none of them be written."""

_GUARDED: Final = ("CANNOT_MODIFY_CONFIG", "CANNOT_MODIFY_STATIC_CONFIG", "CONFIG_NOT_AVAILABLE")
"""What a server says that guards a setting."""
_SAID: Final = 300
"""Letters of a reason that are logged."""

SMALL_TARGET: Final = 50_000
"""Rows of a table up to which a small window's MERGE into it is interpreted too, and one task."""

SMALL: Final = 20_000
"""Changes up to which a window is small; see `tune`."""

_TUNED: Final = {
    "spark.databricks.delta.merge.materializeSource": ("none", "auto"),
    "spark.sql.codegen.wholeStage": ("false", "true"),
    "spark.sql.codegen.factoryMode": ("NO_CODEGEN", "FALLBACK"),
}
"""Settings for (a small window, a large one); see `tune`."""
_CODE: Final = ("spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode")
"""Those of `_TUNED` that generate code."""

NOT_ADAPTIVE: Final = {"spark.sql.adaptive.enabled": "false"}
"""For a statement over few rows: to plan it again between its stages costs more than a stage."""

FEW_TASKS: Final = {"spark.sql.shuffle.partitions": "2", **NOT_ADAPTIVE}
"""For a small window. A large one has the tasks that the session's owner, or the cluster, gives it."""

_given: WeakKeyDictionary[SparkSession, dict[str, str | None]] = WeakKeyDictionary()
"""By session of ours: what it had of `FEW_TASKS` before its first window. One thread has a session."""

ONE_TASK: Final = {"spark.sql.shuffle.partitions": "1", "spark.sql.files.minPartitionNum": "1"}
"""For a statement that reads and writes few rows: one more task is one more file."""

LEAN_COMMITS: Final = {
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
    "spark.databricks.delta.checksumDeletedRecordCountsHistogramMetrics.enabled": "false",
    "spark.databricks.delta.fileSizeHistogramMetrics.enabled": "false",
}
"""What Delta would add to a version's checksum file, and nobody here reads: of a small table it is a tenth of
a commit's CPU. Number of files, bytes and deletion vectors stay in it (`silver.spark.small_reads`).
"""

MARK_SETTINGS: Final = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")
"""Settings that give commits a mark: the application's id, and the version."""
SIGNED: Final = {USER_METADATA: SIGNATURE}
"""Every commit of a session of ours says whose it is (`bronze.lake.foreign_commits`)."""

FINE_PAGES: Final = {"parquet.page.row.count.limit": "500"}
"""For files in the order of a key by which a few rows are looked up later: pages of so many rows.

A page is the least that Parquet reads of a column. By default it has 20,000 rows; a thousandth of the
rows, anywhere in a file, is then in nearly all pages.
"""

REWRITTEN: Final = {"spark.databricks.delta.merge.deletionVectors.persistent": "false"}
"""For a MERGE into a table of one small file: it is written again, and there is no deletion vector to write.

That is a third job less, for this MERGE and for all that follow it: the table stays one file without a
vector.
"""


_LESS_THAN_ALL: Final = {
    "spark.sql.files.maxPartitionBytes": "1t",
    "spark.sql.files.minPartitionNum": "{splits}",  # Spark packs files into this many tasks, or one more
    "spark.sql.shuffle.partitions": "{tasks}",
    "spark.sql.files.maxRecordsPerFile": "2000000",  # as many as a task of 128 MiB of bronze's files reads
}
"""See `leave_a_core`."""


REFUSED: Final[set[str]] = set()
"""Settings that the server did not let us change; it does so no second time."""


def on_databricks() -> bool:
    """Check whether this process runs on Databricks."""
    return DATABRICKS in os.environ


def setting(spark: SparkSession, name: str, default: str) -> str:
    """A setting of a session; the default also where a server does not tell it."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a job that folds nothing loads no Spark

    try:
        return spark.conf.get(name, default) or default
    except PySparkException:
        return default


def all_settings(spark: SparkSession) -> dict[str, str]:
    """The settings that a session has, as far as it tells them: a property here, a method of Connect's."""
    known: Any = spark.conf.getAll
    return dict(known() if callable(known) else known)


def cores_of(master: str, *, machine: int) -> int:
    """Tasks that a local master runs at once: ``local[2]``, ``local[*]``; 1 where it says no number.

    Args:
        master: its address.
        machine: cores of the machine.
    """
    found = re.match(r"local\[(\d+|\*)", master)
    if found is None:
        return 1
    return machine if found[1] == "*" else int(found[1])


@contextmanager
def settings(
    spark: SparkSession, wanted: Mapping[str, str], *, needed: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Settings of a session for a while.

    Args:
        spark: the session.
        wanted: those that only make statements fast; one that may not be set is left out.
        needed: those without which a statement must not run.

    Raises:
        DefiniteError: one that is needed may not be set.
    """
    must = needed or {}
    before = {name: spark.conf.get(name, None) for name in [*wanted, *must]}
    try:
        for name, value in wanted.items():
            change(spark, name, value)
        for name, value in must.items():
            if not change(spark, name, value):
                raise _guarded(name)
        yield
    finally:
        put_back(spark, before)


def _guarded(name: str) -> DefiniteError:
    return DefiniteError(
        f"the server lets no session set {name}, by which a commit says how far its table is",
        code=GUARDED,
        remedy="use a server that allows it, on Databricks a cluster; or keep the tables in a catalog "
        "(lake.catalog without lake.path), where commits say it in another way",
    )


def change(spark: SparkSession, name: str, value: str | None) -> bool:
    """Set a session's setting, or unset it; whether the server allows that."""
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


def put_back(spark: SparkSession, before: Mapping[str, str | None]) -> None:
    """Settings of a session as they were; None where one was not set."""
    for name, former in before.items():
        change(spark, name, former)


def may_set(spark: SparkSession, wanted: Mapping[str, str]) -> bool:
    """Check whether the server allows a session all these settings, which stay as they are."""
    try:
        with settings(spark, {}, needed=wanted):
            return True
    except DefiniteError:
        return False


def inherit(session: SparkSession, source: SparkSession) -> None:
    """A clone was given what its source was given, whatever that is tuned to now."""
    if source in _given:
        _given[session] = _given[source]


def tune(session: SparkSession, *, small: bool) -> None:
    """Settings for a statement that reads a small or a large window.

    Each window has other literals, so its generated code is new and would be compiled for some thousand rows;
    there interpreting is faster. Over some hundred thousand rows of a target it costs twice what generated
    code does. A MERGE reads its source twice; only a large one is worth keeping.

    A small window is one task or two. A large one runs as many as the session was given to run; planned again
    by what its stages turn out to hold, where adaptive execution is on. On a cluster these are all its cores.
    """
    for name, (for_small, for_large) in _TUNED.items():
        change(session, name, for_small if small else for_large)
    if session not in _given:
        _given[session] = {name: session.conf.get(name, None) for name in FEW_TASKS}
    put_back(session, FEW_TASKS if small else _given[session])


def generate_code(session: SparkSession) -> None:
    """Have the next statement's code generated: the window is small, but many rows of its target are read."""
    for name in _CODE:
        change(session, name, _TUNED[name][1])


def mark_settings(app: str, lsn: Lsn, position: Lsn | None = None) -> dict[str, str]:
    """Settings by which a commit also sets an application transaction.

    Delta writes the one that a session names into whatever the session commits next, and skips a write whose
    mark is not above the table's. So a write at an LSN that the table already holds carries none.

    Args:
        app: whose mark.
        lsn: what the table holds after the write.
        position: the mark that the table has.
    """
    if position is not None and lsn <= position:
        return {}
    return dict(zip(MARK_SETTINGS, (app, str(int(lsn))), strict=True))


def leave_a_core(session: SparkSession) -> None:
    """Have a session's statements over many rows leave a core to those of other sessions.

    Spark takes a core back from no task: whatever its pool, a job waits until some task has ended, and each
    of a small statement's jobs waits anew. The tasks of a large copy take tens of seconds. So there are no
    more of them than cores but one. On a cluster tasks stay as they are: a lost one is run again.

    Args:
        session: runs nothing else, and its tasks run on this machine.
    """
    cores = cores_of(setting(session, "spark.master", ""), machine=os.cpu_count() or 1)
    if cores > 1:
        for name, value in _LESS_THAN_ALL.items():
            change(session, name, value.format(tasks=cores - 1, splits=max(1, cores - 2)))
