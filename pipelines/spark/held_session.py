"""The session of a lake that a program has open: the one that is there, or one of our own when it is needed.

A session that something else started is used as it is, and never stopped. While work of ours runs in it, its
statements mean what they mean in our own (`lent`). A DataFrame runs later, under its owner's settings.

A session that has ended is forgotten as soon as a statement finds that out (`told`): what comes next starts
another one. Of somebody else's there may be no other; then it is found ended again.

**A lake in a catalog** is looked at through Spark alone. Whatever looks at it within `told` does so through a
session beside this one, as the commands do (`pipelines.spark.catalog_session`); it ends with `close`.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from bronze.lake.named.session import serve
from pipelines.spark.guest_sql import Views, old_versions
from pipelines.spark.jvm_death import death
from pipelines.spark.lent_session import lent
from pipelines.spark.session import active_session, spark_session, stop_session
from pipelines.terminal.logs import spark_log
from silver.run.masters import is_remote
from silver.run.sessions import own_session, release, work_beside

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from pipelines.settings import Pipeline

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
