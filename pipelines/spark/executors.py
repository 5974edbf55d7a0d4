"""Spark as the engine of snapshots (`snapshot.engine: spark`): functions of bronze, run by executors.

**One row, one function.** A job is a DataFrame of one row in one partition, and a Python UDF that calls the
function. So Spark gives each job one result, that of the attempt which came to its end. It is a plain UDF,
for that asks the least of executors and driver: for `mapInArrow` pyspark wants pandas on the driver and
pyarrow on the executors, before anybody could say what they lack. It is marked as nondeterministic, so that
no rule of the optimiser evaluates it twice.

**Secrets.** The function's values (password, keys of the store) travel pickled inside the UDF. Plan, event
log, UI and job names have the UDF's name alone, and no setting of Spark holds them. Spark sends a UDF over
its own network, and may keep it in a local file: ``spark.network.crypto.enabled`` and
``spark.io.encryption.enabled`` encrypt both (docs/security.md).

**The session.** The reader has none, so one is started for as long as large tables are copied: with
SPARK_REMOTE over Spark Connect, else by the pipeline file's section `spark`. In a process that has a session,
that one is used and left as it is. A reader below spark-submit is a process of its own. The driver that was
submitted is not within its reach, so it starts its own application.

**When it fails.** An attempt that fails is run again by Spark, as often as ``spark.task.maxFailures`` says (a
local master: its second number, ``local[4,3]``). After the last one, or when the JVM is gone, the round of
copies ends with an error that heals, and the next round starts another session.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from bronze.errors import SmeltError, TransientError
from bronze.lake.named.session import is_local
from pipelines.spark.session import active_session, require_pyspark, spark_session, stop_session
from pipelines.terminal.failures import without_secrets
from pipelines.terminal.jvm_errors import in_words, spark_message
from pipelines.terminal.logs import spark_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import SparkSession

    from bronze.snapshot.executors import Executors, ExecutorsAtHand
    from pipelines.settings import Pipeline

_ATTEMPTS: Final = 4
"""Of each task on a local master that says nothing of it, as on a cluster."""
_OURS: Final = {
    "spark.app.name": "deltasmelt snapshots",
    "spark.driver.memory": "512m",  # rows pass by this JVM: they go from Python to the lake
    "spark.sql.codegen.wholeStage": "false",  # a job has one row: code made for it costs more than it
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Of a session of our own; the pipeline file's win."""
_SUBMITTED: Final = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS")
_RAISED: Final = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)(?:: (?P<said>.*))?$")


class SparkExecutors:
    """Runs functions in executors of a session; see `bronze.snapshot.executors.Executors`.

    Args:
        spark: the session. Nothing else may run in it: `cancel` ends all that does.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def run(self, work: Callable[[], str]) -> str:
        """As the protocol says; one job.

        Raises:
            TransientError: ``snapshot-task-failed``.
        """
        from pyspark.sql.functions import col, udf  # noqa: PLC0415 - the reader must not load Spark

        def snapshot_task(_: int) -> str:
            return work()

        try:
            task = udf(snapshot_task, "string", useArrow=False).asNondeterministic()
            frame = self._spark.range(0, 1, 1, 1).select(task(col("id")).alias("said"))
            said: str = frame.collect()[0]["said"]
        except Exception as error:  # noqa: BLE001 - Py4J raises of every kind where the JVM is gone
            raise _failure(error) from None
        return said

    def cancel(self) -> None:
        """End all jobs of the session; where it is gone, they have ended."""
        with suppress(Exception):
            self._spark.interruptAll()


def executors_of(pipeline: Pipeline) -> ExecutorsAtHand | None:
    """What makes Spark's executors ready for a pipeline's snapshots; None where its engine is another one.

    Raises:
        ConfigurationError: pyspark is not installed.
    """
    if pipeline.snapshot.engine != "spark":
        return None
    require_pyspark()

    def ready() -> AbstractContextManager[Executors]:
        workers, log = pipeline.snapshot.workers, spark_log(pipeline.pipeline)
        return spark_executors(pipeline.spark, workers=workers, log=log)

    return ready


@contextmanager
def spark_executors(settings: dict[str, str], *, workers: int, log: Path) -> Iterator[SparkExecutors]:
    """Executors for a block; a session that is started for it is stopped at its end.

    Args:
        settings: the pipeline file's `spark` section.
        workers: tasks at once.
        log: file for Spark's log.

    Raises:
        ConfigurationError, DefiniteError: as `spark_session`.
    """
    session = active_session()
    if session is not None:
        yield SparkExecutors(session)
        return
    session = _start(settings, workers, log)
    try:
        yield SparkExecutors(session)
    finally:
        stop_session(session)


def _start(settings: dict[str, str], workers: int, log: Path) -> SparkSession:
    remote = os.environ.get("SPARK_REMOTE") or settings.get("spark.remote")
    if remote:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - the reader must not load Spark

        session: SparkSession = SparkSession.builder.remote(remote).create()
        return session
    for name in _SUBMITTED:  # of a driver that is another process
        os.environ.pop(name, None)
    master = settings.get("spark.master", f"local[{workers},{_ATTEMPTS}]")
    python = settings.get("spark.pyspark.python") or (sys.executable if is_local(master) else None)
    if python is not None:
        os.environ.setdefault("PYSPARK_PYTHON", python)  # pyspark reads it nowhere else
    return spark_session({**_OURS, **settings, "spark.master": master}, log=log, brief=True)


def _failure(error: Exception) -> SmeltError:
    """What kept a job from its end."""
    return TransientError(
        f"a task of a snapshot failed: {said_of(_text(error))}",
        code="snapshot-task-failed",
        where="Spark",
        remedy="tables that are not complete are copied again; if it persists, read Spark's log and the "
        "executors' logs",
    )


def _text(error: Exception) -> str:
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]  # noqa: PLC0415 - it is loaded
    from pyspark.errors import PySparkException  # noqa: PLC0415

    if isinstance(error, PySparkException):
        return spark_message(error)
    if isinstance(error, Py4JNetworkError | OSError):
        return "Spark no longer answers: its JVM has ended, or cannot be reached"
    return str(in_words(error))


def said_of(text: str) -> str:
    """Of what Spark says of a task, the words of the Python error, or else the first line. Pure."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    raised = [(number, found) for number, line in enumerate(lines) if (found := _RAISED.match(line))]
    if raised:
        number, found = raised[-1]
        return without_secrets(found["said"] or lines[number])
    return without_secrets(lines[0]) if lines else "no message"
