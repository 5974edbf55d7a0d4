"""Spark sessions of silver: one per thread, tuned for the window at hand; a continuous run warms them up.

The mark that a statement writes is a setting of its session, so tables that are merged side by side need
separate sessions. A new session begins with the static settings alone. What was set on the given one is
copied, except what decides what values mean (`silver.spark.semantics`), and its owner's own mark: Delta would
give that to our commits, and skip all but the first of them.

**At a Spark Connect server** a new session is a clone of another, with its settings and its temporary views.
It is released once nobody uses it, or the server would hold it for an hour. Until then it is kept alive, or
the server would end it after an hour without work (`silver.spark.access`).

**A view that several sessions read** (`share`) is a global one where the session is a JVM's: of one
application, and of one name that nobody else gives. A server has other users, and serverless compute refuses
global views. There it is a view of one session, and those that read it are cloned from that one afterwards.

Sessions at a Spark Connect server are asked something now and then, or the server would end them.

It ends a session that nothing was asked of for a while, by default for an hour (`_TIMEOUT`). A continuous run
has sessions that rest for longer: the one beside which the others are made, that of maintenance, that of a
document whose tables do not change. Their views and settings would be gone, and with them the run.

One thread asks each of them for that setting, which costs the server no job, and so learns how often it has
to. It holds no session: one that was released, or that the server has lost, is left out. If the server does
not answer, whoever has a statement there says so.
"""

from __future__ import annotations

import logging
import re
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.catalog.commit_marks import USER_METADATA
from deltasmelt.bronze.lake.foreign_commits import SIGNATURE
from deltasmelt.silver.schema import ddl
from deltasmelt.silver.spark.errors import is_lost, of_grpc, spark_errors
from deltasmelt.silver.spark.lazy_session import lazily
from deltasmelt.silver.spark.semantics import PINNED, pin
from deltasmelt.silver.spark.session_kind import all_settings, is_remote, runs_locally
from deltasmelt.silver.spark.tuning import LEAN_COMMITS, change, inherit, tune
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.silver.spark.lazy_session import LazySession

_SESSION_LOGGER: Final = logging.getLogger("deltasmelt.session")
_TIMEOUT: Final = "spark.connect.session.manager.defaultSessionTimeout"
"""Setting of Spark's server; one that has another rule does not tell it."""
_LONGEST: Final = 300.0
"""Seconds between two rounds, where the server does not ask for more."""
_SHORTEST: Final = 0.5
_ROUNDS: Final = 4
"""Within the time after which the server would end a session: a round may be late, or fail."""
_UNITS: Final = {"": 0.001, "us": 1e-6, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
"""Of Spark's times, in seconds; this one is in milliseconds where it names none."""
_sessions: WeakSet[SparkSession] = WeakSet()
_changed: Final = threading.Condition()
_thread: threading.Thread | None = None


def keep_alive(session: SparkSession) -> bool:
    """Ask a session something from now on; returns whether that is new.

    Args:
        session: one at a server.
    """
    global _thread  # noqa: PLW0603 - one for the process
    with _changed:
        if session in _sessions:
            return False
        _sessions.add(session)
        if _thread is None:
            _thread = threading.Thread(target=_work, name="smelt-keep-alive", daemon=True)
            _thread.start()
        return True


def let_end(session: SparkSession) -> None:
    """Ask a session nothing more; any other is left as it is."""
    with _changed:
        _sessions.discard(session)
        _changed.notify_all()


def pause_of(timeout: str) -> float:
    """Seconds between two rounds, so that a session outlives them.

    Args:
        timeout: how long the server lets a session rest, as Spark writes times; empty where that is not told.
    """
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", timeout.strip().lower())
    if found is None or found[2] not in _UNITS:  # also of a server that ends none: -1
        return _LONGEST
    return min(_LONGEST, max(_SHORTEST, int(found[1]) * _UNITS[found[2]] / _ROUNDS))


def _work() -> None:
    global _thread  # noqa: PLW0603
    pause = _LONGEST
    while True:
        with _changed:
            sessions = list(_sessions)
        pause = _round(sessions, pause)
        del sessions  # whoever drops one is not to find it held here
        with _changed:
            _changed.wait_for(lambda: not _sessions, pause)
            if not _sessions:
                _thread = None
                return


def _round(sessions: Iterable[SparkSession], before: float) -> float:
    """Ask each once; returns the seconds until the next round."""
    pause = _LONGEST
    for session in sessions:
        try:
            pause = min(pause, pause_of(session.conf.get(_TIMEOUT, "") or ""))
        except Exception as error:  # noqa: BLE001 - whoever has a statement there is told
            if is_lost(error):
                _SESSION_LOGGER.info("a session has ended: %s", error)
                let_end(session)
                continue
            _SESSION_LOGGER.debug("a session was not asked, or not told: %s", error)
            if of_grpc(error) is not None:  # a server that keeps the setting to itself was asked all the same
                return before
    return pause


_LOGGER: Final = logging.getLogger("deltasmelt.silver")
_MARK: Final = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")
"""Settings that give commits a mark: the application's id, and the version."""
_SIGNED: Final = {USER_METADATA: SIGNATURE}
"""Every commit of a session of ours says whose it is (`bronze.lake.foreign_commits`)."""
_WARM_PROPERTIES: Final = ", ".join(
    f"{literal(name)} = {literal(value)}" for name, value in ddl.PROPERTIES.items()
)


class Sessions:
    """The session of each thread.

    Args:
        spark: the session beside which they are made.
    """

    def __init__(self, spark: SparkSession | LazySession) -> None:
        self._spark = lazily(spark)
        self._local = threading.local()
        self._first: tuple[SparkSession, object] | None = None

    def own(self) -> SparkSession:
        """This thread's own, with the settings of the given one."""
        session: SparkSession | None = getattr(self._local, "session", None)
        first = self._first
        if first is not None and session is not first[0] and getattr(self._local, "seen", None) != first[1]:
            if session is not None:
                release(session)
            session, self._local.seen = _clone(first[0]), first[1]
        if session is None:
            session = own_session(self._spark.get())
        self._local.session = session
        return session

    def show_views(self) -> None:
        """Have the other threads' sessions find the views that this thread's has now (`share`)."""
        if is_remote(self.own()):
            self._first = (self.own(), object())


def share(frame: DataFrame, name: str) -> str:
    """Make a view that sessions beside the frame's own can read; returns its name as Spark SQL.

    Args:
        frame: gives its rows.
        name: one that nobody else gives.
    """
    if is_remote(frame.sparkSession):
        frame.createOrReplaceTempView(quote(name))
        return quote(name)
    frame.createOrReplaceGlobalTempView(quote(name))
    return quote("global_temp", name)


def unshare(session: SparkSession, name: str) -> None:
    """Drop a view that `share` made.

    Args:
        session: in which it was made.
        name: as it was given.
    """
    if is_remote(session):
        session.catalog.dropTempView(name)
    else:
        session.catalog.dropGlobalTempView(name)


_cloned: Final[dict[SparkSession, object]] = {}
"""Sessions of ours at a server that were not released, and the work that each is for (`work_beside`)."""
_NO_WORK: Final = object()
"""For sessions that end with the command."""


@contextmanager
def beside(spark: SparkSession) -> Iterator[SparkSession]:
    """`own_session` for a block."""
    session = own_session(spark)
    try:
        yield session
    finally:
        release(session)


@contextmanager
def work_beside(spark: SparkSession) -> Iterator[SparkSession]:
    """A session for a block of work of ours; the given one stays, whosever it is.

    At a server it is a clone. With the block it ends, and whatever was made beside it in the block, and so
    does what still runs there. Elsewhere it is the given one: there sessions end with their application.
    """
    if not is_remote(spark):
        yield spark
        return
    session = _own_clone(spark)
    begun = keep_alive(spark)
    work = _cloned[session] = object()
    try:
        yield session
    finally:
        for one in [clone for clone, its in list(_cloned.items()) if its is work]:
            release(one)
        if begun:
            let_end(spark)


def release(session: SparkSession) -> None:
    """Have a server forget a session of ours; others end with their application."""
    if session in _cloned:
        del _cloned[session]
        end(session)


def end(session: SparkSession) -> None:
    """Have a server forget a session, and close its client; one that is gone is not waited for.

    PySpark would close the client again when Python collects the session. That ends the thread pool of all
    sessions here, and waits for it. Collecting may happen anywhere, also while such a thread is started; then
    the wait has no end. What the pool still tells a server that is gone would be waited for, too.
    """
    let_end(session)
    remote: Any = session
    try:
        remote.client.set_retry_policies([])
        remote.client.release_session()
    except Exception as error:  # noqa: BLE001 - the server forgets it by itself, later
        _LOGGER.debug("a session could not be released: %s", error)
    remote.client.close = _nothing
    try:
        remote.client._channel.close()  # noqa: SLF001 - all that closing does but for the pool
        remote.client._closed = True  # noqa: SLF001
    except Exception as error:  # noqa: BLE001 - nothing is sent by it any more
        _LOGGER.debug("a client could not be closed: %s", error)


def _nothing() -> None:
    pass


def release_all() -> None:
    """Have servers forget all sessions of ours."""
    for session in list(_cloned):
        release(session)


def interrupt_clones(of: SparkSession | None = None) -> None:
    """Cancel what runs in sessions of ours at a server.

    Args:
        of: one that `work_beside` gave: in those of its work; None: in all.
    """
    work = None if of is None else _cloned.get(of)
    for session, its in list(_cloned.items()):
        if of is None or its is work:
            session.interruptAll()


def own_session(spark: SparkSession) -> SparkSession:
    """A session beside the given one, with its settings except those that change what is written.

    A new session starts with the static settings and the application's own configuration alone; at a server
    it is a clone, and `release` ends it.
    """
    if is_remote(spark):
        return _own_clone(spark)
    session = spark.newSession()
    for name, value in all_settings(spark).items():
        ours = name in PINNED or name in _MARK or not name.startswith(("spark.sql.", "spark.databricks."))
        if not ours and session.conf.isModifiable(name):
            session.conf.set(name, value)
    for name in _MARK:
        if session.conf.get(name, None) is not None:  # it is in the application's own configuration
            session.conf.unset(name)
    pin(session)
    _lean(session)
    return session


def _clone(spark: SparkSession) -> SparkSession:
    """A session at the same server, with all that this one has.

    Raises:
        DefiniteError: the client or the server is older than Spark 4.1, and makes none.
    """
    remote: Any = spark
    try:
        cloned = remote.cloneSession()
        cloned.client.set_retry_policies(remote.client.get_retry_policies())
    except Exception as error:
        status = of_grpc(error)
        if not isinstance(error, AttributeError) and (status is None or status[0] != "UNIMPLEMENTED"):
            all_settings(spark)  # where server or session are gone, this raises it as PySpark's own error
            raise
        raise DefiniteError(
            "the Spark Connect server, or its client here, cannot clone a session",
            code="spark-connect-version",
            remedy="use a server of Spark 4.1 or newer, and its client",
        ) from error
    session: SparkSession = cloned
    _cloned[session] = _cloned.get(spark, _NO_WORK)
    keep_alive(session)
    inherit(session, spark)
    return session


def _own_clone(spark: SparkSession) -> SparkSession:
    """A clone with our settings; each costs a request, so what the session has already is left.

    The given session is asked first: the server knows none before its first request, nor clones such a one.
    """
    known = all_settings(spark)
    session = _clone(spark)
    try:
        for name in _MARK:
            if name in known:
                change(session, name, None)
        pin(session, known)
        _lean(session, known)
    except BaseException:  # nobody else knows of it, and it would be kept alive
        release(session)
        raise
    return session


def _lean(session: SparkSession, known: Mapping[str, str] | None = None) -> None:
    """Have a session of ours sign its commits, and write no more of each than is read.

    Where one of these settings may not be set, the session stays as it is.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a cycle that folds nothing loads no Spark

    for name, value in {**LEAN_COMMITS, **_SIGNED}.items():
        if known is not None and known.get(name) == value:
            continue
        try:
            session.conf.set(name, value)
        except PySparkException as error:
            _LOGGER.debug("%s may not be set: %s", name, error)


def mark_settings(app: str, lsn: Lsn, position: Lsn | None = None) -> dict[str, str]:
    """Settings by which a commit also sets an application transaction.

    Delta writes the one that a session names into whatever the session commits next, and skips a write whose
    mark is not above the table's. So a write at an LSN that the table already holds carries none.

    Args:
        app: whose mark.
        lsn: what the table holds after the write.
        position: the mark that the table has.
    """
    if position is not None and lsn <= position:
        return {}
    return dict(zip(_MARK, (app, str(int(lsn))), strict=True))


def warm_up(spark: SparkSession) -> None:
    """Run one MERGE on a table of a row, so that classes are loaded before the first window is waited for.

    Only what merges for long gains by it: a job that merges once would wait for two MERGEs. Only where tasks
    run in the driver's JVM is there a folder that all of them see and that is nobody's lake. Elsewhere, and
    where it fails, nothing is lost but some seconds of the first window.
    """
    if not runs_locally(spark):
        return
    try:
        with tempfile.TemporaryDirectory(prefix="smelt-warm-", ignore_cleanup_errors=True) as folder:
            _merge_once(own_session(spark), f"delta.{quote(Path(folder, 't').as_uri())}")
    except spark_errors(OSError) as error:
        _LOGGER.info("Spark was not warmed up: %s", error)


def _merge_once(session: SparkSession, target: str) -> None:
    tune(session, small=True)
    session.sql(f"CREATE TABLE {target} (id INT, v STRING) USING DELTA TBLPROPERTIES ({_WARM_PROPERTIES})")
    session.sql(f"INSERT INTO {target} VALUES (1, 'a'), (2, 'b')")
    session.sql(
        f"MERGE INTO {target} AS t USING (SELECT 1 AS id, max('c') AS v GROUP BY 1) AS s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET t.v = s.v WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v)"
    ).collect()
