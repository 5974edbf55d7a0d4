"""Spark sessions of silver: one per thread, tuned for the window at hand; a continuous run warms them up.

The mark that a statement writes is a setting of its session, so tables that are merged side by side need
separate sessions. A new session begins with the static settings alone. What was set on the given one is
copied, except what decides what values mean (`silver.run.pinned`), and its owner's own mark: Delta would give
that to our commits, and skip all but the first of them.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from silver.run.lazy_session import lazily
from silver.run.masters import runs_locally
from silver.run.pinned import PINNED, pin
from silver.run.spark_settings import LEAN_COMMITS, tune
from silver.schema import ddl
from silver.sql import literal, quote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bronze.lsn import Lsn
    from silver.run.lazy_session import LazySession


_LOGGER: Final = logging.getLogger("deltasmelt.silver")
_MARK: Final = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")
"""Settings that give commits a mark: the application's id, and the version."""
_WARM_PROPERTIES: Final = ", ".join(
    f"{literal(name)} = {literal(value)}" for name, value in ddl.PROPERTIES.items()
)


class Sessions:
    """The session of each thread.

    Args:
        spark: the session beside which they are made.
    """

    def __init__(self, spark: SparkSession | LazySession) -> None:
        self._spark = lazily(spark)
        self._local = threading.local()

    def own(self) -> SparkSession:
        """This thread's own, with the settings of the given one."""
        session: SparkSession | None = getattr(self._local, "session", None)
        if session is None:
            session = own_session(self._spark.get())
            self._local.session = session
        return session


def own_session(spark: SparkSession) -> SparkSession:
    """A session beside the given one, with its settings except those that change what is written.

    A new session starts with the static settings and the application's own configuration alone.
    """
    session = spark.newSession()
    known: Any = spark.conf.getAll
    for name, value in known.items():
        ours = name in PINNED or name in _MARK or not name.startswith(("spark.sql.", "spark.databricks."))
        if not ours and session.conf.isModifiable(name):
            session.conf.set(name, value)
    for name in _MARK:
        if session.conf.get(name, None) is not None:  # it is in the application's own configuration
            session.conf.unset(name)
    pin(session)
    _lean(session)
    return session


def _lean(session: SparkSession) -> None:
    """Have a session of ours write no more of each commit than is read; as it is where it may not be set."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a cycle that folds nothing loads no Spark

    for name, value in LEAN_COMMITS.items():
        try:
            session.conf.set(name, value)
        except PySparkException as error:
            _LOGGER.debug("%s may not be set: %s", name, error)


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
    return dict(zip(_MARK, (app, str(int(lsn))), strict=True))


def warm_up(spark: SparkSession) -> None:
    """Run one MERGE on a table of a row, so that classes are loaded before the first window is waited for.

    Only what merges for long gains by it: a job that merges once would wait for two MERGEs. Only where tasks
    run in the driver's JVM is there a folder that all of them see and that is nobody's lake. Elsewhere, and
    where it fails, nothing is lost but some seconds of the first window.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a cycle that folds nothing loads no Spark

    if not runs_locally(spark):
        return
    try:
        with tempfile.TemporaryDirectory(prefix="smelt-warm-", ignore_cleanup_errors=True) as folder:
            _merge_once(own_session(spark), f"delta.{quote(Path(folder, 't').as_uri())}")
    except (PySparkException, Py4JJavaError, OSError) as error:
        _LOGGER.info("Spark was not warmed up: %s", error)


def _merge_once(session: SparkSession, target: str) -> None:
    tune(session, small=True)
    session.sql(f"CREATE TABLE {target} (id INT, v STRING) USING DELTA TBLPROPERTIES ({_WARM_PROPERTIES})")
    session.sql(f"INSERT INTO {target} VALUES (1, 'a'), (2, 'b')")
    session.sql(
        f"MERGE INTO {target} AS t USING (SELECT 1 AS id, max('c') AS v GROUP BY 1) AS s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET t.v = s.v WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v)"
    ).collect()
