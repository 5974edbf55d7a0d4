"""Provide the Spark session: Delta's jars, quiet logs, and the settings that small windows need.

A command borrows an existing session (`pipelines.spark.session_owner`). Without a session, this module starts
one: at a named Spark Connect server or on Databricks a remote session (`pipelines.spark.remote`), otherwise a
local session. UTC and ANSI mode give values one meaning on every machine.

Under spark-submit the JVM already runs. The submit command decides master, memory and jars, and this module
adds only the settings that Delta needs.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.bronze.lake.catalog.session import is_local
from deltasmelt.bronze.lake.place import place_of
from deltasmelt.bronze.lake.spark_errors import cause_of
from deltasmelt.pipelines.spark import class_archive, local_folder
from deltasmelt.pipelines.spark.hadoop import LOG_STORE, hadoop_settings
from deltasmelt.pipelines.spark.jars import LOG_STORE_JAR, delta_jars, store_jars
from deltasmelt.pipelines.spark.java import check_java
from deltasmelt.pipelines.spark.launch import (
    JVM_OPTIONS,
    jvm_options,
    launch,
    log_settings,
    option,
    refusal,
)
from deltasmelt.pipelines.spark.remote import REMOTE, is_elsewhere, remote_session
from deltasmelt.pipelines.terminal.logs import spark_log
from deltasmelt.pipelines.terminal.output import waiting
from deltasmelt.silver.spark.access import access_of, context_class, kill_jvm
from deltasmelt.silver.spark.semantics import AS_MICROSECONDS, PINNED
from deltasmelt.silver.spark.tuning import all_settings, change, cores_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark import SparkConf
    from pyspark.sql import SparkSession


_LOGGER = logging.getLogger("deltasmelt.session")
SPARK_STOP_SECONDS: Final = 15.0


DEFAULT_HEAP: Final = "2g"
_STATIC: Final = {
    "spark.master": "local[*]",
    "spark.app.name": "deltasmelt",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": DEFAULT_HEAP,
    "spark.scheduler.mode": "FAIR",  # the copy of a large table shares the cores (`silver.run.long_work`)
    # Each sort and each hash table takes at least a page. Spark sizes pages by the heap, not by the rows, up
    # to 64 MB: a document of twenty joins filled two gigabytes with few rows.
    "spark.buffer.pageSize": "2m",
    # For each call on a column, pyspark would send its line of Python to the JVM, in five more calls.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
_LOOPBACK: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.authenticate": "true",  # each account of the machine reaches the port; Spark makes a secret itself
}
"""Settings of a local master alone: executors on remote machines must reach the driver."""

_DELTA: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

# Under spark-submit, the submit command decides these settings, not the pipeline file.
_SUBMITTED: Final = frozenset({"spark.master", "spark.driver.memory", "spark.jars", "spark.jars.packages"})

_DYNAMIC: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ui.explainMode": "simple",  # a description of the plan is made for each execution
    # Delta replays its log with 50 tasks by default, most of the time of a small MERGE.
    "spark.databricks.delta.snapshotPartitions": "1",
    # The source of deltasmelt's MERGEs reads pinned versions and is deterministic.
    "spark.databricks.delta.merge.materializeSource": "none",
    # Delta refuses a version by the age of its commit. An idle table stays at an old version with all files
    # present; `control.cuts` decides which versions are past retention.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    "spark.databricks.delta.properties.defaults.enableDeletionVectors": "true",
    "spark.sql.variable.substitute": "false",  # a value or a name may hold a literal ${…}
    # Case-insensitive names are Spark's default; silver refuses columns that differ only in case.
    "spark.sql.caseSensitive": "false",
    **AS_MICROSECONDS,  # for files that a program writes from `deltasmelt.open`; silver and gold pin the type
}


def tasks_of(master: str) -> dict[str, str]:
    """Return settings for the number of tasks in the driver's JVM; none for a remote master."""
    if not is_local(master):
        return {}
    # A window of some thousand rows is one task, and adaptive planning costs more. A cluster keeps its own
    # values for all large work (`silver.spark.tuning.tune`).
    cores = cores_of(master, machine=os.cpu_count() or 1)
    return {"spark.sql.shuffle.partitions": str(max(2, cores)), "spark.sql.adaptive.enabled": "false"}


def spark_session(
    settings: Mapping[str, str] | None = None,
    *,
    log: Path | None = None,
    announce: Callable[[str], None] | None = None,
    brief: bool = False,
    lake: str | None = None,
) -> SparkSession:
    """Return the existing session, or start a session: remote, or local with Delta.

    Args:
        settings: the pipeline file's `spark` section, which overrides deltasmelt's defaults.
        log: file for Spark's log; errors name this file.
        announce: called with a few words before each long step (`waiting`).
        brief: for a command of few statements: the JVM starts faster but stays slower.
        lake: location of the lake; a location in an object store needs settings and jars.

    Raises:
        ConfigurationError: Java is missing or of a wrong version, or pyspark is not installed.
        DefiniteError: Delta's jars are unavailable, or the JVM does not start.
    """
    require_pyspark()
    if (session := active_session()) is not None:
        return session  # a process has one Spark context
    _quiet()
    settings = settings or {}
    if not is_elsewhere(settings):
        return _start(settings, log or spark_log("deltasmelt"), announce, brief=brief, lake=lake)
    with waiting("connecting to Spark", announce):
        session = remote_session(settings)
        _set_where_allowed(session, settings)
    return session


def _set_where_allowed(session: SparkSession, settings: Mapping[str, str]) -> None:
    """Set deltasmelt's and the pipeline file's settings in a server's session; leave refused settings."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - the reader must not load Spark

    known = all_settings(session)
    for name, value in {**PINNED, **_DYNAMIC}.items():
        if name not in settings and known.get(name) != value:
            try:
                change(session, name, value)
            except PySparkException as error:
                _LOGGER.info("%s was not set: %s", name, cause_of(error))
    set_all(session, {name: value for name, value in settings.items() if known.get(name) != value})


def set_all(session: SparkSession, settings: Mapping[str, str]) -> None:
    """Set the pipeline file's settings in a session, except settings that a server guards.

    Raises:
        ConfigurationError: a value is not valid for its setting.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - the reader must not load Spark

    for name, value in settings.items():
        try:
            if name != REMOTE and not change(session, name, value):
                _LOGGER.info("the server has its own value of %s", name)
        except PySparkException as error:
            raise refusal(name, cause_of(error)) from None


def active_session() -> SparkSession | None:
    """Return the existing session of this thread, or of this process; None without a session."""
    require_pyspark()
    if "pyspark" not in sys.modules:  # then this process has no session, and an import takes a while
        return None
    from pyspark.errors import PySparkException  # noqa: PLC0415 - the reader must not load Spark
    from pyspark.sql import SparkSession  # noqa: PLC0415

    session = SparkSession.getActiveSession()
    if session is None and "pyspark.sql.connect.session" in sys.modules:
        try:
            return SparkSession.active()
        except PySparkException:  # no thread has a session
            return None
    if session is None and context_class()._active_spark_context is not None:  # noqa: SLF001 - another thread's
        return SparkSession.builder.getOrCreate()
    return session


def require_pyspark() -> None:
    """Require an installed pyspark, without loading pyspark."""
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigurationError(
            "pyspark is not installed", code="spark-missing", remedy="pip install 'deltasmelt[spark]'"
        )


def stop_session(spark: SparkSession, *, patience: float = SPARK_STOP_SECONDS) -> int | None:
    """Stop a session that `spark_session` started, and wait for the end of its JVM.

    At a server, release the session and its child sessions. After `patience` seconds the JVM is killed; at
    once without patience.

    Returns:
        The JVM's exit code, as `subprocess.Popen.returncode`; None for a JVM that this process did not start.
    """
    access, until = access_of(spark), time.monotonic() + patience
    process = access.process()
    if patience <= 0 and process is not None:
        kill_jvm(process)
    # If the JVM or the server never answers, the thread ends with the JVM, or with this process.
    stopping = threading.Thread(target=access.end, name="spark-stop", daemon=True)
    stopping.start()
    stopping.join(patience)
    if stopping.is_alive():
        access.forget()
    if process is None or process.stdin is None:
        return None
    context = context_class()
    context._gateway = context._jvm = None  # noqa: SLF001 - so that a new session can start
    process.stdin.close()  # the JVM watches its input, and ends
    try:
        process.wait(max(until - time.monotonic(), 1.0))
    except subprocess.TimeoutExpired:
        kill_jvm(process)
    local_folder.remove()
    return process.returncode


def _quiet() -> None:
    """Silence pyspark's own logger, which prints every SQL error as JSON on the terminal."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415

    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    logger.handlers = [logging.NullHandler()]
    # A server drops a session's rows with the session, so nothing is left to remove.
    warnings.filterwarnings("ignore", "RemoveRemoteCachedRelation failed")
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")  # the raised error has the text


def _start(
    settings: Mapping[str, str],
    log: Path,
    announce: Callable[[str], None] | None,
    *,
    brief: bool,
    lake: str | None,
) -> SparkSession:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    store = {} if lake is None else hadoop_settings(lake)
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        builder = SparkSession.builder
        given = {name: value for name, value in settings.items() if name not in _SUBMITTED}
        # The submit command decides the jars; the log store is among them, or is missing.
        SparkContext._ensure_initialized()  # noqa: SLF001 - only then a SparkConf knows what was submitted
        submitted_jars = [SparkConf().get(name) or "" for name in ("spark.jars", "spark.yarn.dist.jars")]
        if not any(LOG_STORE_JAR.name in jars for jars in submitted_jars):
            if LOG_STORE in store.values():
                _LOGGER.warning(
                    "%s is missing among the job's jars: on S3, another Spark driver may overwrite its "
                    "commits",
                    LOG_STORE_JAR.name,
                )
            store = {name: value for name, value in store.items() if value != LOG_STORE}
        for name, value in {**_DELTA, **_DYNAMIC, **store, **given}.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        submitted = session.sparkContext.getConf()
        for name, value in tasks_of(submitted.get("spark.master") or "").items():
            if name not in given and not submitted.contains(name):
                session.conf.set(name, value)
        return session
    java, jars = check_java(), delta_jars(announce)
    merged = {JVM_OPTIONS}  # settings of the pipeline file that become parts of values below
    log.parent.mkdir(parents=True, exist_ok=True)
    archive = class_archive.archive_of(settings, java, jars)
    paths = [str(jar) for jar in jars]
    # A JVM only archives classes of its class path; Spark adds ``spark.jars`` later.
    classes = (
        {"spark.jars": ",".join(paths)}
        if archive is None
        else {class_archive.CLASS_PATH: os.pathsep.join(paths)}
    )
    scheme = None if lake is None else place_of(lake).scheme
    if scheme is not None:
        more = [
            settings.get("spark.jars"),
            classes.get("spark.jars"),
            *map(str, store_jars(scheme, announce)),
        ]
        classes["spark.jars"] = ",".join(filter(None, more))
        merged.add("spark.jars")
    master = settings.get("spark.master", _STATIC["spark.master"])
    alone: dict[str, str] = {}
    if is_local(master):
        alone = {**_LOOPBACK, local_folder.SETTING: local_folder.made_for(settings)}
        merged.add(local_folder.SETTING)
    static = {
        **_STATIC,
        **alone,
        **_DELTA,
        **store,
        **classes,
        JVM_OPTIONS: " ".join(
            [
                option(f"-Dlog4j2.configurationFile={log_settings()}"),
                option(f"-Dsmelt.log={log}"),
                jvm_options(settings.get(JVM_OPTIONS, ""), brief=brief),
            ]
        ).strip(),
        "spark.sql.warehouse.dir": str(log.parent / "warehouse"),
    }
    conf = SparkConf(loadDefaults=False)
    given = {name: value for name, value in settings.items() if name not in merged}
    conf.setAll([*{**static, **_DYNAMIC, **tasks_of(master), **given}.items()])
    with waiting("starting Spark", announce):
        _launch(conf, log, archive)
        return SparkSession.builder.getOrCreate()


def _launch(conf: SparkConf, log: Path, archive: Path | None) -> None:
    """Start the JVM over a usable archive of its classes; else make the archive after the command."""
    if archive is None:
        launch(conf, log)
        return
    if not class_archive.usable(archive):
        launch(conf, log)
        atexit.register(class_archive.make_later, archive)
        return
    plain = conf.get(JVM_OPTIONS) or ""
    conf.set(JVM_OPTIONS, f"{plain} {class_archive.options(archive)}")
    try:
        launch(conf, log)
    except DefiniteError:
        # Java only checks an archive's head. Most likely the cause of the failure is not the archive.
        conf.set(JVM_OPTIONS, plain)
        launch(conf, log)
        archive.unlink(missing_ok=True)
