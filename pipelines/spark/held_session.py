"""Hold the session of a lake that a program has open.

The first use borrows or starts the session (`pipelines.spark.session_owner.take`). When a statement finds
that the session has ended, the program forgets the session (`HeldSession.death_reported`), and the next call
starts a new session. A borrowed session has no successor; the next call then finds again that the session has
ended.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import SmeltError
from deltasmelt.pipelines.spark.borrowed_sql import OLD_VERSIONS, Views
from deltasmelt.pipelines.spark.jvm_death import CODE, death
from deltasmelt.pipelines.spark.session import active_session
from deltasmelt.pipelines.spark.session_owner import Borrowed, Owned, take
from deltasmelt.pipelines.terminal.logs import spark_log
from deltasmelt.silver.spark.access import access_of
from deltasmelt.silver.spark.tuning import settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from deltasmelt.pipelines.settings import Pipeline

_LOGGER: Final = logging.getLogger("deltasmelt.session")


class HeldSession:
    """One session from its first use to `close`.

    `views` are the session's views of the lake's tables.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._place = pipeline.lake_address().place
        self._taken: Owned | Borrowed | None = None
        self._child: SparkSession | None = None
        self._lock = threading.RLock()
        self.views = Views()
        self._undo = ExitStack()

    def get(self) -> SparkSession:
        """Return the session; the first call borrows or starts the session.

        Raises:
            ConfigurationError: Java is missing or of a wrong version, or pyspark is not installed.
            DefiniteError: Delta's jars are unavailable, or the JVM does not start.
        """
        with self._lock:  # any thread may be the first to open a catalog's table
            if self._taken is None:
                taken = take(self._pipeline)
                self._undo.callback(taken.end)
                if isinstance(taken, Borrowed):
                    # For the whole life: a DataFrame runs later, under the settings of its session's owner.
                    self._undo.enter_context(settings(taken.spark, {OLD_VERSIONS: "false"}))
                    self._undo.callback(self.views.drop, taken.spark)
                self._taken = taken
            return self._taken.spark

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
        """Yield the session for a block of deltasmelt's own work."""
        with self.death_reported():
            session = self.get()
            section, theirs = self._pipeline.spark, isinstance(self._taken, Borrowed)
            with Borrowed(session).work(section) if theirs else access_of(session).work() as ours:
                yield ours

    def serving_tables(self) -> AbstractContextManager[None]:
        """Let the session open a catalog's tables within a block; other lakes need no session."""
        return self.death_reported() if self._place.serve(self._for_tables) else nullcontext()

    @contextmanager
    def death_reported(self, of: SparkSession | None = None) -> Iterator[None]:
        """Raise the block's error, or ``spark-died`` if the session has ended.

        Within the block, this session opens the tables of a catalog's lake. `of` is the session that the
        block uses; None for the newest session.

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
            # An inner block's error has the reason of the death, which the closed session no longer has.
            reported = isinstance(error, SmeltError) and error.code == CODE
            death_error = (
                error if reported else death(error, self._pipeline.spark, spark_log(self._pipeline.pipeline))
            )
            if death_error is None:
                raise
            if of is None or (self._taken is not None and of is self._taken.spark):
                self.close()
            if death_error is error:
                raise
            raise death_error from error

    @contextmanager
    def _staying_active(self) -> Iterator[None]:
        """Restore this thread's active session after a block."""
        # `createDataFrame`, by which deltasmelt writes rows into a catalog's tables, activates its own
        # session. The next caller of the active session would get this child session, without the owner's
        # views.
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
            self._taken = self._child = None
            self.views = Views()
