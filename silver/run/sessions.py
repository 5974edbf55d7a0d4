"""Spark sessions of silver: one per thread, tuned for the window at hand, warmed at the start.

The mark that a statement writes is a setting of its session, so tables that are merged side by side need
sessions of their own. A new session begins with the static settings alone; what was set on the given one is
carried over, but for what decides what values mean (`silver.run.pinned`).
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from silver.run.pinned import PINNED, pin
from silver.schema import ddl
from silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from bronze.lsn import Lsn

_TUNED: Final = {
    "spark.databricks.delta.merge.materializeSource": ("none", "auto"),
    "spark.sql.codegen.wholeStage": ("false", "true"),
    "spark.sql.codegen.factoryMode": ("NO_CODEGEN", "FALLBACK"),
}

_CODE: Final = ("spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode")

ONE_TASK: Final = {"spark.sql.shuffle.partitions": "1", "spark.sql.files.minPartitionNum": "1"}
"""For a statement that reads and writes little: a task more is a file more."""

REWRITTEN: Final = {"spark.databricks.delta.merge.deletionVectors.persistent": "false"}
"""For a MERGE into a table of one small file: it is written again, and there is no deletion vector to write.

That is a third job less, for this MERGE and for all that follow it: the table stays one file without a
vector.
"""

_WARM_PROPERTIES: Final = ", ".join(
    f"{literal(name)} = {literal(value)}" for name, value in ddl.PROPERTIES.items()
)


class Sessions:
    """The session of each thread."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._local = threading.local()

    def own(self) -> SparkSession:
        """This thread's own, with the settings of the given one."""
        session: SparkSession | None = getattr(self._local, "session", None)
        if session is None:
            session = own_session(self._spark)
            self._local.session = session
        return session


def own_session(spark: SparkSession) -> SparkSession:
    """A session beside the given one, with its settings but for those that change what is written.

    A new session starts with the static settings alone.
    """
    session = spark.newSession()
    known: Any = spark.conf.getAll
    for name, value in known.items():
        ours = name in PINNED or not name.startswith(("spark.sql.", "spark.databricks."))
        if not ours and session.conf.isModifiable(name):
            session.conf.set(name, value)
    pin(session)
    return session


def mark(app: str, lsn: Lsn, position: Lsn | None = None) -> dict[str, str]:
    """Settings by which a commit also sets an application transaction.

    Delta writes the one that a session names into whatever the session commits next, and skips a write whose
    mark is not above the table's; so a write at an LSN that the table already holds carries none.

    Args:
        app: whose mark.
        lsn: what the table holds after the write.
        position: the mark that the table has.
    """
    if position is not None and lsn <= position:
        return {}
    return {
        "spark.databricks.delta.write.txnAppId": app,
        "spark.databricks.delta.write.txnVersion": str(int(lsn)),
    }


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Settings of a session for a while."""
    before = {name: spark.conf.get(name, None) for name in wanted}
    try:
        for name, value in wanted.items():
            spark.conf.set(name, value)
        yield
    finally:
        put_back(spark, before)


def put_back(spark: SparkSession, before: Mapping[str, str | None]) -> None:
    """Settings of a session as they were; None where one was not set."""
    for name, former in before.items():
        if former is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, former)


def tune(session: SparkSession, *, small: bool) -> None:
    """Settings for a statement that reads little or much.

    Each window has other literals, so its generated code is new and would be compiled for some thousand rows;
    there interpreting is faster. Over some hundred thousand rows of a target it costs twice what generated
    code does. A MERGE reads its source twice; only a large one is worth keeping.
    """
    for name, (for_small, for_large) in _TUNED.items():
        session.conf.set(name, for_small if small else for_large)


def generate_code(session: SparkSession) -> None:
    """Have the next statement's code generated: the window is small, but many rows of its target are read."""
    for name in _CODE:
        session.conf.set(name, _TUNED[name][1])


def warm_up(spark: SparkSession) -> None:
    """Run one MERGE on a table of a row, so that classes are loaded before the first window is waited for."""
    folder = tempfile.mkdtemp(prefix="smelt-warm-")
    try:
        session = own_session(spark)
        tune(session, small=True)
        target = f"delta.{quote(folder + '/t')}"
        session.sql(
            f"CREATE TABLE {target} (id INT, v STRING) USING DELTA TBLPROPERTIES ({_WARM_PROPERTIES})"
        )
        session.sql(f"INSERT INTO {target} VALUES (1, 'a'), (2, 'b')")
        session.sql(
            f"MERGE INTO {target} AS t USING (SELECT 1 AS id, max('c') AS v GROUP BY 1) AS s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET t.v = s.v WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v)"
        ).collect()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
