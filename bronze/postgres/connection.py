"""Connections to the source, and the identity of the server that answers.

Every connection is opened here: the settings that decide how values print are pinned (see
`bronze.postgres.conninfo`), `translate` converts failures into deltasmelt's errors, and a too old server is
refused at once.

**No wait for an answer is endless.** A stuck proxy or backend may swallow an answer, and the kernel cannot
detect the loss. Each command of psycopg and of deltasmelt passes `SourceConnection`. The class closes the
connection if the answer is late (`Timing.answer`, or the bound of `within`) or no longer wanted
(`until_stopped`). Whether the server ran the command is unknown, as after any lost connection.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import generators

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.figures import seconds_text
from deltasmelt.bronze.identifiers import quote_literal
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.postgres.conninfo import SESSION_SETTINGS, address_of, conninfo
from deltasmelt.bronze.postgres.error_translation import translate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from psycopg.abc import RV, PQGen
    from psycopg.pq.abc import PGresult

    from deltasmelt.bronze.config.sections import SourceSettings

MINIMUM_VERSION: Final = 140000
"""The first version with wal_status of slots, subscripting of types, and streams of partitioned roots."""

_CANCEL_SECONDS: Final = 2.0
"""Time for a server to end the statement of a stopped thread, before the connection is closed."""

_SETTINGS_SINCE: Final = {"idle_session_timeout": (140000, "0"), "transaction_timeout": (170000, "0")}


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The cluster, history and database that answer."""

    # created by initdb; a standby has the identifier of its primary
    system_identifier: int
    # changes with every promotion of a standby
    timeline: int
    # The server's version as a number, e.g. 160014.
    version: int
    database: str
    # start of the postmaster, in microseconds since 1970
    started: int = 0


class SourceConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection in autocommit mode; each command is an effect, including commands around transactions."""

    # seconds to wait for each answer
    patience: float = 60.0
    # end of the wait by the monotonic clock, instead of `patience`
    deadline: float | None = None
    # event that ends the running command
    stop: threading.Event | None = None

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        """Wait like psycopg's method, through which psycopg sends every command."""
        return perform(
            Effect.STATEMENT, str(self.pgconn.backend_pid), lambda: self._answer(gen, *args, **kwargs)
        )

    def command(self, sql: str, door: Effect = Effect.STATEMENT) -> PGresult:
        """Run commands without psycopg; return the last result, or the result that begins a COPY.

        Raises:
            psycopg.OperationalError: the connection is lost, or the answer is late.
        """

        def run() -> PGresult:
            self.pgconn.send_query(sql.encode())
            results: list[PGresult] = self._answer(generators.execute(self.pgconn))
            return results[-1]

        return perform(door, str(self.pgconn.backend_pid), run)

    def rest(self) -> list[PGresult]:
        """Return the remaining results of a command, to its end; raises like `command`."""
        return self._answer(generators.fetch_many(self.pgconn))

    def _answer(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        return super().wait(self._bounded(gen), *args, **kwargs)

    def _bounded(self, gen: PQGen[RV]) -> PQGen[RV]:
        """Run a generator of psycopg to its end, unless it takes too long or `stop` is set."""
        started = time.monotonic()
        deadline = started + self.patience if self.deadline is None else self.deadline
        stopped_at: float | None = None
        try:
            state = next(gen)
            while True:
                # Psycopg resumes the generator when the socket is ready, and ten times a second.
                ready = yield state
                now = time.monotonic()
                if stopped_at is None and self.stop is not None and self.stop.is_set() and not ready:
                    # Cancel first, so that nothing of the statement remains at the server.
                    with suppress(psycopg.Error, OSError):
                        self.cancel_safe(timeout=_CANCEL_SECONDS)
                    stopped_at = now = time.monotonic()
                    deadline = min(deadline, stopped_at + _CANCEL_SECONDS)
                if now >= deadline:
                    self.close()
                    raise psycopg.OperationalError(
                        f"the server has not answered for {seconds_text(now - started)}"
                    )
                state = gen.send(ready)
        except StopIteration as end:
            result: RV = end.value
            return result

    def __exit__(self, *_: object) -> None:
        """Close the connection after any outcome, without a command: a ROLLBACK may meet a lost connection.

        In autocommit mode nothing remains to commit; the server ends a block of `transaction`.
        """
        self.close()


def connect(
    source: SourceSettings,
    *,
    application_name: str = "deltasmelt",
    patience: float | None = None,
    **extra: str,
) -> SourceConnection:
    """Return an open connection in autocommit mode, with the pinned settings.

    Args:
        patience: seconds to wait for each answer; by default `Timing.answer`.

    Raises:
        TransientError: unreachable now, starting, or without a free connection.
        ConfigurationError: wrong password, role, database or DSN.
        DefiniteError: refused by pg_hba.conf or for a missing privilege; or the server is older than version
            14.
    """
    string = conninfo(source, application_name=application_name, **extra)
    with translated(source):
        connection = perform(
            Effect.CONNECT, application_name, lambda: SourceConnection.connect(string, autocommit=True)
        )
    try:
        with translated(source):
            _require_version(connection.info.server_version, source)
            with within(source.timing.session_settings, connection):
                set_up_session(connection, source.timing.client_check)
        connection.patience = source.timing.answer if patience is None else patience
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def translated(source: SourceSettings) -> Iterator[None]:
    """Convert errors of psycopg in this block into deltasmelt's errors.

    Raises:
        SmeltError: the translation of the error that psycopg raised.
    """
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, source) from error


def lock_timeout(seconds: float) -> str:
    """Return the statement that bounds each wait for a lock in this transaction; zero would mean no bound."""
    return f"SET LOCAL lock_timeout = '{max(int(seconds * 1000), 1)}ms'"


@contextmanager
def within(
    seconds: float,
    connection: psycopg.Connection[Any],
    end: Callable[[psycopg.Connection[Any]], None] | None = None,
) -> Iterator[None]:
    """Close the connection if the block takes longer: its commands fail as on a lost connection.

    `end` may do less, for example cancel the running statement. `end` is called whatever the block does then.
    """
    if end is None and isinstance(connection, SourceConnection):
        outer, deadline = connection.deadline, time.monotonic() + seconds
        connection.deadline = deadline if outer is None else min(outer, deadline)
        try:
            yield
        finally:
            connection.deadline = outer
        return
    timer = threading.Timer(seconds, end or abandon, [connection])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def until_stopped(stop: threading.Event, *connections: psycopg.Connection[Any]) -> Iterator[None]:
    """Let commands on these connections fail once `stop` is set, with a transient error, in this block."""
    sources = [connection for connection in connections if isinstance(connection, SourceConnection)]
    for connection in sources:
        connection.stop = stop
    try:
        yield
    finally:
        for connection in sources:
            connection.stop = None


def abandon(connection: psycopg.Connection[Any]) -> None:
    """End a connection from another thread than the thread that waits on the connection."""
    if connection.closed:
        return
    with socket.socket(fileno=os.dup(connection.fileno())) as line, suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)


def set_up_session(connection: SourceConnection, client_check: float) -> None:
    """Set the pinned settings on an open, idle session, also of a walsender; two round trips.

    `client_check` is the number of seconds between two checks of the backend whether its client exists.

    Raises:
        psycopg.Error: the server refused a setting.
    """
    settings = dict(SESSION_SETTINGS)
    for name, (since, value) in _SETTINGS_SINCE.items():
        if connection.info.server_version >= since:
            settings[name] = value
    statements = [f"SET {name} = {quote_literal(value)}" for name, value in settings.items()]
    result = connection.command("; ".join(statements))
    if result.status != psycopg.pq.ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(result)
    # A server refuses the setting if its operating system lacks the check; the session works without it.
    # An ended backend (FATAL) is an error.
    checked = connection.command(f"SET client_connection_check_interval = {int(1000 * client_check)}")
    if checked.status != psycopg.pq.ExecStatus.COMMAND_OK:
        error = psycopg.errors.error_from_result(checked)
        if error.diag.severity_nonlocalized == "FATAL" or error.sqlstate is None:
            raise error


def log_end(connection: psycopg.Connection[Any]) -> Lsn:
    """Return the end of a primary's log: every later commit follows this position.

    The result is the insert position: a record before it may not be on disk yet, and `written_end` excludes
    unwritten records.

    Raises:
        DefiniteError: ``server-in-recovery``: a standby has no end of its own.
    """
    end = primary_log_end(connection)
    if end is None:
        info = connection.info
        raise in_recovery(f"{info.host}:{info.port}/{info.dbname} as {info.user}")
    return end


def in_recovery(where: str) -> DefiniteError:
    """Return the error that the server is a standby, perhaps during its promotion."""
    return DefiniteError(
        "the server is a standby: neither a publication nor a heartbeat can be written to a standby",
        code="server-in-recovery",
        where=where,
        remedy="set the primary as the source; with several hosts, target_session_attrs: primary selects the "
        "primary",
    )


def standby_without_slot(where: str) -> DefiniteError:
    """Return the error that the server is a standby, but the command needs the primary's slot."""
    return DefiniteError(
        "the server is a standby and does not have the pipeline's slot",
        code="server-in-recovery",
        where=where,
        remedy="set the primary's address in the source section",
    )


def primary_log_end(connection: psycopg.Connection[Any]) -> Lsn | None:
    """Return the same position as `log_end`; None on a standby."""
    row = connection.execute(
        "SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_insert_lsn()::text END"
    ).fetchone()
    return None if row is None or row[0] is None else Lsn.parse(row[0])


def written_end(connection: psycopg.Connection[Any]) -> Lsn:
    """Return the end of the log that the server has written; on a standby, the end that it has received."""
    row = connection.execute(
        "SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() "
        "ELSE pg_current_wal_lsn() END)::text"
    ).fetchone()
    return Lsn.parse(row[0]) if row else Lsn(0)


def identify(connection: psycopg.Connection[Any]) -> ServerIdentity:
    """Read the server's identity.

    A primary's timeline comes from the name of the WAL file that the primary writes. The control file has the
    timeline of the last checkpoint, which lags behind a promotion.
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
        release = f"{version // 10000}" if version >= 100000 else f"{version // 10000}.{version // 100 % 100}"
        raise DefiniteError(
            f"the server is PostgreSQL {release}; deltasmelt needs PostgreSQL {MINIMUM_VERSION // 10000} or "
            "later",
            code="server-too-old",
            where=address_of(source),
            remedy="upgrade the server; PostgreSQL 14 to 18 are supported",
        )
