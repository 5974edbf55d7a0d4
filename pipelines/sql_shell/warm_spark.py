"""A Spark session started beside the terminal, and cancellation of running statements.

The terminal's thread never calls into the JVM. Ctrl-C could strike in the middle of a call and break the
call's connection. So a statement runs in a separate thread, under a separate tag, and the terminal's thread
only waits. At Ctrl-C a further thread cancels the tag.
"""

from __future__ import annotations

import logging
import threading
import uuid
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from deltasmelt.pipelines.spark.jvm_death import death
from deltasmelt.pipelines.spark.session import SPARK_STOP_SECONDS
from deltasmelt.pipelines.spark.session_owner import finish_within, take
from deltasmelt.pipelines.terminal.jvm_errors import in_words
from deltasmelt.pipelines.terminal.logs import spark_log
from deltasmelt.silver.spark.access import access_of
from deltasmelt.silver.spark.lazy_session import LazySession

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from deltasmelt.pipelines.settings import Pipeline

Result = TypeVar("Result")

_LOGGER = logging.getLogger("deltasmelt.sql")
_RETRY_SECONDS: Final = 0.3
"""Seconds between two attempts to cancel."""
_PATIENCE: Final = 3
"""Number of the Ctrl-C that abandons a statement: Spark does not answer."""


class CancelledError(Exception):
    """Raised for a statement cancelled by the user."""


class SparkLost(Exception):  # noqa: N818 - it carries the error that ends the shell
    """Raised after the loss of Spark; the cause has the reason."""


class Runner(Protocol):
    """Runs work with Spark."""

    def run(self, work: Callable[[SparkSession], Result]) -> Result:
        """Run the work to its end."""

    @property
    def cancelled(self) -> bool:
        """True after a cancellation of the running work: drop the rows still arriving."""


class InTurn:
    """Runs work in the caller's thread, for a script, which Ctrl-C ends as a whole.

    `waiting` returns a block for showing a wait on a terminal.
    """

    cancelled: Final = False

    def __init__(self, spark: SparkSession, waiting: Callable[[], AbstractContextManager[None]]) -> None:
        self._spark = spark
        self._waiting = waiting

    def run(self, work: Callable[[SparkSession], Result]) -> Result:
        """Run the work to its end."""
        with self._waiting():
            return work(self._spark)


class WithoutSpark:
    """Runs nothing: for a script of meta-commands without Spark."""

    cancelled: Final = False

    def run(self, work: Callable[[SparkSession], Result]) -> Result:
        """Refuse: no meta-command of such a script needs Spark."""
        raise NotImplementedError(f"there is no Spark for {work}")


class WarmSpark:
    """A session that is taken at once, in the background.

    `announce` receives the slow activity from another thread, and at the end nothing.
    """

    def __init__(self, pipeline: Pipeline, announce: Callable[[str], None]) -> None:
        self._pipeline = pipeline
        self._announce = announce
        self._log = spark_log(pipeline.pipeline)
        self._task: _Task | None = None
        self._held = ExitStack()
        self._lazy = LazySession(self._start)
        self._lazy.prepare()

    @property
    def up(self) -> bool:
        """True after the start's success or failure."""
        return self._lazy.ended.is_set()

    @property
    def cancelled(self) -> bool:
        """True after a cancellation of the running work."""
        return self._task is not None and self._task.cancelled.is_set()

    def run(self, work: Callable[[SparkSession], Result]) -> Result:
        """Run work in a separate thread after the session's start; Ctrl-C cancels the work.

        Raises:
            CancelledError: Ctrl-C cancelled the work.
            SparkLost: Spark did not start, or its JVM has ended.
            KeyboardInterrupt: repeated Ctrl-C; the work is abandoned.
        """
        results: list[Result] = []
        task = self._task = _Task(self, lambda spark: results.append(work(spark)))
        presses = 0
        while not task.done.is_set():
            try:
                task.done.wait()
            except KeyboardInterrupt:
                presses += 1
                if presses >= _PATIENCE:
                    raise
                task.cancel()
        if task.cancelled.is_set():
            raise CancelledError
        if task.error is not None:
            self._raise(task.error)
        return results[0]

    def stop(self) -> None:
        """Stop the session; wait for a session still starting, which holds files to remove."""
        self._lazy.ended.wait()
        finish_within(2 * SPARK_STOP_SECONDS, self._held.close)

    def wait(self, seconds: float) -> bool:
        """Wait for the start; return whether the start has ended."""
        return self._lazy.ended.wait(seconds)

    def session(self) -> SparkSession:
        """Return the session; raise a SparkLost if it did not start."""
        try:
            return self._lazy.get()
        except Exception as error:
            raise SparkLost from error

    def functions(self) -> tuple[str, ...]:
        """Return the names of Spark's functions after the session's start; empty after a failed start."""
        self._lazy.ended.wait()
        if not self._lazy.started:
            return ()
        names = (row[0] for row in self._lazy.get().sql("SHOW SYSTEM FUNCTIONS").collect())
        return tuple(name for name in names if name.isidentifier())

    def _start(self) -> SparkSession:
        try:
            taken = take(self._pipeline, self._announce)
            self._held.callback(taken.end)
            return self._held.enter_context(taken.work(self._pipeline.spark))
        except BaseException as error:  # noqa: BLE001 - pyspark exits where it finds no Spark
            failure = in_words(error)  # now, while the JVM may still have the words
            raise failure if isinstance(failure, Exception) else RuntimeError(repr(failure)) from None
        finally:
            with suppress(RuntimeError):  # the prompt's loop has just ended
                self._announce("")

    def _raise(self, error: BaseException) -> None:
        if isinstance(error, SparkLost):
            raise error
        server_death = death(error, self._pipeline.spark, self._log) if isinstance(error, Exception) else None
        if server_death is not None:
            raise SparkLost from server_death
        raise error


class _Task:
    """One piece of work and its thread."""

    def __init__(self, warm: WarmSpark, work: Callable[[SparkSession], None]) -> None:
        self.done = threading.Event()
        self.cancelled = threading.Event()
        self.error: BaseException | None = None
        self._warm = warm
        self._work = work
        self._tag = f"smelt-{uuid.uuid4().hex}"
        threading.Thread(target=self._run, name="statement", daemon=True).start()

    def cancel(self) -> None:
        """Request the cancellation of the work as soon as possible."""
        if not self.cancelled.is_set():
            self.cancelled.set()
            threading.Thread(target=self._interrupt, name="cancel", daemon=True).start()

    def _run(self) -> None:
        try:
            while not self._warm.wait(0.1):
                if self.cancelled.is_set():
                    return
            if self.cancelled.is_set():
                return
            spark = self._warm.session()
            access = access_of(spark)
            # A tag of jobs (`SparkContext.addJobTag`). A tag of the session (`SparkSession.addTag`) would
            # miss the jobs of `toLocalIterator`, which run in a thread of the JVM. A Spark Connect server has
            # session tags alone, and misses no job; clones of the session (`silver.spark.connect`) are
            # cancelled whole.
            access.tag(self._tag)
            try:
                self._work(spark)
            except BaseException:
                access.cancel_tag(self._tag)  # the pager was left, say: nobody asks for further rows
                raise
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self.error = in_words(error)
        finally:
            self.done.set()

    def _interrupt(self) -> None:
        # Repeatedly: between two jobs, nothing can be cancelled.
        while self._warm.up:
            try:
                access_of(self._warm.session()).cancel_tag(self._tag)
            except Exception:
                _LOGGER.exception("a statement could not be cancelled")
                return
            if self.done.wait(_RETRY_SECONDS):
                return
