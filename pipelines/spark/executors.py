"""Run functions of bronze in Spark's executors: the engine `snapshot.engine: spark` of snapshots.

A job is a DataFrame of one row in one partition, and a Python UDF that calls the function. So Spark returns
one result per job, the result of the completed attempt.

**Secrets.** The function's values (password, keys of the store) are pickled inside the UDF. Plan, event log,
UI and job names show the UDF's name alone, and no setting of Spark holds the values. Spark sends a UDF over
its own network, and may write the UDF to a local file: ``spark.network.crypto.enabled`` and
``spark.io.encryption.enabled`` encrypt both (docs/security.md).

**The session.** A process with a session uses this session unchanged. The reader has none, and starts a
session while large tables are copied: over Spark Connect with SPARK_REMOTE, else by the pipeline file's
section `spark`. On Databricks the user must name a Spark Connect server (`require_server`).

**A failed attempt.** Spark retries an attempt as often as ``spark.task.maxFailures`` allows (on a local
master: the second number of ``local[4,3]``). After the last attempt, or after the end of the JVM, the round
of copies ends with a transient error, and the next round starts a new session. If Spark is unavailable, only
the large tables wait for Spark (`bronze.snapshot.executor_pool`).

**A call that never answers.** A request to a server has no deadline, and a JVM may hang. So a separate thread
waits for the answer. The request is cancelled, and given up some seconds later, in two cases: the reader
ends, or bronze has copied nothing for a long time. A task that still runs then leaves files, and the next
reader removes the files.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import DefiniteError, SmeltError, TransientError
from deltasmelt.bronze.lake.catalog.session import is_local
from deltasmelt.bronze.lake.spark_errors import is_broken, of_grpc
from deltasmelt.pipelines.spark.remote import address_of, remote_session, require_server
from deltasmelt.pipelines.spark.session import require_pyspark, spark_session
from deltasmelt.pipelines.spark.session_owner import Owned, existing_session
from deltasmelt.pipelines.terminal.failures import foreign_text, without_secrets
from deltasmelt.pipelines.terminal.jvm_errors import in_words, spark_message
from deltasmelt.pipelines.terminal.logs import spark_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.snapshot.executors import ExecutorsAtHand
    from deltasmelt.pipelines.settings import Pipeline

_ATTEMPTS: Final = 4
"""Number of attempts of each task on a local master without a stated number, as on a cluster."""
_OURS: Final = {
    "spark.app.name": "deltasmelt snapshots",
    "spark.driver.memory": "512m",  # rows bypass this JVM: Python writes to the lake
    "spark.sql.codegen.wholeStage": "false",  # generating code costs more than a job's only row
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings of a session that the reader starts; the pipeline file overrides these settings."""
_GIVE_UP_SECONDS: Final = 5.0
"""Seconds to wait for the answer of a cancelled job."""
_LOOK_SECONDS: Final = 0.2
_SUBMITTED: Final = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS")
_RAISED: Final = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)(?:: (?P<said>.*))?$")


class SparkExecutors:
    """Executors of a Spark session that run functions; see `bronze.snapshot.executors.Executors`.

    The session has no further work: `cancel` ends all its jobs.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._cancelled_at: float | None = None
        self._cancelling = threading.Lock()

    def run(self, work: Callable[[], str]) -> str:
        """Run a function in an executor, as one job, and return the function's result.

        Raises:
            TransientError: ``snapshot-task-failed``: Spark could not complete the job.
        """
        return answer_of(lambda: self._answer(work), self._is_given_up)

    def cancel(self) -> None:
        """Cancel all jobs of the session, without waiting; the jobs of an ended session have ended."""
        if self._cancelled_at is None:
            self._cancelled_at = time.monotonic()
        if self._cancelling.acquire(blocking=False):  # one request at a time
            threading.Thread(target=self._interrupt, name="smelt-executors-cancel", daemon=True).start()

    def _answer(self, work: Callable[[], str]) -> str:
        from pyspark.sql.functions import col, udf  # noqa: PLC0415 - the reader must not load Spark

        def snapshot_task(_: int) -> str:
            return work()

        try:
            # A plain UDF: for `mapInArrow`, pyspark needs pandas on the driver and pyarrow on the executors,
            # and fails before a check could name a missing package. Nondeterministic: no rule of the
            # optimiser evaluates the UDF twice.
            task = udf(snapshot_task, "string", useArrow=False).asNondeterministic()
            frame = self._spark.range(0, 1, 1, 1).select(task(col("id")).alias("said"))
            said: str = frame.collect()[0]["said"]
        except Exception as error:  # noqa: BLE001 - Py4J raises every kind of error if the JVM has ended
            raise _task_failed(python_error(_text(error))) from None
        return said

    def _interrupt(self) -> None:
        try:
            with suppress(Exception):
                self._spark.interruptAll()
        finally:
            self._cancelling.release()

    def _is_given_up(self) -> bool:
        at = self._cancelled_at
        return at is not None and time.monotonic() - at > _GIVE_UP_SECONDS


def answer_of(work: Callable[[], str], given_up: Callable[[], bool]) -> str:
    """Return or raise the result of a call, unless the caller gives up before.

    `work` runs on a separate thread, which may continue after the caller has given up. `given_up` is called
    every fraction of a second.

    Raises:
        TransientError: ``snapshot-task-failed``: the caller gave up.
    """
    answer: Future[str] = Future()

    def call() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            answer.set_exception(error)

    threading.Thread(target=call, name="smelt-executors-job", daemon=True).start()
    while not wait([answer], _LOOK_SECONDS).done:
        if given_up():
            raise _task_failed("it was cancelled, and Spark did not answer")
    return answer.result()


def executors_of(pipeline: Pipeline) -> ExecutorsAtHand | None:
    """Return a function that prepares Spark's executors for a pipeline's snapshots; None for another engine.

    Raises:
        ConfigurationError: pyspark is not installed, the address of the Spark Connect server is wrong, or on
            Databricks the address is missing.
    """
    if pipeline.snapshot.engine != "spark":
        return None
    require_pyspark()
    otherwise = "leave snapshot.engine at local"
    require_server(pipeline.spark, code="executors-unfit", where="snapshot.engine", otherwise=otherwise)

    settings, workers = pipeline.spark, pipeline.snapshot.workers
    return lambda: spark_executors(settings, workers=workers, log=spark_log(pipeline.pipeline))


@contextmanager
def spark_executors(settings: dict[str, str], *, workers: int, log: Path) -> Iterator[SparkExecutors]:
    """Yield executors for a block; a session started for the block is stopped at the block's end.

    Raises:
        ConfigurationError, DefiniteError: see `spark_session` for the reasons.
    """
    try:
        taken = existing_session() or Owned(_start(settings, workers, log))
    except SmeltError:
        raise
    except Exception as error:
        raise DefiniteError(
            f"Spark cannot be started for snapshots: {foreign_text(in_words(error))}",
            code="executors-unfit",
            where="snapshot.engine",
            remedy="read Spark's log, or leave snapshot.engine at local",
        ) from error
    try:
        yield SparkExecutors(taken.spark)
    finally:
        # The reader's last commit needs the rest of the time in which the reader must end.
        taken.end(patience=_GIVE_UP_SECONDS)


def _start(settings: dict[str, str], workers: int, log: Path) -> SparkSession:
    if address_of(settings) is not None:
        return remote_session(settings)
    # Below spark-submit, the reader cannot reach the submitted driver, and starts an application of its own.
    for name in _SUBMITTED:  # variables of a driver in a separate process
        os.environ.pop(name, None)
    master = settings.get("spark.master", f"local[{workers},{_ATTEMPTS}]")
    python = settings.get("spark.pyspark.python") or (sys.executable if is_local(master) else None)
    if python is not None:
        os.environ.setdefault("PYSPARK_PYTHON", python)  # pyspark reads the path only here
    return spark_session({**_OURS, **settings, "spark.master": master}, log=log, brief=True)


def _task_failed(why: str) -> TransientError:
    return TransientError(
        f"a task of a snapshot failed: {why}",
        code="snapshot-task-failed",
        where="Spark",
        remedy="incomplete tables are copied again; if the error persists, read Spark's log and the "
        "executors' logs",
    )


def _text(error: Exception) -> str:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - the reader must not load Spark

    of_request = of_grpc(error)
    if of_request is not None:
        return ": ".join(of_request)
    if isinstance(error, PySparkException):
        return spark_message(error)
    if isinstance(error, OSError) or is_broken(error):
        return "Spark no longer answers: its JVM has ended, or cannot be reached"
    return str(in_words(error))


def python_error(text: str) -> str:
    """Return the message of the Python error in Spark's text about a task, or else the first line. Pure."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    raised = [(number, found) for number, line in enumerate(lines) if (found := _RAISED.match(line))]
    if raised:
        number, found = raised[-1]
        return without_secrets(found["said"] or lines[number])
    return without_secrets(lines[0]) if lines else "no message"
