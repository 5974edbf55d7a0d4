"""Use sessions that the caller did not start: borrowed, held open, or of a catalog.

**Borrowed** (`Borrowed`): a session of a notebook or of Databricks, while work of this project runs in the
session. Statements of the work have the meaning of a session of this project: the settings that decide the
meaning are set, and restored afterwards. The session's owner decides how statements run, and a guarded
setting stays unchanged. A JVM's session is lent itself. At a Spark Connect server the work runs in a clone,
and the work changes no setting of the owner. At the end of the block, the server ends the clone and each
child session of the clone. So no statement still writes once the lake's lock is released, and no view
remains.

**Held** (`HeldSession`): the session of a lake that a program has open. An existing session is borrowed, and
never stopped. Otherwise the first use starts a session. A DataFrame runs later, under the settings of its
session's owner. When a statement finds that the session has ended, the program forgets the session
(`death_reported`), and the next call starts a new session. A borrowed session has no successor; the next call
then finds again that the session has ended.

**Of a catalog** (`table_session`): only Spark can open the tables of a lake without a path. Commands read the
lake before they know whether they need Spark. So the first read starts the session, or takes the existing
session. The rest of the command finds this session as the active session. A session started for the catalog
ends with the process (`is_ours`). The tables are opened in a child of the session, because an owner's
settings may change written values.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.pipelines.spark.borrowed_sql import Views, old_versions
from deltasmelt.pipelines.spark.jvm_death import death
from deltasmelt.pipelines.spark.remote import REMOTE
from deltasmelt.pipelines.spark.session import active_session, set_all, spark_session, stop_session
from deltasmelt.pipelines.terminal.interrupts import Terminated
from deltasmelt.pipelines.terminal.logs import spark_log
from deltasmelt.silver.spark.access import access_of
from deltasmelt.silver.spark.connect import Connect, cancel_work

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.pipelines.settings import Pipeline

_LOCK: Final = threading.Lock()
_CANCEL_SECONDS: Final = 5.0
_LOGGER: Final = logging.getLogger("deltasmelt.session")
_started: str | None = None
"""Name of the session that `table_session` started (`Access.name`)."""
_child: tuple[str, SparkSession] | None = None
"""Name of the active session, and its child session."""


def table_session(pipeline: Pipeline) -> SparkSession:
    """Return the session by which commands open a catalog's tables: a child of the active session."""
    global _started, _child  # noqa: PLW0603 - of the process, as Spark's active session is
    with _LOCK:  # of two threads that read first, one starts a session
        found = active_session()
        if found is None:
            found = spark_session(pipeline.spark, log=spark_log(pipeline.pipeline))
            _started = access_of(found).name
        name = access_of(found).name
        if _child is None or _child[0] != name:
            _child = name, access_of(found).child()
        return _child[1]


@dataclass(frozen=True, slots=True)
class Borrowed:
    """An existing session: of a notebook, of Databricks, or of `table_session`."""

    spark: SparkSession

    @property
    def is_ours(self) -> bool:
        """Check whether this process started the session for a catalog, and no program owns it."""
        return _started is not None and access_of(self.spark).name == _started

    @property
    def end_is_silent(self) -> bool:
        """Check whether no owner but this process learns that the session has ended."""
        return self.is_ours or isinstance(access_of(self.spark), Connect)

    @contextmanager
    def work(self, section: Mapping[str, str]) -> Iterator[SparkSession]:
        """Yield a session that interprets statements as a session of this project does.

        At the end of the block, the owner's session is as before; after an interrupt nothing is restored,
        because the JVM is in the middle of a call.

        Args:
            section: the pipeline file's `spark` section.
        """
        wanted = {name: value for name, value in section.items() if name != REMOTE}
        with access_of(self.spark).borrow(wanted, (KeyboardInterrupt, Terminated)) as (session, settings):
            set_all(session, settings)
            yield session

    def cancel(self, work: SparkSession) -> None:
        """Cancel the jobs of a session of `table_session`, or the work in an owner's session at a server.

        A separate thread sends the request: the caller's thread may have been interrupted within a call of
        Spark.

        Args:
            work: the session that `work` yielded.
        """
        if not self.is_ours and work is self.spark:
            return
        asking = threading.Thread(target=self._cancel, args=(work,), name="smelt-cancel", daemon=True)
        asking.start()
        asking.join(_CANCEL_SECONDS)

    def _cancel(self, work: SparkSession) -> None:
        try:
            if self.is_ours:
                access_of(self.spark).cancel()
            else:
                cancel_work(work)
        except Exception as error:  # noqa: BLE001 - this process ends anyhow
            _LOGGER.info("what still runs could not be cancelled: %s", error)


class HeldSession:
    """One session from its first use to `close`.

    Args:
        pipeline: supplies the `spark` section and the lake.

    Attributes:
        views: the session's views of the lake's tables.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._place = pipeline.lake_address().place
        self._session: SparkSession | None = None
        self._child: SparkSession | None = None
        self._lock = threading.RLock()
        self._log: Path | None = None
        self.views = Views()
        self._undo = ExitStack()

    def get(self) -> SparkSession:
        """Return the session; the first call borrows or starts the session.

        Raises:
            ConfigurationError: Java is missing or of a wrong version, or pyspark is not installed.
            DefiniteError: Delta's jars are unavailable, or the JVM does not start.
        """
        with self._lock:  # any thread may be the first to open a catalog's table
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
        """Return a child session with deltasmelt's own settings, for opening tables of a catalog."""
        with self._lock:
            session = self.get()
            if self._child is None:
                self._child = access_of(session).child()
                self._undo.callback(access_of(self._child).release)
            return self._child

    @contextmanager
    def working(self) -> Iterator[SparkSession]:
        """Yield the session for a block of deltasmelt's own work.

        Raises:
            DefiniteError: the session has ended; see `death_reported`.
        """
        with self.death_reported():
            session = self.get()
            theirs = self._log is None
            given = self._pipeline.spark
            with Borrowed(session).work(given) if theirs else access_of(session).work() as ours:
                yield ours

    @contextmanager
    def death_reported(self, of: SparkSession | None = None) -> Iterator[None]:
        """Raise the block's error, or ``spark-died`` if the session has ended.

        Within the block, this session opens the tables of a catalog's lake.

        Args:
            of: the session that the block uses; None for the newest session.

        Raises:
            DefiniteError: ``spark-died``: the JVM ended, or does not answer; or the server ended the session.
        """
        try:
            if self._place.serve(self._for_tables):  # a further user of this lake may have set a session
                with self._staying_active():
                    yield
            else:
                yield
        except Exception as error:
            death_error = death(error, self._pipeline.spark, self._log or spark_log(self._pipeline.pipeline))
            if death_error is None:
                raise
            if of is None or of is self._session:
                self.close()
            raise death_error from error

    @contextmanager
    def _staying_active(self) -> Iterator[None]:
        """Restore this thread's active session after a block.

        `createDataFrame`, by which deltasmelt writes rows into a catalog's tables, activates its own session.
        The next caller of the active session would get this child session, without the owner's views.
        """
        before = active_session()
        try:
            yield
        except Exception:
            with suppress(Exception):  # the session may have ended
                self._activate(before)
            raise
        self._activate(before)

    def _activate(self, session: SparkSession | None) -> None:
        """Make a session the active session again."""
        if session is None or active_session() is session or not access_of(session).shares_views:
            return  # at a server the active session never changed
        session.createDataFrame([], "nothing INT")

    def close(self) -> None:
        """Stop an own session; restore a borrowed session. The next call of `get` gets a new session."""
        with self._lock:
            try:
                self._undo.close()
            except Exception as error:  # noqa: BLE001 - the owner may have stopped the session meanwhile
                _LOGGER.info("Spark's settings were not restored: %s", error)
            self._session = self._child = self._log = None
            self.views = Views()
