"""The access to Spark: what depends on the kind of a session is a method of the session's access.

`access_of` is the only place that distinguishes a session of a JVM (`Jvm`) from a session at a Spark Connect
server (`silver.spark.connect.Connect`). Both classes have the same methods, so a caller asks for what it
needs (`shares_views`, `may_read_files`, `child`, `cancel`, …) and never which kind a session is.

**A child in a JVM** shares the application, the jars and the global views with its parent, and begins with
the static settings alone. Settings of the parent are copied, except settings that decide what values mean
(`silver.spark.semantics`), and the mark of the owner's own commits: Delta would give that mark to commits of
this project, and skip all but the first. A child ends with its application.

The mark that a statement writes is a setting of its session, so tables that are merged in parallel need
separate sessions: `Sessions` has one for each thread, and `beside` one for a block.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import threading
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from deltasmelt.bronze.lake.catalog.session import is_local
from deltasmelt.bronze.lake.spark_errors import spark_errors
from deltasmelt.silver.schema import ddl
from deltasmelt.silver.spark.connect import Connect
from deltasmelt.silver.spark.lazy_session import lazily
from deltasmelt.silver.spark.semantics import PINNED, lean, legacy, pin
from deltasmelt.silver.spark.tuning import (
    MARK_SETTINGS,
    all_settings,
    on_databricks,
    put_back,
    setting,
    tune,
)
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession

    from deltasmelt.silver.spark.lazy_session import LazySession

_LOGGER: Final = logging.getLogger("deltasmelt.session")
_CONNECT: Final = "pyspark.sql.connect.session"
"""Module of the sessions of Spark Connect; loaded where such a session exists."""
_UNSUPPORTED: Final = ("NOT_SUPPORTED", "UNSUPPORTED", "NOT_IMPLEMENTED", "FEATURE_NOT_ENABLED")
"""How conditions begin by which a server says that it keeps no rows, as serverless compute does."""
_WARM_PROPERTIES: Final = ", ".join(
    f"{literal(name)} = {literal(value)}" for name, value in ddl.PROPERTIES.items()
)


@dataclass(frozen=True, slots=True)
class Jvm:
    """The access to a session of a JVM.

    Attributes:
        spark: the session.
        tasks_write_here: tasks write into folders of this machine, or of a file system that both see.
        shares_views: all sessions of the application see a shared view; a DataFrame resolves its names once.
        may_never_answer: the connection breaks when the JVM ends.
    """

    spark: SparkSession
    tasks_write_here: ClassVar[bool] = True
    shares_views: ClassVar[bool] = True
    may_never_answer: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The id of the application; PySpark may return several objects for a session."""
        return str(self.spark.sparkContext.applicationId)

    @property
    def runs_locally(self) -> bool:
        """Check whether all tasks run in the driver's JVM, which sees the files of this machine."""
        return is_local(setting(self.spark, "spark.master", ""))

    @property
    def may_read_files(self) -> bool:
        """Check whether Spark reads files of a Delta table as plain files, which Databricks refuses."""
        return not on_databricks()

    # -- children

    def child(self) -> SparkSession:
        """Return a session beside this one, with its settings except those that change what is written."""
        session = self.spark.newSession()
        for name, value in all_settings(self.spark).items():
            of_the_parent = name.startswith(("spark.sql.", "spark.databricks."))
            if name in PINNED or name in MARK_SETTINGS or not of_the_parent:
                continue
            if session.conf.isModifiable(name):
                session.conf.set(name, value)
        for name in MARK_SETTINGS:
            if session.conf.get(name, None) is not None:  # the application's own configuration sets it
                session.conf.unset(name)
        pin(session)
        lean(session)
        return session

    def work(self) -> AbstractContextManager[SparkSession]:
        """Give this session for a block of work: sessions of a JVM end with their application."""
        return nullcontext(self.spark)

    @contextmanager
    def lent(
        self, given: Mapping[str, str], interrupts: tuple[type[BaseException], ...]
    ) -> Iterator[tuple[SparkSession, Mapping[str, str]]]:
        """Yield the owner's session, pinned for a block, and the settings that it takes.

        At the end of the block all these settings are as they were before.

        Args:
            given: settings that the block wants.
            interrupts: raised in the middle of a call to the JVM, whose connection then takes the answer of
                one call for the answer of another: no setting is restored.
        """
        conf = self.spark.conf
        names = {**PINNED, **legacy(self.spark), **given}
        before = {name: conf.get(name, None) for name in names if conf.isModifiable(name)}
        try:
            pin(self.spark)
            yield self.spark, {name: value for name, value in given.items() if name in before}
        except interrupts:
            raise
        except BaseException:
            put_back(self.spark, before)
            raise
        put_back(self.spark, before)

    # -- views

    def share(self, frame: DataFrame, name: str) -> str:
        """Make a global view, which all sessions of the application read; return its name as Spark SQL.

        Args:
            frame: gives the view's rows.
            name: unique name of the view.
        """
        frame.createOrReplaceGlobalTempView(quote(name))
        return quote("global_temp", name)

    def unshare(self, name: str) -> None:
        """Drop a view that `share` made."""
        self.spark.catalog.dropGlobalTempView(name)

    def active(self) -> AbstractContextManager[None]:
        """Do nothing: rows of a JVM's session need no active session."""
        return nullcontext()

    # -- running statements

    def in_background(self, pool: str) -> None:
        """Have the jobs of this thread share the cores with other jobs, instead of coming before them.

        Args:
            pool: groups jobs that run one after the other.
        """
        self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", f"deltasmelt-{pool}")

    def tag(self, tag: str) -> None:
        """Tag the jobs of this thread, so that `cancel_tag` cancels them."""
        self.spark.sparkContext.addJobTag(tag)

    def cancel_tag(self, tag: str) -> None:
        """Cancel jobs by their tag."""
        self.spark.sparkContext.cancelJobsWithTag(tag)

    def cancel(self) -> None:
        """Cancel all jobs of the application."""
        self.spark.sparkContext.cancelAllJobs()

    # -- the session's life

    def release(self) -> None:
        """Do nothing: the session ends with its application."""

    def process(self) -> subprocess.Popen[bytes] | None:
        """Return the JVM's process where this process started the JVM."""
        return jvm_process()

    def end(self) -> None:
        """Stop the application."""
        try:
            with warnings.catch_warnings(action="ignore"):
                self.spark.stop()
        except Exception as error:  # noqa: BLE001 - the JVM is gone; another error says why
            _LOGGER.info("Spark did not stop in order: %s", error)
            self.forget()

    def abandon(self) -> None:
        """Do nothing: the JVM ends with this process, and is in the middle of a call."""

    def forget(self) -> None:
        """Leave a session that did not stop: whoever starts the next session must not be given this one."""
        from pyspark.sql import SparkSession  # noqa: PLC0415 - the reader must not load Spark

        SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
        context_class()._active_spark_context = None  # noqa: SLF001


Access: TypeAlias = Jvm | Connect


def access_of(spark: SparkSession) -> Access:
    """Return the access to a session."""
    module: Any = sys.modules.get(_CONNECT)
    return Connect(spark) if module is not None and isinstance(spark, module.SparkSession) else Jvm(spark)


class Sessions:
    """The session of each thread.

    Args:
        spark: the parent of these sessions.
        shared: one session for all threads: a shell runs each statement in a thread of its own.
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
            if session is not first.spark and getattr(self._local, "seen", None) is not version:
                if session is not None:
                    access_of(session).release()
                session, self._local.seen = first.clone(), version
        if session is None:
            session = access_of(self._spark.get()).child()
        self._local.session = session
        return session

    def show_views(self) -> None:
        """Have the other threads' sessions find the views that this thread's session has now (`share`)."""
        access = access_of(self.own())
        if isinstance(access, Connect):
            self._first = access, object()


@contextmanager
def beside(spark: SparkSession) -> Iterator[SparkSession]:
    """Yield a child of a session for a block."""
    session = access_of(spark).child()
    try:
        yield session
    finally:
        access_of(session).release()


def computed(frame: DataFrame, *, now: bool = True) -> DataFrame:
    """Return rows that are computed once for all their readers, without the plan that made them.

    Spark caches the rows where the task ran. A lost executor would take the rows along, and with them the
    statement that reads them. So on a cluster there are two copies, on two executors. Where a server caches
    no rows, each reader computes them: rows of pinned versions are the same each time.

    Args:
        frame: gives the rows.
        now: compute the rows at once; otherwise the first read does.
    """
    if is_local(setting(frame.sparkSession, "spark.master", "")):
        keep = frame.localCheckpoint
    else:
        from pyspark import StorageLevel  # noqa: PLC0415 - a job that folds nothing loads no Spark

        keep = partial(frame.localCheckpoint, storageLevel=StorageLevel.MEMORY_AND_DISK_2)
    with access_of(frame.sparkSession).active():
        kept = kept_or_not(lambda: keep(now))
    return frame if kept is None else kept


def kept_or_not(keep: Callable[[], DataFrame]) -> DataFrame | None:
    """A frame whose rows are kept; None where the server keeps none.

    Args:
        keep: has them kept.

    Raises:
        PySparkException: something else failed.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as above

    try:
        return keep()
    except PySparkException as error:
        if not (error.getCondition() or "").startswith(_UNSUPPORTED):
            raise
        _LOGGER.info("rows are not kept here: %s", error.getCondition())
        return None


def warm_up(spark: SparkSession) -> None:
    """Run one MERGE on a table of a row, so that classes are loaded before the first window is waited for.

    Only what merges for long gains by it: a job that merges once would wait for two MERGEs. Only where tasks
    run in the driver's JVM is there a folder that all of them see and that is nobody's lake. Elsewhere, and
    where it fails, nothing is lost but some seconds of the first window.
    """
    access = access_of(spark)
    if not access.runs_locally:
        return
    try:
        with tempfile.TemporaryDirectory(prefix="smelt-warm-", ignore_cleanup_errors=True) as folder:
            _merge_once(access.child(), f"delta.{quote(Path(folder, 't').as_uri())}")
    except spark_errors(OSError) as error:
        _LOGGER.info("Spark was not warmed up: %s", error)


def _merge_once(session: SparkSession, target: str) -> None:
    tune(session, small=True)
    session.sql(f"CREATE TABLE {target} (id INT, v STRING) USING DELTA TBLPROPERTIES ({_WARM_PROPERTIES})")
    session.sql(f"INSERT INTO {target} VALUES (1, 'a'), (2, 'b')")
    session.sql(
        f"MERGE INTO {target} AS t USING (SELECT 1 AS id, max('c') AS v GROUP BY 1) AS s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET t.v = s.v WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v)"
    ).collect()


def context_class() -> Any:
    """Return the class that holds a JVM of this process; a client of Spark Connect alone has none."""
    import pyspark  # noqa: PLC0415 - the reader must not load Spark

    return getattr(pyspark, "SparkContext", _NoContext)


class _NoContext:
    _active_spark_context = _gateway = _jvm = None


def jvm_process() -> subprocess.Popen[bytes] | None:
    """Return the JVM's process where this process started the JVM."""
    gateway: Any = context_class()._gateway  # noqa: SLF001 - the only way to the process of launch_gateway
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    return process
