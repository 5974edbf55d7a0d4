"""Decide whose session a command uses: an existing session is borrowed, otherwise a session is started.

`take` alone decides. Each kind has `work` (the session for a block) and `end`.

**Borrowed** (`Borrowed`): a session of a notebook or of Databricks. In a block of work, statements have the
meaning of a session of this project: the settings that decide the meaning are set, and restored afterwards.
The session's owner decides how statements run, and a guarded setting stays unchanged. A JVM's session is lent
itself. At a Spark Connect server the work runs in a clone, and no setting of the owner changes. At the end of
the block, the server ends every clone that the block made (`silver.spark.connect.Connect.work`). So no
statement still writes once the lake's lock is released, and no view remains. A borrowed session is never
stopped.

**Of a catalog** (`table_session`): only Spark can open the tables of a lake without a path. Commands read the
lake before they know whether they need Spark. So the first read starts the session, or takes the existing
session, and the rest of the command borrows this session. A session started for the catalog ends with the
process (`Borrowed.is_ours`).
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lake.catalog.session import is_local
from deltasmelt.bronze.lake.leases import let_expire
from deltasmelt.pipelines.spark.remote import is_elsewhere
from deltasmelt.pipelines.spark.session import (
    SPARK_STOP_SECONDS,
    active_session,
    set_all,
    spark_session,
    stop_session,
)
from deltasmelt.pipelines.terminal.interrupts import INTERRUPTIONS, Terminated, interruption_behind
from deltasmelt.pipelines.terminal.logs import spark_log
from deltasmelt.silver.spark.access import access_of, kill_jvm
from deltasmelt.silver.spark.connect import cancel_work

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from deltasmelt.pipelines.settings import Pipeline

_LOCK: Final = threading.RLock()
"""Guards the start: one of two threads without a session starts a session, the other borrows it."""
_CANCEL_SECONDS: Final = 5.0
_LOGGER: Final = logging.getLogger("deltasmelt.session")
_jvm: subprocess.Popen[bytes] | None = None
"""The JVM that this module started, also for a session of `table_session`."""
_started: str | None = None
"""Name of the session that `table_session` started (`Access.name`)."""
_child: tuple[str, SparkSession] | None = None  # name of the active session, and its child session


@dataclass(frozen=True, slots=True)
class Owned:
    """A session that this process started."""

    spark: SparkSession

    @contextmanager
    def work(self, section: Mapping[str, str]) -> Iterator[SparkSession]:  # noqa: ARG002 - the start set the section
        """Yield the session; an interrupt ends the block's statements at a server, too."""
        try:
            yield self.spark
        except BaseException as error:
            # Also behind the error of a clean-up, which cannot reach a JVM killed by `end_writing`.
            if interruption_behind(error, INTERRUPTIONS) is not None:
                access = access_of(self.spark)
                if access.process() is None:
                    # The caller then releases the lake's lock, so the server gets time to end all statements.
                    finish_within(SPARK_STOP_SECONDS, access.abandon)
                else:  # in the middle of a call, which would not answer
                    stop_session(self.spark, patience=0.0)
            raise

    def end(
        self,
        working: SparkSession | None = None,  # noqa: ARG002 - `Borrowed.end` uses the argument
        *,
        patience: float = SPARK_STOP_SECONDS,
    ) -> None:
        """Stop the session, with all its work; after `patience` seconds without the work's end."""
        stop_session(self.spark, patience=patience)


@dataclass(frozen=True, slots=True)
class Borrowed:
    """An existing session: of a notebook, of Databricks, or of `table_session`."""

    spark: SparkSession

    @property
    def is_ours(self) -> bool:
        """Check whether this process started the session for a catalog, and no program owns it."""
        return _started is not None and access_of(self.spark).name == _started

    @contextmanager
    def work(self, section: Mapping[str, str]) -> Iterator[SparkSession]:
        """Yield a session that interprets statements as a session of this project does.

        At the end of the block, the owner's session is as before. An interrupt restores nothing, because the
        JVM is in the middle of a call, and cancels the block's statements.
        """
        with access_of(self.spark).borrow(section) as (session, settings):
            try:
                set_all(session, settings)
                yield session
            except (KeyboardInterrupt, Terminated):
                self.end(session)
                raise

    def end(self, working: SparkSession | None = None, *, patience: float = _CANCEL_SECONDS) -> None:
        """Leave the session to its owner; `working` is the session of `work` if statements still run.

        The statements are cancelled at a server, and in a session of `table_session`; the owner of any other
        session of a JVM cancels its jobs.
        """
        if working is not None and self.is_ours:
            finish_within(patience, access_of(self.spark).cancel)
        elif working is not None and working is not self.spark:
            finish_within(patience, lambda: cancel_work(working))


def existing_session() -> Borrowed | None:
    """Return the session of this thread or of this process as borrowed; None without a session."""
    session = active_session()
    return None if session is None else Borrowed(session)


def take(
    pipeline: Pipeline, announce: Callable[[str], None] | None = None, *, brief: bool = False
) -> Owned | Borrowed:
    """Borrow the existing session, or start a session for the pipeline (`spark_session`)."""
    with _LOCK:
        return existing_session() or _start(pipeline, announce, brief=brief)


def runs_here(section: Mapping[str, str]) -> bool:
    """Check whether all tasks of the session that `take` returns run on this machine."""
    taken = existing_session()
    if taken is not None:
        return access_of(taken.spark).runs_locally
    return not is_elsewhere(section) and is_local(section.get("spark.master", "local"))


def table_session(pipeline: Pipeline) -> SparkSession:
    """Return the session by which commands open a catalog's tables: a child of the active session."""
    global _started, _child  # noqa: PLW0603 - of the process, as Spark's active session is
    with _LOCK:
        taken: Owned | Borrowed | None = existing_session()
        if taken is None:
            taken = _start(pipeline)
            _started = access_of(taken.spark).name
        access = access_of(taken.spark)
        if _child is None or _child[0] != access.name:
            # A child, because an owner's settings may change written values.
            _child = access.name, access.child()
        return _child[1]


def _start(
    pipeline: Pipeline, announce: Callable[[str], None] | None = None, *, brief: bool = False
) -> Owned:
    global _jvm  # noqa: PLW0603 - of the process, as Spark's active session is
    lake, log = pipeline.lake_address().path, spark_log(pipeline.pipeline)
    owned = Owned(spark_session(pipeline.spark, log=log, announce=announce, brief=brief, lake=lake))
    _jvm = access_of(owned.spark).process()
    return owned


def end_writing() -> None:
    """Make sure that nothing of this process commits once its locks are released; for an interruption.

    The JVM that this process started is dead when this returns. A request to a store may still be under way,
    so leases end by themselves. The statements at a server, and those of another program's session, are only
    cancelled, by `work`.
    """
    let_expire()
    if _jvm is not None:
        kill_jvm(_jvm)


def finish_within(seconds: float, work: Callable[[], None]) -> None:
    """Run a last work with Spark on a separate thread for at most some seconds; log an error of the work.

    The caller's thread may have been interrupted within a call of Spark, and Spark may never answer.
    """

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the caller ends anyhow
            _LOGGER.info("Spark did not end normally: %s", error)

    thread = threading.Thread(target=run, name="smelt-finish", daemon=True)
    thread.start()
    thread.join(seconds)
