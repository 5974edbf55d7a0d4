"""Connections to the source, and which server answers there.

Every connection comes from here: rendering settings pinned (see `bronze.postgres.conninfo`), failures turned
into our errors by `translate`, a server that is too old refused at once.

Nobody waits on one for ever: `within` ends a question that takes too long, `until_stopped` one that is not
wanted any more.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg

from bronze.doors import Door, through
from bronze.errors import DefiniteError
from bronze.identifiers import quote_literal
from bronze.lsn import Lsn
from bronze.postgres.conninfo import SESSION_SETTINGS, address_of, conninfo
from bronze.postgres.error_translation import translate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from psycopg.abc import RV, PQGen
    from psycopg.pq.abc import PGconn
    from psycopg.rows import TupleRow

    from bronze.config.sections import SourceSettings

MINIMUM_VERSION: Final = 140000
"""PostgreSQL 14: wal_status of slots, subscripting handlers of types, streaming of partitioned roots are
all there."""

_STOP_LOOK_SECONDS: Final = 0.2
_CANCEL_SECONDS: Final = 2.0
"""How long a server may take to end a statement of somebody who is to stop, before the line is ended."""

_SETTINGS_SINCE: Final = {"idle_session_timeout": (140000, "0"), "transaction_timeout": (170000, "0")}


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Which cluster, history and database answer.

    Attributes:
        system_identifier: made by initdb; a standby shares it with its primary.
        timeline: changes with every promotion.
        version: e.g. 160014.
        started: when its postmaster was started, in microseconds since 1970.
    """

    system_identifier: int
    timeline: int
    version: int
    database: str
    started: int = 0


class SourceConnection(psycopg.Connection["TupleRow"]):
    """A connection in autocommit mode; its statements pass a door, also those around transactions."""

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        """As psycopg's, through which it sends whatever it sends."""
        run = super().wait
        return through(Door.STATEMENT, str(self.pgconn.backend_pid), lambda: run(gen, *args, **kwargs))

    def __exit__(self, *_: object) -> None:
        """Close it, whatever happened, without a word: no line may be there for a ROLLBACK.

        In autocommit mode nothing is left to be committed; what `transaction` began the server ends.
        """
        self.close()


def connect(
    source: SourceSettings, *, application_name: str = "deltasmelt", **extra: str
) -> psycopg.Connection[TupleRow]:
    """An open connection in autocommit mode, with the pinned settings.

    Args:
        source: which server.
        application_name: as pg_stat_activity shows it.
        extra: further libpq keywords.

    Raises:
        TransientError: not reachable now, starting, no free connection.
        ConfigurationError: wrong password, role, database, DSN.
        DefiniteError: refused by pg_hba.conf, a missing privilege, a server older than 14.
    """
    string = conninfo(source, application_name=application_name, **extra)
    with translated(source):
        connection = through(
            Door.CONNECT, application_name, lambda: SourceConnection.connect(string, autocommit=True)
        )
    try:
        with translated(source):
            _require_version(connection.info.server_version, source)
            with within(source.timing.session_settings, connection):
                set_up_session(connection.pgconn, source.timing.client_check)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def translated(source: SourceSettings) -> Iterator[None]:
    """Statements in this block fail with our errors.

    Raises:
        SmeltError: the translation of whatever psycopg raised.
    """
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, source) from error


def lock_timeout(seconds: float) -> str:
    """The statement that bounds each wait for a lock in this transaction; zero would mean no bound."""
    return f"SET LOCAL lock_timeout = '{max(int(seconds * 1000), 1)}ms'"


@contextmanager
def within(
    seconds: float,
    connection: psycopg.Connection[Any],
    end: Callable[[psycopg.Connection[Any]], None] | None = None,
) -> Iterator[None]:
    """End the connection if the block takes longer: a thread that waits on it fails as on a lost connection.

    For short questions, which a living server answers in milliseconds. On a line that stands still, with both
    ends alive, the kernel has nothing to notice. `end` may do less, as cancelling the statement that runs.
    """
    timer = threading.Timer(seconds, end or abandon, [connection])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def until_stopped(stop: threading.Event, *connections: psycopg.Connection[Any]) -> Iterator[None]:
    """In this block, a thread that waits on these connections fails when `stop` is set.

    The server is asked to end the statement, so that nothing of it is left there; where it does not answer,
    the connection is ended. Either way the block fails with an error that would heal, soon after `stop`.
    """
    over = threading.Event()

    def end() -> None:
        for connection in connections:
            if not over.is_set():
                abandon(connection)

    def watch() -> None:
        while not over.wait(_STOP_LOOK_SECONDS):
            if stop.is_set():
                last = threading.Timer(_CANCEL_SECONDS, end)
                last.daemon = True
                last.start()
                for connection in connections:
                    with suppress(psycopg.Error, OSError):
                        connection.cancel_safe(timeout=_CANCEL_SECONDS)
                over.wait(2 * _CANCEL_SECONDS)
                last.cancel()
                return

    threading.Thread(target=watch, name="smelt-until-stopped", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def abandon(connection: psycopg.Connection[Any]) -> None:
    """End a connection under a thread that waits on it, from another thread."""
    if connection.closed:
        return
    with socket.socket(fileno=os.dup(connection.fileno())) as ours, suppress(OSError):
        ours.shutdown(socket.SHUT_RDWR)


def set_up_session(connection: PGconn, client_check: float) -> None:
    """Set the rendering settings on an open session, also a walsender; two round trips.

    Args:
        connection: idle.
        client_check: seconds between two looks of its backend whether we are still there.

    Raises:
        psycopg.Error: the server refused one.
    """
    settings = dict(SESSION_SETTINGS)
    for name, (since, value) in _SETTINGS_SINCE.items():
        if connection.server_version >= since:
            settings[name] = value
    statements = [f"SET {name} = {quote_literal(value)}" for name, value in settings.items()]
    where = str(connection.backend_pid)
    result = through(Door.STATEMENT, where, lambda: connection.exec_("; ".join(statements).encode()))
    if result.status != psycopg.pq.ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(result)
    check = f"SET client_connection_check_interval = {int(1000 * client_check)}".encode()
    result = through(Door.STATEMENT, where, lambda: connection.exec_(check))
    # Refused by a server whose system cannot tell; there one goes without.
    if connection.status != psycopg.pq.ConnStatus.OK:
        raise psycopg.errors.error_from_result(result)


def log_end(connection: psycopg.Connection[Any]) -> Lsn:
    """End of a primary's log: whatever is committed from now on comes after it.

    The insert position: a record may lie before it that is not on disk yet, which `written_end` leaves out.

    Raises:
        DefiniteError: ``server-in-recovery``: a standby has no end itself.
    """
    end = primary_log_end(connection)
    if end is None:
        info = connection.info
        raise in_recovery(f"{info.host}:{info.port}/{info.dbname} as {info.user}")
    return end


def in_recovery(where: str) -> DefiniteError:
    """The server is a standby; to a reader that knew a primary there, perhaps one that is being promoted."""
    return DefiniteError(
        "the server is a standby: neither publication nor heartbeat can be written there",
        code="server-in-recovery",
        where=where,
        remedy="give the primary as the source; of several hosts, target_session_attrs: primary finds it",
    )


def standby_without_slot(where: str) -> DefiniteError:
    """The server is a standby, and what was asked concerns the slot, which its primary has."""
    return DefiniteError(
        "the server is a standby, which has no slot of ours",
        code="server-in-recovery",
        where=where,
        remedy="give the primary's address",
    )


def primary_log_end(connection: psycopg.Connection[Any]) -> Lsn | None:
    """As `log_end`; None on a standby."""
    row = connection.execute(
        "SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_insert_lsn()::text END"
    ).fetchone()
    return None if row is None or row[0] is None else Lsn.parse(row[0])


def written_end(connection: psycopg.Connection[Any]) -> Lsn:
    """End of what the server has written of its log; on a standby of what it has received."""
    row = connection.execute(
        "SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() "
        "ELSE pg_current_wal_lsn() END)::text"
    ).fetchone()
    return Lsn.parse(row[0]) if row else Lsn(0)


def identify(connection: psycopg.Connection[Any]) -> ServerIdentity:
    """Ask the server who it is.

    The timeline of a primary comes from the name of the WAL file it writes: the control file shows that of
    the last checkpoint, which lags behind a promotion.
    """
    row = connection.execute(
        """
        SELECT (SELECT system_identifier FROM pg_control_system()),
               CASE WHEN pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_control_checkpoint())
                    ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END,
               current_database(),
               (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint
        """
    ).fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM has one row
    return ServerIdentity(
        system_identifier=int(row[0]),
        timeline=int(row[1]),
        version=connection.info.server_version,
        database=str(row[2]),
        started=int(row[3]),
    )


def _require_version(version: int, source: SourceSettings) -> None:
    if version < MINIMUM_VERSION:
        found = f"{version // 10000}" if version >= 100000 else f"{version // 10000}.{version // 100 % 100}"
        raise DefiniteError(
            f"the server is PostgreSQL {found}, at least {MINIMUM_VERSION // 10000} is needed",
            code="server-too-old",
            where=address_of(source),
            remedy="upgrade the server; PostgreSQL 14 to 18 are supported",
        )
