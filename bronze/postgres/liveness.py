"""Whether a silent connection is dead, seen from outside: what its backend waits for.

**The stream.** What counts is what the walsender waits for.

A walsender that has something to decode may be silent for as long as that takes. Up to version 15 it does not
even answer while it skips a large transaction. It is then running, or waits for a disk or a lock.

One that waits for more log, or for our side of the connection to take data, would have answered. It was asked
for a sign of life long before anybody looks here. Its silence is the line's.

**A COPY.** A backend that reads a cold table or waits for a lock may send nothing for minutes, and there is
no way to ask it. One that waits for its client has sent something that never came, or has sent all of it.

**Three answers.** The backend is over (gone, or waiting for us), it works, or that is unknown. A server
without a free connection, or with a changed password, still decodes for the stream that it has, and would not
give another one. So *unknown* waits, for `Timing.refused` at most: a dead line with a server that refuses new
connections is not waited for without end. A server that cannot be reached at all serves no stream either:
that is *over*.

PostgreSQL docs: https://www.postgresql.org/docs/current/monitoring-stats.html (Wait Events).
"""

from __future__ import annotations

import logging
import time
from enum import Enum
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import SmeltError, TransientError
from deltasmelt.bronze.postgres.connection import abandon, connect, translated
from deltasmelt.bronze.postgres.conninfo import address_of

if TYPE_CHECKING:
    from typing import Any

    import psycopg

    from deltasmelt.bronze.config.sections import SourceSettings

_LOGGER = logging.getLogger("deltasmelt.reader")

_AWAY: Final = frozenset({"connection-lost", "server-starting", "server-unreachable"})
"""Of a new connection: the server is not there, or was started again."""

_ALL_QUIET: Final = 0.8
"""Of `Timing.copy_poll`: so long lies between two calls of `CopyLine.nothing_came` where really nothing came;
what comes wakes its caller."""


class Liveness(Enum):
    """What is known of the backend behind a silent line."""

    OVER = "it is gone, or waits for us"
    WORKS = "it works"
    UNKNOWN = "nobody can ask"


def walsender_liveness(source: SourceSettings, backend_pid: int) -> Liveness:
    """Ask what a walsender does, over a connection of its own: an older one may share the line's fate."""
    return _liveness(source, backend_pid, "WalSender")


class CopyLine:
    """Watches the connection of a COPY, or of another command that may take long, from its reading side.

    Args:
        source: to look at the backend from outside.
        connection: over which the COPY runs.
    """

    def __init__(self, source: SourceSettings, connection: psycopg.Connection[Any]) -> None:
        self._source = source
        self._timing = source.timing
        self._connection = connection
        self._silent_since = self._asked = time.monotonic()
        self._unknown = 0

    def something_came(self) -> None:
        """Rows were read."""
        self._silent_since = self._asked = time.monotonic()
        self._unknown = 0

    def nothing_came(self) -> None:
        """No row is there; to be called again as soon as something comes, or after `Timing.copy_poll`.

        Raises:
            TransientError: ``connection-lost``: nothing came for long, and the server waits for us. The
                connection is ended then; whatever waits on it fails at once.
        """
        now = time.monotonic()
        asked, self._asked = self._asked, now
        if now - asked < _ALL_QUIET * self._timing.copy_poll:
            self._silent_since = now
        if now - self._silent_since < self._timing.copy_silence:
            return
        found = _liveness(self._source, self._connection.info.backend_pid, "Client")
        self._unknown = self._unknown + 1 if found is Liveness.UNKNOWN else 0
        waited = max(self._unknown, 1) * self._timing.copy_silence
        if found is Liveness.WORKS or (found is Liveness.UNKNOWN and waited < self._timing.refused):
            self._silent_since = self._asked = time.monotonic()
            return
        abandon(self._connection)
        why = "the server waits for us" if found is Liveness.OVER else "the server refuses to be asked"
        raise TransientError(
            f"nothing of an answer has arrived for {waited:.0f} s while {why}",
            code="connection-lost",
            where=address_of(self._source),
            remedy="nothing; the copy is tried again over a new connection",
        )


def _liveness(source: SourceSettings, backend_pid: int, idle: str) -> Liveness:
    """Ask what a backend waits for.

    Args:
        source: the server.
        backend_pid: the backend.
        idle: how the wait events begin in which the backend has nothing to do.
    """
    try:
        with connect(source, patience=source.timing.watch_answer) as connection, translated(source):
            row = connection.execute(
                "SELECT wait_event FROM pg_stat_activity WHERE pid = %s", [backend_pid]
            ).fetchone()
    except SmeltError as error:
        if error.code in _AWAY:
            return Liveness.OVER
        _LOGGER.warning("backend %d is silent, and the server tells nothing of it: %s", backend_pid, error)
        return Liveness.UNKNOWN
    if row is None or str(row[0] or "").startswith(idle):
        return Liveness.OVER
    return Liveness.WORKS
