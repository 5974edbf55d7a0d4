"""Whether a silent connection is dead, seen from outside: what its backend waits for.

**The stream.** What counts is what the walsender waits for.

A walsender that has something to decode may be silent for as long as that takes. Up to version 15 it does not
even answer while it skips a large transaction. It is then running, or waits for a disk or a lock.

One that waits for more log, or for our side of the connection to take data, would have answered. It was asked
for a sign of life long before anybody looks here. Its silence is the line's.

**A COPY.** A backend that reads a cold table or waits for a lock may send nothing for minutes, and there is
no way to ask it. One that waits for its client has sent something that never came, or has sent all of it.

PostgreSQL docs: https://www.postgresql.org/docs/current/monitoring-stats.html (Wait Events).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from bronze.errors import SmeltError, TransientError
from bronze.postgres.connection import abandon, connect, translated
from bronze.postgres.conninfo import address_of

if TYPE_CHECKING:
    from typing import Any

    import psycopg

    from bronze.config.sections import SourceSettings

_ALL_QUIET: Final = 0.8
"""Of `Timing.copy_poll`: so long lies between two calls of `CopyLine.nothing_came` where really nothing came;
what comes wakes its caller."""


def walsender_is_idle(source: SourceSettings, backend_pid: int) -> bool:
    """Whether the walsender waits for log or for us, or is gone; also where the server cannot be asked.

    Asked over a connection of its own: an older one may share the fate of the silent line.
    """
    event = _waits_for(source, backend_pid)
    return event is None or event.startswith("WalSender")


class CopyLine:
    """Watches the connection of a COPY from its reading side.

    Args:
        source: to look at the backend from outside.
        connection: over which the COPY runs.
    """

    def __init__(self, source: SourceSettings, connection: psycopg.Connection[Any]) -> None:
        self._source = source
        self._timing = source.timing
        self._connection = connection
        self._silent_since = self._asked = time.monotonic()

    def something_came(self) -> None:
        """Rows were read."""
        self._silent_since = self._asked = time.monotonic()

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
        event = _waits_for(self._source, self._connection.info.backend_pid)
        if event is not None and not event.startswith("Client"):
            self.something_came()  # it is at work
            return
        abandon(self._connection)
        raise TransientError(
            f"no data of a COPY has arrived for {self._timing.copy_silence:.0f} s while the server "
            "waits for us",
            code="connection-lost",
            where=address_of(self._source),
            remedy="nothing; the copy is tried again over a new connection",
        )


def _waits_for(source: SourceSettings, backend_pid: int) -> str | None:
    """What a backend waits for, empty where it works; None where it is gone or nobody can be asked."""
    try:
        with connect(source) as connection, translated(source):
            row = connection.execute(
                "SELECT wait_event FROM pg_stat_activity WHERE pid = %s", [backend_pid]
            ).fetchone()
    except SmeltError:
        return None  # what keeps us out shows in the attempt to start again
    return None if row is None else str(row[0] or "")
