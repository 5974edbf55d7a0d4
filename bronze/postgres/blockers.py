"""The transactions that delay a wait until all running transactions have ended, and the start of the wait.

Three operations wait for all running transactions: the creation of the slot, the export of a copy's snapshot,
and tables that joined the publication of a server that may forget changes (`bronze.drift.joining`). An idle
session with an open transaction, or a prepared transaction, delays each of the three without bound, in
whatever database. The server does not report the delay. A waiting caller therefore names the oldest
transactions by this module. Only transactions with a number count: no operation waits for transactions that
only read.
"""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.figures import listed

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import psycopg

    from deltasmelt.bronze.identifiers import TableName

REMEDY: Final = (
    "wait until these transactions end, or end them: SELECT pg_terminate_backend(<pid>); a prepared "
    "transaction: COMMIT PREPARED '<name>'; or ROLLBACK PREPARED '<name>';"
)

_MOST: Final = 5
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


def running_transactions(connection: psycopg.Connection[Any], own_pids: Collection[int] = ()) -> str:
    """Return the oldest running transactions as text: process, role, application, and age.

    Args:
        connection: in autocommit mode: inside a transaction the server repeats its first answer.
    """
    sessions = connection.execute(_SESSIONS_QUERY, [list(own_pids), _MOST]).fetchall()
    prepared = connection.execute(_PREPARED_QUERY, [_MOST]).fetchall()
    return _described(sessions, prepared)


def without_names(text: str) -> str:
    """Return a text of `running_transactions` without roles, databases and applications.

    Process, age, and the name of a prepared transaction remain, to find the transaction at the server.
    """
    return _PREPARED.sub(r"\1\2", _SESSION.sub(r"\1\2", text))


def _described(sessions: Sequence[tuple[Any, ...]], prepared: Sequence[tuple[Any, ...]]) -> str:
    texts = [
        f"pid {pid} ({', '.join(filter(None, (f'{user} on {database}', application, state)))}, {age} s)"
        for pid, user, database, application, state, age in sessions
    ]
    texts += [f"prepared transaction {gid} of {owner} ({age} s)" for gid, owner, age in prepared]
    return "; ".join(texts) or "none visible to this role (it may need pg_read_all_stats)"


class Wait:
    """The wait of copies for transactions: start and message. Safe to share.

    A wait that is given up and begun again counts as one wait, until `over` ends the wait.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None
        self._error: TransientError | None = None

    def goes_on(self, tables: Sequence[TableName], blockers: str, where: str) -> str:
        """Record that copies of `tables` still wait; return the message.

        `blockers` is the text of `running_transactions`.
        """
        message = f"copying {listed(tables)} waits for open transactions: {blockers}"
        error = TransientError(message, code="copies-wait-for-transactions", where=where, remedy=REMEDY)
        with self._lock:
            self._since = time.monotonic() if self._since is None else self._since
            self._error = error
        return message

    def over(self) -> bool:
        """Record the end of the wait; return whether copies waited."""
        with self._lock:
            waited = self._error is not None
            self._since = self._error = None
        return waited

    def held_up(self) -> tuple[TransientError, float] | None:
        """Return the error of the wait and the seconds since its start; None without a wait."""
        with self._lock:
            if self._error is None or self._since is None:
                return None
            return self._error, time.monotonic() - self._since
