"""Who holds up what waits until the transactions that run now have ended, and since when.

Three things wait so: the making of the slot, the export of a copy's snapshot, and tables that have joined the
publication of a server that may forget them (`bronze.drift.joining`). An idle session with an open
transaction, or a prepared transaction, holds each of them up for as long as it likes, whatever database it is
in. Nothing says so by itself; so a caller that waits names the oldest ones here. Only transactions that have
a number count: nobody waits for those that only read.
"""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.errors import TransientError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import psycopg

    from deltasmelt.bronze.identifiers import TableName

REMEDY: Final = (
    "let them end, or end them: SELECT pg_terminate_backend(<pid>); a prepared transaction: "
    "COMMIT PREPARED '<name>'; or ROLLBACK PREPARED '<name>';"
)

_MOST: Final = 5
_NAMED: Final = 3
_SESSIONS_QUERY: Final = """
    SELECT pid, coalesce(usename, '?'), coalesce(datname, ''), coalesce(application_name, ''),
           coalesce(state, ''), extract(epoch FROM now() - xact_start)::int
    FROM pg_stat_activity
    WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() AND pid <> ALL (%s::int[])
    ORDER BY xact_start
    LIMIT %s
"""
_PREPARED_QUERY: Final = """
    SELECT gid, owner, extract(epoch FROM now() - prepared)::int
    FROM pg_prepared_xacts
    ORDER BY prepared
    LIMIT %s
"""
_SESSION: Final = re.compile(r"(pid \d+ \().*?(\d+ s\))(?=;|\s*$)", re.MULTILINE)
_PREPARED: Final = re.compile(r"(prepared transaction .*?) of .*?( \(\d+ s\))(?=;|\s*$)", re.MULTILINE)


def running_transactions(connection: psycopg.Connection[Any], besides: Collection[int] = ()) -> str:
    """The oldest transactions that run, for messages: process, role, application, and for how long.

    Args:
        connection: in autocommit mode: inside a transaction the server shows what was at its first look.
        besides: backends of our own.
    """
    sessions = connection.execute(_SESSIONS_QUERY, [list(besides), _MOST]).fetchall()
    prepared = connection.execute(_PREPARED_QUERY, [_MOST]).fetchall()
    return _said(sessions, prepared)


def without_names(said: str) -> str:
    """A text that holds what `running_transactions` says, without roles, databases and applications.

    The process and its age stay, and the name of a prepared transaction: with them it is found at the server.
    """
    return _PREPARED.sub(r"\1\2", _SESSION.sub(r"\1\2", said))


def _said(sessions: Sequence[tuple[Any, ...]], prepared: Sequence[tuple[Any, ...]]) -> str:
    said = [
        f"pid {pid} ({', '.join(filter(None, (f'{user} on {database}', application, state)))}, {age} s)"
        for pid, user, database, application, state, age in sessions
    ]
    said += [f"prepared transaction {gid} of {owner} ({age} s)" for gid, owner, age in prepared]
    return "; ".join(said) or "none visible to this role (it may need pg_read_all_stats)"


class Wait:
    """Since when copies are held up by transactions, and by which. Safe to share.

    A wait that is given up and begun again is one: what ends it is `over`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None
        self._error: TransientError | None = None

    def goes_on(self, tables: Sequence[TableName], blockers: str, where: str) -> str:
        """Copies still wait; returns what is to be said of it.

        Args:
            tables: whose copies wait.
            blockers: as `running_transactions` says.
            where: the source.
        """
        named = ", ".join(str(table) for table in tables[:_NAMED])
        more = f" and {len(tables) - _NAMED} more" if len(tables) > _NAMED else ""
        said = f"copying {named}{more} waits for open transactions: {blockers}"
        error = TransientError(said, code="copies-wait-for-transactions", where=where, remedy=REMEDY)
        with self._lock:
            self._since = time.monotonic() if self._since is None else self._since
            self._error = error
        return said

    def over(self) -> bool:
        """Nothing waits any more; whether something did."""
        with self._lock:
            waited = self._error is not None
            self._since = self._error = None
        return waited

    def held_up(self) -> tuple[TransientError, float] | None:
        """What copies wait for, and since how many seconds; None where they do not."""
        with self._lock:
            if self._error is None or self._since is None:
                return None
            return self._error, time.monotonic() - self._since
