"""The access to a session at a Spark Connect server: clone, keep alive, cancel, release.

**A child** is a clone of the session, with the session's settings and temporary views. The client releases an
unused child; otherwise the server would hold the child for an hour. The end of a block of work releases every
clone made in the block (`Connect.work`). A shared view belongs to one session, and readers are cloned from
the session afterwards: a server has other users, and serverless compute refuses global views.

**Keeping alive.** A server ends a session without requests after a while, by default after an hour, and drops
its views and settings. Some sessions of a continuous run rest for longer: the parent of the clones, the
session of maintenance, the session of a document with unchanged tables. So a thread of each session reads
`_TIMEOUT` from the session, which costs the server no job; the value sets the pause until the next read. A
server without an answer delays no other session; the next statement of its session raises the error.
"""

from __future__ import annotations

import logging
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final
from weakref import WeakKeyDictionary, ref

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.spark_errors import is_lost, of_grpc
from deltasmelt.silver.spark.semantics import lean, pin
from deltasmelt.silver.spark.tuning import MARK_SETTINGS, all_settings, change, inherit
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

_LOGGER: Final = logging.getLogger("deltasmelt.session")
_TIMEOUT: Final = "spark.connect.session.manager.defaultSessionTimeout"
"""Setting of Spark's server; a server with a different rule does not return the setting."""
_LONGEST: Final = 300.0
"""Limit in seconds on the pause between two reads."""
_SHORTEST: Final = 0.5
_READS: Final = 4
"""Number of reads within the server's timeout: one read may be late, or fail."""
_END_SECONDS: Final = 60.0
"""Seconds after which an unanswered end of a session is given up."""
_UNITS: Final = {"": 0.001, "us": 1e-6, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
"""Units of Spark's times in seconds; a value without a unit is in milliseconds for this setting."""
_resting: Final[WeakKeyDictionary[SparkSession, _Rest]] = WeakKeyDictionary()
_clones: Final[dict[SparkSession, object]] = {}
"""Unreleased clones of this process, each with the work that owns the clone (`Connect.work`)."""
_NO_WORK: Final = object()
"""Marker for sessions that end with the command."""


@dataclass(frozen=True, slots=True)
class Connect:
    """The access to a session at a Spark Connect server."""

    spark: SparkSession
    runs_locally: ClassVar[bool] = False  # tasks see none of this machine's files
    tasks_write_here: ClassVar[bool] = False
    runs_tasks_once: ClassVar[bool] = False  # unknown: a server may have executors and repeat tasks
    may_read_files: ClassVar[bool] = False  # Databricks refuses to read files of a Delta table
    # A view belongs to its session, which runs the view with its own settings; clones get a copy. The server
    # resolves names on each run of a DataFrame.
    shares_views: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The id of the session at the server; PySpark may return several objects for a session."""
        return str(self._client.session_id)

    @property
    def _client(self) -> Any:
        return self.spark  # PySpark has types for sessions of a JVM alone

    # -- children

    def clone(self) -> SparkSession:
        """Return a new session at the server, with all settings and views of this session.

        Raises:
            DefiniteError: the client or the server is older than Spark 4.1, and cannot clone.
        """
        try:
            cloned = self._client.cloneSession()
            cloned.client.set_retry_policies(self._client.client.get_retry_policies())
        except Exception as error:
            status = of_grpc(error)
            if not isinstance(error, AttributeError) and (status is None or status[0] != "UNIMPLEMENTED"):
                all_settings(self.spark)  # raises PySpark's error for a lost server or session
                raise
            raise DefiniteError(
                "the Spark Connect server, or the local client, cannot clone a session",
                code="spark-connect-version",
                remedy="use server and client of Spark 4.1 or newer",
            ) from error
        session: SparkSession = cloned
        _clones[session] = _clones.get(self.spark, _NO_WORK)
        rest = _resting.get(self.spark)
        Connect(session).keep(0.0 if rest is None else rest.pause)
        inherit(session, self.spark)
        return session

    def child(self) -> SparkSession:
        """Return a clone with the settings of this project; a right setting costs no request."""
        # First: a server knows no session before the session's first request, and cannot clone it.
        known = all_settings(self.spark)
        session = self.clone()
        try:
            for name in MARK_SETTINGS:
                if name in known:
                    change(session, name, None)
            pin(session, known)
            lean(session, known)
        except BaseException:  # the caller never gets the clone: release the clone
            Connect(session).release()
            raise
        return session

    @contextmanager
    def work(self) -> Iterator[SparkSession]:
        """Yield a child for a block of work.

        The end of the block ends all clones made in the block, and cancels their statements.
        """
        session = self.child()
        begun = self.keep()
        work = _clones[session] = object()
        try:
            yield session
        finally:
            # In turn: a cancelled statement of a later clone still gets its answer.
            for clone in [clone for clone, its in list(_clones.items()) if its is work]:
                Connect(clone).release()
            if begun:
                _stop_keeping(self.spark)

    @contextmanager
    def borrow(self, needed: Mapping[str, str]) -> Iterator[tuple[SparkSession, Mapping[str, str]]]:
        """Yield a child (`work`) and the child's settings; the owner's session does not change."""
        with self.work() as session:
            yield session, needed

    # -- views

    def share(self, frame: DataFrame, name: str) -> str:
        """Create a view `name` that later clones of this session can read; return its name as Spark SQL."""
        frame.createOrReplaceTempView(quote(name))
        return quote(name)

    def unshare(self, name: str) -> None:
        """Drop a view that `share` created in this session."""
        self.spark.catalog.dropTempView(name)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make the session the active session of this thread for a block."""
        # Spark Connect's client resolves rows cached at a server in the active session, whichever session
        # cached the rows.
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
        """Tag the statements of this thread for `cancel_tag`."""
        self.spark.addTag(tag)

    def cancel_tag(self, tag: str) -> None:
        """Cancel statements by tag, and all statements in clones of this process."""
        self.spark.interruptTag(tag)
        _interrupt(_clones)

    def cancel(self) -> None:
        """Cancel all statements of this session and of clones of this process."""
        self.spark.interruptAll()
        _interrupt(_clones)

    # -- the session's life

    def process(self) -> None:
        """Return no process: the server is not a child of this process."""

    def keep(self, pause: float = 0.0) -> bool:
        """Keep the session alive while it rests; return whether this call is the first for the session."""
        rest = _Rest(pause)
        if _resting.setdefault(self.spark, rest) is not rest:
            return False
        resting = partial(rest.keep_alive, ref(self.spark))
        threading.Thread(target=resting, name="smelt-keep-alive", daemon=True).start()
        return True

    def release(self) -> None:
        """End the session at the server if this process cloned the session."""
        if self.spark in _clones:
            del _clones[self.spark]
            self.close()

    def close(self) -> None:
        """End the session at the server, and close the client without waiting for a lost server."""
        _stop_keeping(self.spark)
        client = self._client.client
        try:
            client.set_retry_policies([])
            client.release_session()
        except Exception as error:  # noqa: BLE001 - the server later ends the session
            _LOGGER.debug("a session could not be released: %s", error)
        # PySpark would close the client again when Python collects the session. A second close ends the
        # thread pool of all sessions of the process, and waits for the pool, also for requests to a lost
        # server. Python may collect during the start of a thread of the pool; the wait then never ends.
        client.close = _do_nothing
        try:
            client._channel.close()  # noqa: SLF001 - `close` without the thread pool
            client._closed = True  # noqa: SLF001
        except Exception as error:  # noqa: BLE001 - the client sends nothing any more
            _LOGGER.debug("a client could not be closed: %s", error)

    def end(self) -> None:
        """End the session and all clones of this process."""
        _at_once([*(Connect(clone).release for clone in list(_clones)), self.close])
        self.spark.stop()  # raises nothing

    def abandon(self) -> None:
        """End an interrupted command's statements and sessions, which the server would continue."""
        self.cancel()
        self.end()

    def forget(self) -> None:
        """Detach PySpark from a session whose end takes long, so that the next start creates a new session.

        The requests of `end` continue in the background, because a slow server still ends the session.
        """
        client = self._client.client
        self._client.release_session_on_close, client.close = False, _do_nothing
        self.spark.stop()  # sends no request now
        # Nothing else ends a request without a deadline and without an answer.
        closing = threading.Timer(_END_SECONDS, client._channel.close)  # noqa: SLF001 - as in `close`
        closing.daemon = True
        closing.start()


def cancel_work(session: SparkSession) -> None:
    """Cancel all statements of the work (`Connect.work`) that owns a session."""
    work = _clones.get(session)
    _interrupt(clone for clone, its in list(_clones.items()) if its is work)


def _interrupt(sessions: Iterable[SparkSession]) -> None:
    for session in list(sessions):
        session.interruptAll()


def _at_once(requests: Iterable[Callable[[], None]]) -> None:
    """Send requests in parallel: a slow answer delays no other request."""
    threads = [threading.Thread(target=send, name="smelt-release", daemon=True) for send in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _do_nothing() -> None:
    pass


def _stop_keeping(session: SparkSession) -> None:
    if (rest := _resting.pop(session, None)) is not None:
        rest.ended.set()


def pause_of(timeout: str) -> float:
    """Return the seconds between two reads, so that a session outlives the pause.

    `timeout` is the server's limit on a session's rest, as Spark writes times; empty where unknown.
    """
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", timeout.strip().lower())
    if found is None or found[2] not in _UNITS:  # also where a server ends no session: -1
        return _LONGEST
    return min(_LONGEST, max(_SHORTEST, int(found[1]) * _UNITS[found[2]] / _READS))


class _Rest:
    """Keeps one session alive; `pause` is the number of seconds until the next request."""

    def __init__(self, pause: float) -> None:
        self.pause = pause
        self.ended = threading.Event()

    def keep_alive(self, kept: ref[SparkSession]) -> None:
        """Send requests until the session's end."""
        while not self.ended.wait(self.pause):
            session = kept()
            if session is None:
                return
            self.pause = self._read(session)
            del session  # a local name would keep the session alive

    def _read(self, session: SparkSession) -> float:
        """Send a request to the session; return the seconds until the next request."""
        try:
            return pause_of(session.conf.get(_TIMEOUT, "") or "")
        except Exception as error:  # noqa: BLE001 - the next statement of the session raises the error
            if is_lost(error):
                _LOGGER.info("a session has ended: %s", error)
                _stop_keeping(session)
            _LOGGER.debug("a session did not return its timeout: %s", error)
            # A server that refuses the setting got a request; without a request, the pause stays short.
            return _LONGEST if of_grpc(error) is None else self.pause or _LONGEST
