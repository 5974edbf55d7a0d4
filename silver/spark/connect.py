"""The access to a session at a Spark Connect server: clone, keep alive, cancel, release.

**A child** is a clone of the session, with the session's settings and temporary views. The client releases
a child once nobody uses it; otherwise the server would hold the child for an hour. A view that several
sessions read is a view of one session, and readers are cloned from that session afterwards: a server has
other users, and serverless compute refuses global views.

**Keeping alive.** A server ends a session without requests after a while, by default after an hour
(`_TIMEOUT`). A continuous run has sessions that rest for longer: the session beside which the others are
made, the session of maintenance, the session of a document whose tables do not change. Their views and
settings would be gone, and with them the run. One thread reads `_TIMEOUT` from each session, which costs the
server no job and states the pause until the next round. The thread holds no session: a session that was
released, or that the server has lost, is left out. If the server does not answer, the next statement there
raises the error.
"""

from __future__ import annotations

import logging
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final
from weakref import WeakSet

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.spark_errors import is_lost, of_grpc
from deltasmelt.silver.spark.semantics import lean, pin
from deltasmelt.silver.spark.tuning import MARK_SETTINGS, all_settings, change, inherit
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

_LOGGER: Final = logging.getLogger("deltasmelt.session")
_TIMEOUT: Final = "spark.connect.session.manager.defaultSessionTimeout"
"""Setting of Spark's server; a server with another rule does not return the setting."""
_LONGEST: Final = 300.0
"""Seconds between two rounds, where the server does not ask for more."""
_SHORTEST: Final = 0.5
_ROUNDS: Final = 4
"""Within the time after which the server would end a session: a round may be late, or fail."""
_UNITS: Final = {"": 0.001, "us": 1e-6, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
"""Units of Spark's times in seconds; this setting is in milliseconds where the value names no unit."""
_resting: WeakSet[SparkSession] = WeakSet()
_changed: Final = threading.Condition()
_thread: threading.Thread | None = None

_clones: Final[dict[SparkSession, object]] = {}
"""Clones of this process that were not released, and the work that each is for (`Connect.work`)."""
_NO_WORK: Final = object()
"""For sessions that end with the command."""


@dataclass(frozen=True, slots=True)
class Connect:
    """The access to a session at a Spark Connect server.

    Attributes:
        spark: the session.
        runs_locally: tasks run on the server's machines, which see none of this machine's files.
        tasks_write_here: likewise.
        may_read_files: the server may be one of Databricks, which refuses to read files of a Delta table.
        shares_views: a view belongs to its session, which runs it with its own settings; clones get a copy.
            The server resolves names each time that a DataFrame is run.
        may_never_answer: a request has no deadline, and may wait in a line that is dead.
    """

    spark: SparkSession
    runs_locally: ClassVar[bool] = False
    tasks_write_here: ClassVar[bool] = False
    may_read_files: ClassVar[bool] = False
    shares_views: ClassVar[bool] = False
    may_never_answer: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The id of the session at the server; PySpark may return several objects for a session."""
        return str(self._client.session_id)

    @property
    def _client(self) -> Any:
        return self.spark  # what PySpark ships types for is the session of a JVM

    # -- children

    def clone(self) -> SparkSession:
        """Return a session at the same server, with all settings and views of this session.

        Raises:
            DefiniteError: the client or the server is older than Spark 4.1, and makes none.
        """
        try:
            cloned = self._client.cloneSession()
            cloned.client.set_retry_policies(self._client.client.get_retry_policies())
        except Exception as error:
            status = of_grpc(error)
            if not isinstance(error, AttributeError) and (status is None or status[0] != "UNIMPLEMENTED"):
                all_settings(self.spark)  # where server or session are gone, raises PySpark's own error
                raise
            raise DefiniteError(
                "the Spark Connect server, or its client here, cannot clone a session",
                code="spark-connect-version",
                remedy="use a server of Spark 4.1 or newer, and its client",
            ) from error
        session: SparkSession = cloned
        _clones[session] = _clones.get(self.spark, _NO_WORK)
        Connect(session).keep()
        inherit(session, self.spark)
        return session

    def child(self) -> SparkSession:
        """Return a clone with the settings of this project; a setting that is right costs no request.

        The settings of this session are read first: the server knows no session before its first request,
        nor clones such a session.
        """
        known = all_settings(self.spark)
        session = self.clone()
        try:
            for name in MARK_SETTINGS:
                if name in known:
                    change(session, name, None)
            pin(session, known)
            lean(session, known)
        except BaseException:  # the caller never gets the clone, which would be kept alive
            Connect(session).release()
            raise
        return session

    @contextmanager
    def work(self) -> Iterator[SparkSession]:
        """Yield a child for a block of work.

        The block's end also ends each session that was made beside the child in the block, with all
        statements that still run there.
        """
        session = self.child()
        begun = self.keep()
        work = _clones[session] = object()
        try:
            yield session
        finally:
            for clone in [clone for clone, its in list(_clones.items()) if its is work]:
                Connect(clone).release()
            if begun:
                _let_end(self.spark)

    @contextmanager
    def lent(
        self,
        given: Mapping[str, str],
        interrupts: tuple[type[BaseException], ...],  # noqa: ARG002 - a JVM's
    ) -> Iterator[tuple[SparkSession, Mapping[str, str]]]:
        """Yield a child (`work`) and the settings that it takes; the owner's session stays as it is."""
        with self.work() as session:
            yield session, given

    # -- views

    def share(self, frame: DataFrame, name: str) -> str:
        """Make a view that later clones of this session can read; return the view's name as Spark SQL.

        Args:
            frame: gives the view's rows.
            name: unique name of the view.
        """
        frame.createOrReplaceTempView(quote(name))
        return quote(name)

    def unshare(self, name: str) -> None:
        """Drop a view that `share` made in this session."""
        self.spark.catalog.dropTempView(name)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make the session the active session of this thread for a block.

        Spark Connect's client looks up rows that a server has cached in the active session, whichever
        session cached them.
        """
        held: Any = getattr(self.spark, "_active_session", None)
        if held is None:
            yield
            return
        before = getattr(held, "session", None)
        held.session = self.spark
        try:
            yield
        finally:
            held.session = before

    # -- running statements

    def in_background(self, pool: str) -> None:
        """Do nothing: a server shares its cores by its own rule."""

    def tag(self, tag: str) -> None:
        """Tag the statements of this thread, so that `cancel_tag` cancels them."""
        self.spark.addTag(tag)

    def cancel_tag(self, tag: str) -> None:
        """Cancel statements by their tag, and all statements that run in clones of this process."""
        self.spark.interruptTag(tag)
        _interrupt(_clones)

    def cancel(self) -> None:
        """Cancel all statements of this session and of clones of this process."""
        self.spark.interruptAll()
        _interrupt(_clones)

    # -- the session's life

    def process(self) -> None:
        """Return no process: the server is not a child of this process."""

    def keep(self) -> bool:
        """Keep the session alive while it rests; return whether no caller did so before."""
        global _thread  # noqa: PLW0603 - one for the process
        with _changed:
            if self.spark in _resting:
                return False
            _resting.add(self.spark)
            if _thread is None:
                _thread = threading.Thread(target=_keep_alive, name="smelt-keep-alive", daemon=True)
                _thread.start()
            return True

    def release(self) -> None:
        """End the session at the server if this process cloned the session."""
        if self.spark in _clones:
            del _clones[self.spark]
            self.close()

    def close(self) -> None:
        """End the session at the server, and close its client; do not wait for a server that is gone.

        PySpark would close the client again when Python collects the session. That ends the thread pool of
        all sessions here, and waits for the pool. Collecting may happen anywhere, also while such a thread is
        started; then the wait has no end. Requests of the pool to a server that is gone would be waited for,
        too.
        """
        _let_end(self.spark)
        client = self._client.client
        try:
            client.set_retry_policies([])
            client.release_session()
        except Exception as error:  # noqa: BLE001 - the server ends the session by itself, later
            _LOGGER.debug("a session could not be released: %s", error)
        client.close = _nothing
        try:
            client._channel.close()  # noqa: SLF001 - all that closing does but for the pool
            client._closed = True  # noqa: SLF001
        except Exception as error:  # noqa: BLE001 - the client sends nothing any more
            _LOGGER.debug("a client could not be closed: %s", error)

    def end(self) -> None:
        """End the session and all clones of this process."""
        release_all()
        self.close()
        self.spark.stop()  # raises nothing

    def abandon(self) -> None:
        """End an interrupted command's statements and sessions at the server, which would go on."""
        try:
            self.cancel()
            release_all()
            self.spark.stop()
        except Exception as error:  # noqa: BLE001 - this process ends anyhow
            _LOGGER.info("the server could not be told of the end: %s", error)

    def forget(self) -> None:
        """End requests that the server never answers."""
        self._client.client._channel.close()  # noqa: SLF001 - nothing else ends a request without a deadline


def release_all() -> None:
    """End all clones of this process at their servers."""
    for session in list(_clones):
        Connect(session).release()


def cancel_work(session: SparkSession) -> None:
    """Cancel all statements of the work (`Connect.work`) that a session belongs to."""
    work = _clones.get(session)
    _interrupt(clone for clone, its in list(_clones.items()) if its is work)


def _interrupt(sessions: Iterable[SparkSession]) -> None:
    for session in list(sessions):
        session.interruptAll()


def _nothing() -> None:
    pass


def _let_end(session: SparkSession) -> None:
    with _changed:
        _resting.discard(session)
        _changed.notify_all()


def pause_of(timeout: str) -> float:
    """Return the seconds between two rounds, so that a session outlives the pause.

    Args:
        timeout: how long the server lets a session rest, as Spark writes times; empty where unknown.
    """
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", timeout.strip().lower())
    if found is None or found[2] not in _UNITS:  # also where a server ends no session: -1
        return _LONGEST
    return min(_LONGEST, max(_SHORTEST, int(found[1]) * _UNITS[found[2]] / _ROUNDS))


def _keep_alive() -> None:
    global _thread  # noqa: PLW0603
    pause = _LONGEST
    while True:
        with _changed:
            sessions = list(_resting)
        pause = _round(sessions, pause)
        del sessions  # a session whose last user drops it must not be held here
        with _changed:
            _changed.wait_for(lambda: not _resting, pause)
            if not _resting:
                _thread = None
                return


def _round(sessions: Iterable[SparkSession], before: float) -> float:
    """Send a request to each session; return the seconds until the next round."""
    pause = _LONGEST
    for session in sessions:
        try:
            pause = min(pause, pause_of(session.conf.get(_TIMEOUT, "") or ""))
        except Exception as error:  # noqa: BLE001 - the next statement of the session raises the error
            if is_lost(error):
                _LOGGER.info("a session has ended: %s", error)
                _let_end(session)
                continue
            _LOGGER.debug("a session was not asked, or not told: %s", error)
            if of_grpc(error) is not None:  # a server that refuses the setting got the request all the same
                return before
    return pause
