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

On Databricks the reader is a process beside the driver's, which no session is given to. There a Spark Connect
server has to be named.

**When it fails.** An attempt that fails is run again by Spark, as often as ``spark.task.maxFailures`` says (a
local master: its second number, ``local[4,3]``). After the last one, or when the JVM is gone, the round of
copies ends with an error that heals, and the next round starts another session. Where Spark cannot be had at
all, the large tables wait for it, and nothing else (`bronze.snapshot.help`).

**When nobody answers.** A request to a server has no deadline, and may wait in a line that is dead. So it is
waited for on a thread of its own, and given up some seconds after it was cancelled: by whoever ends the
reader, or by bronze where nothing is copied for a long time. A task that still runs then leaves files that
the next reader removes.
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
from deltasmelt.pipelines.spark.session import (
    SPARK_STOP_SECONDS,
    active_session,
    require_pyspark,
    spark_session,
    stop_session,
)
from deltasmelt.pipelines.terminal.failures import foreign_text, without_secrets
from deltasmelt.pipelines.terminal.jvm_errors import in_words, spark_message
from deltasmelt.pipelines.terminal.logs import spark_log
from deltasmelt.silver.spark.access import access_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.snapshot.executors import Executors, ExecutorsAtHand
    from deltasmelt.pipelines.settings import Pipeline

_ATTEMPTS: Final = 4
"""Of each task on a local master that says nothing of it, as on a cluster."""
_OURS: Final = {
    "spark.app.name": "deltasmelt snapshots",
    "spark.driver.memory": "512m",  # rows pass by this JVM: they go from Python to the lake
    "spark.sql.codegen.wholeStage": "false",  # a job has one row: code made for it costs more than it
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Of a session of our own; the pipeline file's win."""
_GIVE_UP_SECONDS: Final = 5.0
"""After a job was cancelled, for its answer; and for the end of a session at a server."""
_LOOK_SECONDS: Final = 0.2
_SUBMITTED: Final = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS")
_RAISED: Final = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)(?:: (?P<said>.*))?$")


class SparkExecutors:
    """Runs functions in executors of a session; see `bronze.snapshot.executors.Executors`.

    Args:
        spark: the session. Nothing else may run in it: `cancel` ends all that does.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._cancelled_at: float | None = None
        self._cancelling = threading.Lock()

    def run(self, work: Callable[[], str]) -> str:
        """As the protocol says; one job.

        Raises:
            TransientError: ``snapshot-task-failed``.
        """
        if not access_of(self._spark).may_never_answer:
            return self._said(work)
        return answer_of(lambda: self._said(work), self._is_given_up)

    def cancel(self) -> None:
        """End all jobs of the session, without waiting; where it is gone, they have ended."""
        if self._cancelled_at is None:
            self._cancelled_at = time.monotonic()
        if self._cancelling.acquire(blocking=False):  # one request at a time
            threading.Thread(target=self._interrupt, name="smelt-executors-cancel", daemon=True).start()

    def _said(self, work: Callable[[], str]) -> str:
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

    def _interrupt(self) -> None:
        try:
            with suppress(Exception):
                self._spark.interruptAll()
        finally:
            self._cancelling.release()

    def _is_given_up(self) -> bool:
        at = self._cancelled_at
        return at is not None and time.monotonic() - at > _GIVE_UP_SECONDS


def answer_of(ask: Callable[[], str], given_up: Callable[[], bool]) -> str:
    """What a call returns or raises, unless it is given up before.

    Args:
        ask: is called on a thread of its own, which then may go on for nobody.
        given_up: whether nobody waits for it any more; asked now and then.

    Raises:
        TransientError: ``snapshot-task-failed``: it is given up.
    """
    answer: Future[str] = Future()

    def call() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            answer.set_exception(error)

    threading.Thread(target=call, name="smelt-executors-job", daemon=True).start()
    while not wait([answer], _LOOK_SECONDS).done:
        if given_up():
            raise _task_failed("it was cancelled, and the Spark Connect server did not answer")
    return answer.result()


def executors_of(pipeline: Pipeline) -> ExecutorsAtHand | None:
    """What makes Spark's executors ready for a pipeline's snapshots; None where its engine is another one.

    Raises:
        ConfigurationError: pyspark is not installed, what names a Spark Connect server is no address, or on
            Databricks there is none.
    """
    if pipeline.snapshot.engine != "spark":
        return None
    require_pyspark()
    otherwise = "leave snapshot.engine at local"
    require_server(pipeline.spark, code="executors-unfit", where="snapshot.engine", otherwise=otherwise)

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
    try:
        given = active_session()
        session = _start(settings, workers, log) if given is None else given
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
        yield SparkExecutors(session)
    finally:
        if given is None:
            may_wait = access_of(session).may_never_answer
            stop_session(session, patience=_GIVE_UP_SECONDS if may_wait else SPARK_STOP_SECONDS)


def _start(settings: dict[str, str], workers: int, log: Path) -> SparkSession:
    if address_of(settings) is not None:
        return remote_session(settings)
    for name in _SUBMITTED:  # of a driver that is another process
        os.environ.pop(name, None)
    master = settings.get("spark.master", f"local[{workers},{_ATTEMPTS}]")
    python = settings.get("spark.pyspark.python") or (sys.executable if is_local(master) else None)
    if python is not None:
        os.environ.setdefault("PYSPARK_PYTHON", python)  # pyspark reads it nowhere else
    return spark_session({**_OURS, **settings, "spark.master": master}, log=log, brief=True)


def _failure(error: Exception) -> SmeltError:
    """What kept a job from its end."""
    return _task_failed(said_of(_text(error)))


def _task_failed(why: str) -> TransientError:
    return TransientError(
        f"a task of a snapshot failed: {why}",
        code="snapshot-task-failed",
        where="Spark",
        remedy="tables that are not complete are copied again; if it persists, read Spark's log and the "
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


def said_of(text: str) -> str:
    """Of what Spark says of a task, the words of the Python error, or else the first line. Pure."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    raised = [(number, found) for number, line in enumerate(lines) if (found := _RAISED.match(line))]
    if raised:
        number, found = raised[-1]
        return without_secrets(found["said"] or lines[number])
    return without_secrets(lines[0]) if lines else "no message"
