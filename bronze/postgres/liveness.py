"""Check whether a silent connection is dead, from another session: by the backend's wait event.

**The stream.** The walsender's wait event decides.

A walsender that decodes may be silent for as long as the decoding takes. Up to version 15 a walsender does
not even answer while it skips a large transaction. Meanwhile the walsender runs, or waits for a disk or a
lock.

A walsender that waits for more log, or for the reader to receive data, would have answered. The reader
requested a reply long before this check. So the silence comes from the connection.

**A COPY.** A backend that reads a cold table or waits for a lock may send nothing for minutes, and no request
for a reply exists. A backend that waits for its client has sent bytes that never arrived, or has sent all
rows.

**Three answers.** The backend is over (ended, or waiting for the reader), works, or is unknown. A server
without a free connection, or with a changed password, still decodes for the running stream, and would refuse
a new stream.

PostgreSQL docs: https://www.postgresql.org/docs/current/monitoring-stats.html (Wait Events).
"""

from __future__ import annotations

import logging
import time
from enum import Enum
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import SmeltError, TransientError
from deltasmelt.bronze.figures import estimate_text
from deltasmelt.bronze.postgres.connection import abandon, connect, translated
from deltasmelt.bronze.postgres.conninfo import address_of

if TYPE_CHECKING:
    from typing import Any

    import psycopg

    from deltasmelt.bronze.config.sections import SourceSettings

_LOGGER = logging.getLogger("deltasmelt.reader")

_AWAY: Final = frozenset({"connection-lost", "server-starting", "server-unreachable"})
"""Errors of a new connection that mean: the server is down, or was restarted."""

_ALL_QUIET: Final = 0.8
"""Share of `Timing.copy_poll` between two calls of `CopyLine.nothing_came` that proves silence; any bytes
wake the caller earlier.
"""


class Liveness(Enum):
    """The known state of the backend behind a silent connection."""

    OVER = "it has ended, or waits for the client"
    WORKS = "it works"
    UNKNOWN = "its state cannot be read"


def walsender_liveness(source: SourceSettings, backend_pid: int) -> Liveness:
    """Read a walsender's state over a new connection: an older connection may be as dead as the stream."""
    return _liveness(source, backend_pid, "WalSender")


class CopyLine:
    """Watch over the connection of a COPY, or of another long command, from the reading side."""

    def __init__(self, source: SourceSettings, connection: psycopg.Connection[Any]) -> None:
        self._source = source
        self._timing = source.timing
        self._connection = connection
        self._silent_since = self._checked_at = time.monotonic()
        self._unknown = 0

    def something_came(self) -> None:
        """Record the arrival of rows."""
        self._silent_since = self._checked_at = time.monotonic()
        self._unknown = 0

    def nothing_came(self) -> None:
        """Record that no row arrived; call again when bytes arrive, or after `Timing.copy_poll`.

        Raises:
            TransientError: ``connection-lost``: nothing arrived for long, and the server waits for the
                client. The connection is closed then; a thread that waits on the connection fails at once.
        """
        now = time.monotonic()
        polled, self._checked_at = self._checked_at, now
        if now - polled < _ALL_QUIET * self._timing.copy_poll:
            self._silent_since = now
        if now - self._silent_since < self._timing.copy_silence:
            return
        liveness = _liveness(self._source, self._connection.info.backend_pid, "Client")
        self._unknown = self._unknown + 1 if liveness is Liveness.UNKNOWN else 0
        waited = max(self._unknown, 1) * self._timing.copy_silence
        # An unknown backend waits for `Timing.refused` at most: a server that refuses new connections must
        # not hide a dead connection forever.
        if liveness is Liveness.WORKS or (liveness is Liveness.UNKNOWN and waited < self._timing.refused):
            self._silent_since = self._checked_at = time.monotonic()
            return
        abandon(self._connection)
        reason = (
            "the server waits for the client"
            if liveness is Liveness.OVER
            else ("the server does not report the state of the connection")
        )
        raise TransientError(
            f"no part of an answer has arrived for {estimate_text(waited)} while {reason}",
            code="connection-lost",
            where=address_of(self._source),
            remedy="nothing to do: the reader retries over a new connection",
        )


def _liveness(source: SourceSettings, backend_pid: int, idle: str) -> Liveness:
    """Read a backend's wait event; `idle` is the prefix of the events of a backend with nothing to do."""
    try:
        with connect(source, patience=source.timing.watch_answer) as connection, translated(source):
            row = connection.execute(
                "SELECT wait_event FROM pg_stat_activity WHERE pid = %s", [backend_pid]
            ).fetchone()
    except SmeltError as error:
        # A server that cannot be reached at all serves no stream either.
        if error.code in _AWAY:
            return Liveness.OVER
        _LOGGER.warning(
            "backend %d is silent, and the server does not report its state: %s", backend_pid, error
        )
        return Liveness.UNKNOWN
    if row is None or str(row[0] or "").startswith(idle):
        return Liveness.OVER
    return Liveness.WORKS
