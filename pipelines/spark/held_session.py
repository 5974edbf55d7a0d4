"""The session of a lake that a program has open: the one that is there, or one of our own when it is needed.

A session that something else started is used as it is, and never stopped. While work of ours runs in it, its
statements mean what they mean in our own (`lent`). A DataFrame runs later, under its owner's settings.

A session that has ended is forgotten as soon as a statement finds that out (`told`): what comes next starts
another one. Of somebody else's there may be no other; then it is found ended again.

**A lake in a catalog** is looked at through Spark alone. Whatever looks at it within `told` does so through a
session beside this one, as the commands do (`pipelines.spark.held_session`); it ends with `close`.

The session through which the tables of a catalog are opened, for a lake without a path.

Commands look at the lake before they know whether they need Spark. Of a catalog's tables nothing can be seen
without it. So the first look starts the session, or takes the one that is there, and whatever the command
does afterwards finds it as the active one. One that was started here ends with the process (`is_ours`).

The tables are opened in a session beside it (`silver.spark.access.own_session`). An owner's own settings may
change what is written; its own mark would have Delta skip all commits but the first.

A session of somebody else's (a notebook's, Databricks') while work of ours runs in it.

Its statements mean what they mean in our own: what decides that is set, and put back. How they are run is
left to the session's owner. A setting that the session guards stays as it is.

**At a Spark Connect server** the work runs in a clone. The owner's settings stay as they are meanwhile. When
the block ends, however it does, the server ends the clone and all that was made beside it. So nothing is left
that still writes once the lake's lock is given back, and no view is left.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.lake.catalog.session import serve
from deltasmelt.pipelines.spark.guest_sql import Views, old_versions
from deltasmelt.pipelines.spark.jvm_death import death
from deltasmelt.pipelines.spark.launch import refused
from deltasmelt.pipelines.spark.remote import REMOTE
from deltasmelt.pipelines.spark.session import active_session, spark_session, stop_session
from deltasmelt.pipelines.terminal.interrupts import Terminated
from deltasmelt.pipelines.terminal.jvm_errors import spark_message
from deltasmelt.pipelines.terminal.logs import spark_log
from deltasmelt.silver.spark.access import own_session, release, work_beside
from deltasmelt.silver.spark.session_kind import is_remote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.pipelines.settings import Pipeline

_LOCK: Final = threading.Lock()
_CANCEL_SECONDS: Final = 5.0
_SESSION_LOGGER = logging.getLogger("deltasmelt.run")
_started: str | None = None
"""What was started here (`_name_of`)."""
_beside: tuple[str, SparkSession] | None = None
"""What is active, and a session beside it."""


def serve_catalog(pipeline: Pipeline) -> None:
    """Have the tables of a lake without a path opened through a session of this process.

    Args:
        pipeline: of any lake; one with a path needs none.
    """
    lake = pipeline.lake_address()
    if lake.catalog is None:
        return

    def session() -> SparkSession:
        from deltasmelt.pipelines.spark.session import active_session, spark_session  # noqa: PLC0415 - loads Spark
        from deltasmelt.pipelines.terminal.logs import spark_log  # noqa: PLC0415
        from deltasmelt.silver.spark.access import own_session  # noqa: PLC0415

        global _started, _beside  # noqa: PLW0603 - of the process, as Spark's active session is
        with _LOCK:  # of two threads that look first, one starts it
            found = active_session()
            if found is None:
                found = spark_session(pipeline.spark, log=spark_log(pipeline.pipeline))
                _started = _name_of(found)
            if _beside is None or _beside[0] != _name_of(found):
                _beside = _name_of(found), own_session(found)
            return _beside[1]

    serve(lake.catalog, session)


def _name_of(session: SparkSession) -> str:
    """Names an application, or a session at a server; PySpark gives another object for it each time."""
    from deltasmelt.silver.spark.session_kind import is_remote  # noqa: PLC0415 - loads Spark

    remote: Any = session
    return str(remote.session_id if is_remote(session) else session.sparkContext.applicationId)


def is_ours(session: SparkSession) -> bool:
    """Whether a session was started here, and is nobody else's."""
    return _started is not None and _name_of(session) == _started


def cancel(session: SparkSession, work: SparkSession) -> None:
    """Have a session that was started here run nothing any more, and of another nothing of ours at a server.

    A thread of its own asks for it: the caller's may have been interrupted within a call of Spark.

    Args:
        session: the session.
        work: in which our work runs (`pipelines.spark.held_session`): itself, or at a server one beside it.
    """
    if not is_ours(session) and work is session:
        return
    asking = threading.Thread(target=_cancel, args=(session, work), name="smelt-cancel", daemon=True)
    asking.start()
    asking.join(_CANCEL_SECONDS)


def _cancel(session: SparkSession, work: SparkSession) -> None:
    from deltasmelt.silver.spark.access import interrupt_clones  # noqa: PLC0415
    from deltasmelt.silver.spark.session_kind import is_remote  # noqa: PLC0415 - loads Spark

    try:
        if not is_ours(session):
            interrupt_clones(work)
        elif is_remote(session):
            session.interruptAll()
            interrupt_clones()
        else:
            session.sparkContext.cancelAllJobs()
    except Exception as error:  # noqa: BLE001 - this process ends anyhow
        _SESSION_LOGGER.info("what still runs could not be cancelled: %s", error)


@contextmanager
def lent(session: SparkSession, given: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session for work of ours that interprets statements as our own would.

    Args:
        session: theirs; as it was before, once the block ends.
        given: the pipeline file's `spark` section.
    """
    if is_remote(session):
        with work_beside(session) as ours:  # which has what decides that
            _set(ours, {name: value for name, value in given.items() if name != REMOTE})
            yield ours
        return
    from deltasmelt.silver.spark.semantics import PINNED, legacy, pin  # noqa: PLC0415 - the reader must not load Spark
    from deltasmelt.silver.spark.tuning import put_back  # noqa: PLC0415

    before = _before(session, {**PINNED, **legacy(session), **given})
    try:
        pin(session)
        _set(session, {name: value for name, value in given.items() if name in before})
        yield session
    except (KeyboardInterrupt, Terminated):
        raise  # the connection to the JVM is in the middle of a call, and would take its answer for another's
    except BaseException:
        put_back(session, before)
        raise
    put_back(session, before)


def _set(session: SparkSession, given: Mapping[str, str]) -> None:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - the reader must not load Spark

    from deltasmelt.silver.spark.tuning import change  # noqa: PLC0415

    for name, value in given.items():
        try:
            change(session, name, value)
        except PySparkException as error:
            raise refused(name, spark_message(error).partition("\n")[0]) from None


def _before(session: SparkSession, names: Iterable[str]) -> dict[str, str | None]:
    """Settings that may be set, as they are."""
    return {name: session.conf.get(name, None) for name in names if session.conf.isModifiable(name)}


_LOGGER: Final = logging.getLogger("deltasmelt.session")


class HeldSession:
    """One session from its first use to `close`.

    Args:
        pipeline: whose `spark` section holds, and whose lake is read.

    Attributes:
        views: of the lake's tables, which the session has.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._catalog = pipeline.lake_address().catalog
        self._session: SparkSession | None = None
        self._beside: SparkSession | None = None
        self._lock = threading.RLock()
        self._log: Path | None = None
        self.views = Views()
        self._undo = ExitStack()

    def get(self) -> SparkSession:
        """The session.

        Raises:
            ConfigurationError: Java is missing or of an unfit version, or pyspark is not installed.
            DefiniteError: Delta's jars cannot be had, or the JVM does not start.
        """
        with self._lock:  # of a catalog's tables, any thread may be the first to ask
            if self._session is None:
                session = active_session()
                if session is None:
                    self._log = spark_log(self._pipeline.pipeline)
                    lake = self._pipeline.lake_address().path
                    session = spark_session(self._pipeline.spark, log=self._log, lake=lake)
                    self._undo.callback(stop_session, session)
                else:
                    self._undo.enter_context(old_versions(session))
                    self._undo.callback(self.views.drop, session)
                self._session = session
            return self._session

    def _for_tables(self) -> SparkSession:
        """A session beside it, through which tables of a catalog are opened: with settings of our own."""
        with self._lock:
            session = self.get()
            if self._beside is None:
                self._beside = own_session(session)
                self._undo.callback(release, self._beside)
            return self._beside

    @contextmanager
    def working(self) -> Iterator[SparkSession]:
        """The session for a block of work of ours.

        Raises:
            DefiniteError: as `told`.
        """
        with self.told():
            session = self.get()
            theirs = self._log is None
            with lent(session, self._pipeline.spark) if theirs else work_beside(session) as ours:
                yield ours

    @contextmanager
    def told(self, of: SparkSession | None = None) -> Iterator[None]:
        """Raise what ends the block; where the session has ended, that.

        In it, the tables of a lake in a catalog are opened through this session.

        Args:
            of: the session that the block uses; None: the newest one.

        Raises:
            DefiniteError: ``spark-died``: the JVM ended, or does not answer; or the server ended the session.
        """
        try:
            if self._catalog is None:
                yield
            else:
                serve(self._catalog, self._for_tables)  # another lake of the catalog may have served it since
                with self._staying_active():
                    yield
        except Exception as error:
            told = death(error, self._pipeline.spark, self._log or spark_log(self._pipeline.pipeline))
            if told is None:
                raise
            if of is None or of is self._session:
                self.close()
            raise told from error

    @contextmanager
    def _staying_active(self) -> Iterator[None]:
        """A block after which this thread's active session is the one that it was.

        `createDataFrame`, by which rows are written into a catalog's tables, makes the session active that it
        is called on. Whoever asks for the active one next would get that beside, without the owner's views.
        """
        before = active_session()
        try:
            yield
        except Exception:
            with suppress(Exception):  # of a session that has ended
                self._activate(before)
            raise
        self._activate(before)

    def _activate(self, session: SparkSession | None) -> None:
        """Make a session the active one again; at a server none was made active by that."""
        if session is None or is_remote(session) or active_session() is session:
            return
        session.createDataFrame([], "nothing INT")

    def close(self) -> None:
        """Stop the session if it is our own; leave any other as it was. What comes next gets another one."""
        with self._lock:
            try:
                self._undo.close()
            except Exception as error:  # noqa: BLE001 - of a session that its owner has stopped meanwhile
                _LOGGER.info("Spark's settings were not put back: %s", error)
            self._session = self._beside = self._log = None
            self.views = Views()
