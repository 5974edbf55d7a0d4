"""The access to Spark: each behaviour that depends on the kind of session is a method.

`access_of` alone distinguishes a session of a JVM (`Jvm`) from a session at a Spark Connect server
(`silver.spark.connect.Connect`). Both classes have the same methods, so a caller requests a capability
(`shares_views`, `may_read_files`, `child`, `cancel`, …) and never the kind of a session.

A statement's mark is a setting of the session, so parallel MERGEs need separate sessions: `Sessions` has a
session for each thread, and `child_session` creates a session for a block.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import threading
import warnings
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from deltasmelt.bronze.lake.catalog.session import is_local
from deltasmelt.bronze.lake.spark_errors import cause_of, spark_errors
from deltasmelt.bronze.lake.staging import aside
from deltasmelt.silver.schema import ddl
from deltasmelt.silver.spark.connect import Connect
from deltasmelt.silver.spark.lazy_session import lazily
from deltasmelt.silver.spark.semantics import PINNED, lean, legacy, pin
from deltasmelt.silver.spark.tuning import (
    MARK_SETTINGS,
    all_settings,
    on_databricks,
    restore_settings,
    runs_tasks_once,
    setting,
    tune,
)
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession

    from deltasmelt.silver.spark.lazy_session import LazySession

_LOGGER: Final = logging.getLogger("deltasmelt.session")
_CONNECT: Final = "pyspark.sql.connect.session"
"""Module of Spark Connect's sessions; loaded where a session of Spark Connect exists."""
_UNSUPPORTED: Final = ("NOT_SUPPORTED", "UNSUPPORTED", "NOT_IMPLEMENTED", "FEATURE_NOT_ENABLED")
"""First words of a server's error conditions for unsupported caching, as on serverless compute."""
_DEATH_SECONDS: Final = 10.0
"""Limit on the wait for a killed JVM; only a file system that does not answer delays the death so long."""
_OBSERVED: Final = "deltasmelt"
"""Name of the observed aggregates in a frame's plan."""
_WARM_PROPERTIES: Final = ", ".join(
    f"{literal(name)} = {literal(value)}" for name, value in ddl.PROPERTIES.items()
)


@dataclass(frozen=True, slots=True)
class Jvm:
    """The access to a session of a JVM."""

    spark: SparkSession
    tasks_write_here: ClassVar[bool] = True  # into folders of this machine, or of a shared file system
    shares_views: ClassVar[bool] = True  # with the whole application; a DataFrame resolves its names once

    @property
    def name(self) -> str:
        """The id of the application; PySpark may return several objects for a session."""
        return str(self.spark.sparkContext.applicationId)

    @property
    def runs_locally(self) -> bool:
        """Check whether all tasks run in the driver's JVM, which sees the files of this machine."""
        return is_local(setting(self.spark, "spark.master", ""))

    @property
    def runs_tasks_once(self) -> bool:
        """Check whether Spark repeats no task, so that the metrics of a job count each row once."""
        return runs_tasks_once(setting(self.spark, "spark.master", ""))

    @property
    def may_read_files(self) -> bool:
        """Check whether Spark reads files of a Delta table as plain files, which Databricks refuses."""
        return not on_databricks()

    # -- children

    def child(self) -> SparkSession:
        """Return a sibling session, with all settings except settings that change written values.

        A sibling shares the application, the jars and the global views with the parent, and ends with the
        application.
        """
        # A sibling session begins with the static settings alone, so the parent's settings are copied.
        session = self.spark.newSession()
        for name, value in all_settings(self.spark).items():
            of_the_parent = name.startswith(("spark.sql.", "spark.databricks."))
            if name in PINNED or name in MARK_SETTINGS or not of_the_parent:
                continue
            if session.conf.isModifiable(name):
                session.conf.set(name, value)
        for name in MARK_SETTINGS:
            # With the owner's mark on commits of this project, Delta would skip all commits after the first.
            if session.conf.get(name, None) is not None:  # the application's configuration sets the name
                session.conf.unset(name)
        pin(session)
        lean(session)
        return session

    def work(self) -> AbstractContextManager[SparkSession]:
        """Return this session for a block of work: sessions of a JVM end with the application."""
        return nullcontext(self.spark)

    @contextmanager
    def borrow(self, needed: Mapping[str, str]) -> Iterator[tuple[SparkSession, Mapping[str, str]]]:
        """Yield the owner's session, pinned for a block, and those of the needed settings that it accepts.

        The end of the block restores all these settings; an interrupt restores none.
        """
        conf = self.spark.conf
        names = {**PINNED, **legacy(self.spark), **needed}
        before = {name: conf.get(name, None) for name in names}

        def restore() -> None:
            # A setting that Delta registers only when its classes load counts as unmodifiable until then.
            restore_settings(
                self.spark, {name: old for name, old in before.items() if conf.get(name, None) != old}
            )

        try:
            pin(self.spark)
            yield self.spark, {name: value for name, value in needed.items() if conf.isModifiable(name)}
        # After an interrupt the JVM is in the middle of a call, and the connection would confuse the answers
        # of two calls.
        except (Exception, GeneratorExit, SystemExit):  # no KeyboardInterrupt, and no signal's exception
            restore()
            raise
        restore()

    # -- views

    def share(self, frame: DataFrame, name: str) -> str:
        """Create a global view `name` for all sessions of the application; return its name as Spark SQL."""
        frame.createOrReplaceGlobalTempView(quote(name))
        return quote("global_temp", name)

    def unshare(self, name: str) -> None:
        """Drop a view that `share` created."""
        self.spark.catalog.dropGlobalTempView(name)

    def active(self) -> AbstractContextManager[None]:
        """Do nothing: rows of a JVM's session need no active session."""
        return nullcontext()

    # -- running statements

    def in_background(self, pool: str) -> None:
        """Let the jobs of this thread share the cores with other jobs, instead of running first.

        `pool` groups jobs that run one after another.
        """
        self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", f"deltasmelt-{pool}")

    def tag(self, tag: str) -> None:
        """Tag the jobs of this thread for `cancel_tag`."""
        self.spark.sparkContext.addJobTag(tag)

    def cancel_tag(self, tag: str) -> None:
        """Cancel jobs by tag."""
        self.spark.sparkContext.cancelJobsWithTag(tag)

    def cancel(self) -> None:
        """Cancel all jobs of the application."""
        self.spark.sparkContext.cancelAllJobs()

    # -- the session's life

    def keep(self) -> None:
        """Do nothing: a JVM keeps its sessions."""

    def release(self) -> None:
        """Do nothing: the session ends with the application."""

    def process(self) -> subprocess.Popen[bytes] | None:
        """Return the JVM's process where this process started the JVM."""
        return jvm_process()

    def end(self) -> None:
        """Stop the application."""
        try:
            with warnings.catch_warnings(action="ignore"):
                self.spark.stop()
        except Exception as error:  # noqa: BLE001 - the JVM is gone; another error says why
            _LOGGER.info("Spark did not stop normally: %s", cause_of(error))
            self.forget()

    def abandon(self) -> None:
        """Cancel the jobs of an interrupted command, whose JVM belongs to `spark-submit`."""
        self.cancel()

    def forget(self) -> None:
        """Detach PySpark from a session that did not stop, so that the next start creates a new session."""
        from pyspark.sql import SparkSession  # noqa: PLC0415 - the reader must not load Spark

        SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
        context_class()._active_spark_context = None  # noqa: SLF001


Access: TypeAlias = Jvm | Connect


def access_of(spark: SparkSession) -> Access:
    """Return the access to a session."""
    module: Any = sys.modules.get(_CONNECT)
    return Connect(spark) if module is not None and isinstance(spark, module.SparkSession) else Jvm(spark)


class Sessions:
    """The session of each thread, or with `shared` one session for all threads.

    A shell needs `shared`: the shell runs each statement in a new thread.
    """

    def __init__(self, spark: SparkSession | LazySession, *, shared: bool = False) -> None:
        self._spark = lazily(spark)
        self._local: Any = SimpleNamespace() if shared else threading.local()
        self._first: tuple[Connect, object] | None = None

    def own(self) -> SparkSession:
        """Return this thread's session, with the settings of the parent."""
        session: SparkSession | None = getattr(self._local, "session", None)
        if self._first is not None:
            first, version = self._first
            if session is not first.spark and getattr(self._local, "version", None) is not version:
                if session is not None:
                    access_of(session).release()
                session, self._local.version = first.clone(), version
        if session is None:
            session = access_of(self._spark.get()).child()
        self._local.session = session
        return session

    def show_views(self) -> None:
        """Let the sessions of all threads find the present views of this thread's session (`share`)."""
        access = access_of(self.own())
        if isinstance(access, Connect):
            self._first = access, object()


@contextmanager
def child_session(spark: SparkSession) -> Iterator[SparkSession]:
    """Yield a child of a session for a block."""
    session = access_of(spark).child()
    try:
        yield session
    finally:
        access_of(session).release()


def computed(frame: DataFrame, *, now: bool = True) -> DataFrame:
    """Return rows that Spark computes once for all readers, without the plan of the rows.

    With `now` Spark computes the rows at once; otherwise at the first read. If a server caches no rows, each
    reader computes the rows: rows of pinned versions are equal each time.
    """
    if is_local(setting(frame.sparkSession, "spark.master", "")):
        keep = frame.localCheckpoint
    else:
        # Spark caches the rows at the executor of the task. A lost executor would lose the rows, and each
        # statement over the rows would fail. So a cluster stores two copies, on two executors.
        from pyspark import StorageLevel  # noqa: PLC0415 - a job that folds nothing loads no Spark

        keep = partial(frame.localCheckpoint, storageLevel=StorageLevel.MEMORY_AND_DISK_2)
    with access_of(frame.sparkSession).active():
        kept = cached_or_none(lambda: keep(now))
    return frame if kept is None else kept


def computed_with(frame: DataFrame, aggregates: Sequence[str]) -> tuple[DataFrame, dict[str, Any]]:
    """Return rows that Spark computes once, and aggregates of the rows by name: numbers and texts.

    Where Spark repeats no task, the job that computes the rows computes the aggregates too. Elsewhere a query
    over the rows computes them. A repeated task may find its rows already stored: it then reads the stored
    rows, and counts none (https://issues.apache.org/jira/browse/SPARK-41497).
    """
    if access_of(frame.sparkSession).runs_tasks_once:
        from pyspark.sql.functions import expr  # noqa: PLC0415 - the reader must not load Spark

        observing = frame.observe(_OBSERVED, *map(expr, aggregates))
        rows = computed(observing)
        # The plan's own metrics: `Observation.get` waits for an event, and Spark may drop events.
        metrics: Any = observing._jdf.queryExecution().observedMetrics().get(_OBSERVED)  # noqa: SLF001
        # Rows that Spark did not cache have run in no job yet.
        if rows is not observing and not metrics.isEmpty():
            return rows, json.loads(metrics.get().json())
    rows = computed(frame)
    return rows, rows.selectExpr(*aggregates).collect()[0].asDict()


def cached_or_none(keep: Callable[[], DataFrame]) -> DataFrame | None:
    """Call `keep`, and return a frame with cached rows; None where the server caches no rows.

    Raises:
        PySparkException: any failure except missing support for a cache.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as above

    try:
        return keep()
    except PySparkException as error:
        if not (error.getCondition() or "").startswith(_UNSUPPORTED):
            raise
        _LOGGER.info("rows cannot be cached here: %s", error.getCondition())
        return None


def warm_up(spark: SparkSession) -> None:
    """Run one MERGE on a table of two rows, so that the JVM loads its classes before the first window.

    Only a long-running process gains: a job with one MERGE would wait for two MERGEs. After a failure, the
    first window takes some seconds more.
    """
    access = access_of(spark)
    # Only tasks in the driver's JVM share a private folder outside every lake.
    if not access.runs_locally:
        return
    try:
        # In the process's own folder, which the next process removes if this process is killed.
        with tempfile.TemporaryDirectory(dir=aside("warm"), ignore_cleanup_errors=True) as folder:
            _merge_once(access.child(), f"delta.{quote(Path(folder, 't').as_uri())}")
    except spark_errors(OSError) as error:
        _LOGGER.info("Spark was not warmed up: %s", cause_of(error))


def _merge_once(session: SparkSession, target: str) -> None:
    tune(session, small=True)
    session.sql(f"CREATE TABLE {target} (id INT, v STRING) USING DELTA TBLPROPERTIES ({_WARM_PROPERTIES})")
    session.sql(f"INSERT INTO {target} VALUES (1, 'a'), (2, 'b')")
    session.sql(
        f"MERGE INTO {target} AS t USING (SELECT 1 AS id, max('c') AS v GROUP BY 1) AS s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET t.v = s.v WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v)"
    ).collect()


def context_class() -> Any:
    """Return the class that holds a JVM of this process; a Spark Connect client has none."""
    import pyspark  # noqa: PLC0415 - the reader must not load Spark

    return getattr(pyspark, "SparkContext", _NoContext)


class _NoContext:
    _active_spark_context = _gateway = _jvm = None


def kill_jvm(process: subprocess.Popen[bytes]) -> None:
    """Kill a JVM, and wait for its death: a killed process may still complete a step in the kernel."""
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        # With a limit the wait takes no lock, so a handler of a signal may wait, too.
        process.wait(_DEATH_SECONDS)


def jvm_process() -> subprocess.Popen[bytes] | None:
    """Return the JVM's process where this process started the JVM."""
    gateway: Any = context_class()._gateway  # noqa: SLF001 - the only way to the process of launch_gateway
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    return process
