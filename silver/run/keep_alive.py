"""Sessions at a Spark Connect server are asked something now and then, or the server would end them.

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
import threading
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from silver.run.spark_errors import is_lost, of_grpc

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

_LOGGER: Final = logging.getLogger("deltasmelt.session")

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
                _LOGGER.info("a session has ended: %s", error)
                let_end(session)
                continue
            _LOGGER.debug("a session was not asked, or not told: %s", error)
            if of_grpc(error) is not None:  # a server that keeps the setting to itself was asked all the same
                return before
    return pause
