"""The Spark session: one place that knows Delta's jars, quiet logs, and the settings that small windows need.

A session that already exists (Databricks, spark-submit, a notebook) is used as it is; only what a session may change
afterwards is set on it. Elsewhere a local one is started. Settings and their reasons:

* ``snapshotPartitions=1``: Delta replays its log with 50 tasks by default, most of the time of a small MERGE.
* ``adaptive.enabled=false`` and one or two shuffle partitions: a window of some thousand rows is one task; planning again costs more.
* ``merge.materializeSource=none``: the source of our MERGEs reads pinned versions and is deterministic.
* ``session.timeZone=UTC`` and ANSI mode: values mean the same on every machine.
"""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bronze.errors import ConfigurationError
from pipelines.jars import delta_jars
from pipelines.java import check_java

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

_STATIC: Final = {
    "spark.master": "local[*]",
    "spark.app.name": "deltasmelt",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

_DYNAMIC: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.databricks.delta.properties.defaults.enableDeletionVectors": "true",
    # Case-insensitive names are Spark's default; silver refuses columns that differ only in case.
    "spark.sql.caseSensitive": "false",
}


def spark_session(settings: Mapping[str, str] | None = None, *, log: Path | None = None) -> SparkSession:
    """The active session, or a local one with Delta.

    Args:
        settings: the pipeline file's `spark` section; wins over our defaults.
        log: file for Spark's log; errors point to it.

    Raises:
        ConfigurationError: Java is missing or of an unfit version, or pyspark is not installed.
        DefiniteError: Delta's jars cannot be had.
    """
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - the reader must not load Spark
    except ImportError:
        raise ConfigurationError(
            "pyspark is not installed", code="spark-missing", remedy="pip install 'deltasmelt[spark]'"
        ) from None

    session = SparkSession.getActiveSession()
    if session is None:
        session = _start(settings or {}, log or default_log())
    for name, value in {**_DYNAMIC, **(settings or {})}.items():
        if session.conf.isModifiable(name):
            session.conf.set(name, value)
    return session


def default_log() -> Path:
    """Spark's log file when the caller names none."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "deltasmelt" / f"spark-{os.getpid()}.log"


def _start(settings: Mapping[str, str], log: Path) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415

    check_java()
    log.parent.mkdir(parents=True, exist_ok=True)
    static = {
        **_STATIC,
        "spark.jars": ",".join(str(jar) for jar in delta_jars()),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_log_settings()} -Dsmelt.log={log}",
        "spark.sql.warehouse.dir": str(log.parent / "warehouse"),
    }
    builder = SparkSession.builder
    for name, value in {**static, **_DYNAMIC, **settings}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _log_settings() -> Path:
    """``conf/log4j2.properties``: inside the wheel, else beside the packages."""
    packaged = Path(str(resources.files("pipelines"))) / "conf" / "log4j2.properties"
    return packaged if packaged.exists() else Path(__file__).parent.parent / "conf" / "log4j2.properties"
