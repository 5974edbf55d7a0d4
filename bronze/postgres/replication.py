"""Commands on a walsender: a connection in replication mode before, or without, a stream.

libpq does all input and output, so every kind of connection that libpq supports works: TLS, Kerberos, several
hosts, service files. `bronze.stream.replication` has the stream.

PostgreSQL docs: https://www.postgresql.org/docs/current/protocol-replication.html.
"""

from __future__ import annotations

import select
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import pq

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.identifiers import quote_identifier
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.postgres.conninfo import address_of
from deltasmelt.bronze.postgres.error_translation import stream_error, translate, translate_result
from deltasmelt.bronze.postgres.liveness import CopyLine

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from psycopg.pq.abc import PGresult

    from deltasmelt.bronze.config.sections import SourceSettings

_LAST_WORDS: Final = 2.0
"""Seconds to wait for the server's own error after a connection failed, or a stream ended."""


@dataclass(frozen=True, slots=True)
class ExportedSnapshot:
    """A state of the whole database that other sessions can read."""

    # the snapshot contains exactly the transactions whose commit record begins before this LSN
    consistent_point: Lsn
    # name of the snapshot, for SET TRANSACTION SNAPSHOT
    name: str


class ReplicationConnection:
    """A connection in replication mode. Not safe to share: one thread owns the connection."""

    def __init__(
        self, source: SourceSettings, *, application_name: str, stop: threading.Event | None = None
    ) -> None:
        self._source = source
        # psycopg connects, because its wait does not block other threads.
        self._connection = connect(source, application_name=application_name, replication="database")
        self._connection.stop = stop
        self.pgconn = self._connection.pgconn
        # name of the connection for `bronze.effects`
        self.where = str(self.pgconn.backend_pid)

    @property
    def backend_pid(self) -> int:
        """Process id of the walsender."""
        return self.pgconn.backend_pid

    def query(self, sql: str) -> list[tuple[str | None, ...]]:
        """Run a command while no stream is open; return all values as text.

        Raises:
            SmeltError: the server refused the command, or the connection broke.
        """
        result = self.run(sql, Effect.REPLICATION_COMMAND)
        if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            raise self.failure(result)
        return [
            tuple(_text(result.get_value(row, column)) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]

    def run(self, sql: str, door: Effect) -> PGresult:
        """Run a command; return the result, even of a failure.

        Raises:
            SmeltError: the connection broke, or the answer is late.
        """
        try:
            return self._connection.command(sql, door)
        except psycopg.OperationalError as error:
            raise self.lost(error) from error

    def export_snapshot(self, slot: str, cancelled: Callable[[], bool]) -> ExportedSnapshot | None:
        """Create a temporary slot and export the snapshot at its consistent point; None after a cancellation.

        The server waits for every running transaction. Other sessions can import the snapshot until the next
        command on this connection, or the connection's end. The slot ends with the connection.

        Raises:
            SmeltError: the server refused, or the connection broke.
        """
        line = CopyLine(self._source, self._connection)
        # Version 14's spelling, which later versions still accept.
        sql = f"CREATE_REPLICATION_SLOT {quote_identifier(slot)} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
        # In case this process is killed, the server checks at intervals whether the client exists
        # (`Timing.client_check`).
        self.query("SELECT")  # starts client_check; a protocol command alone would not
        try:
            with self._own_errors():
                perform(Effect.EXPORT_SNAPSHOT, self.where, lambda: self.pgconn.send_query(sql.encode()))
            while self.pgconn.is_busy():
                # Outside of `_own_errors`: the caller asks other connections, and may meet their loss.
                if cancelled():
                    self._cancel()
                    return None
                if not select.select([self.pgconn.socket], [], [], self._source.timing.copy_poll)[0]:
                    # If the server has answered but nothing arrived, the backend's wait event reveals the
                    # loss (`bronze.postgres.liveness`).
                    line.nothing_came()
                with self._own_errors():
                    perform(Effect.EXPORT_SNAPSHOT, self.where, self.pgconn.consume_input)
            with self._own_errors():  # with the end of the command; the snapshot stays
                result = next(iter(self._connection.rest()), None)
        # Closing the connection does not end the wait, because the server reads nothing from the connection
        # meanwhile. So cancel the wait before giving up, for whatever reason.
        except BaseException:
            self._cancel()
            raise
        if result is None or result.status != pq.ExecStatus.TUPLES_OK:
            raise self.ended() if result is None else self.failure(result)
        point, name = (_text(result.get_value(0, column)) or "" for column in (1, 2))
        return ExportedSnapshot(Lsn.parse(point), name)

    def close(self) -> None:
        """Close the connection; the slot is free a moment later."""
        self._connection.close()

    def _cancel(self) -> None:
        """Cancel the running command; if even the request fails, the server's own check ends the command."""
        with suppress(psycopg.Error, OSError):
            self._connection.cancel_safe(timeout=self._source.timing.cancel)

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        """Translate the loss of this connection."""
        try:
            yield
        except psycopg.OperationalError as error:
            raise self.lost(error) from error

    def lost(self, error: psycopg.OperationalError) -> Exception:
        """Return the error behind the connection's end: the server's last error, if any."""
        with suppress(psycopg.Error):
            result = self._result(_LAST_WORDS)
            if result is not None and result.error_field(pq.DiagnosticField.SQLSTATE):
                return translate_result(result, self._source)
        return translate(error, self._source)

    def ended(self) -> Exception:
        """Return the error with which the server ended the stream."""
        try:
            result = self._result(_LAST_WORDS)
        except psycopg.OperationalError as error:
            return translate(error, self._source)
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return stream_error(result, self._source)
        return TransientError(
            "the server ended the replication stream",
            code="stream-ended",
            where=address_of(self._source),
            remedy="nothing to do if the server was shut down; otherwise read the server's log",
        )

    def _result(self, seconds: float) -> PGresult | None:
        """Return the command's next result; None if nothing complete arrives within some seconds.

        `PQgetResult` waits for the server, and psycopg holds the interpreter's lock meanwhile: no thread of
        the process would run. So the function is called only where it does not wait.
        """
        deadline = time.monotonic() + seconds
        while self.pgconn.is_busy() and self.pgconn.status == pq.ConnStatus.OK:
            remaining = max(deadline - time.monotonic(), 0.0)
            if not select.select([self.pgconn.socket], [], [], remaining)[0]:
                return None
            try:
                self.pgconn.consume_input()
            except psycopg.OperationalError:
                if self.pgconn.status == pq.ConnStatus.OK:
                    raise
        return self.pgconn.get_result()

    def failure(self, result: PGresult) -> Exception:
        """Return the error of a result with an unexpected status."""
        if result.status == pq.ExecStatus.FATAL_ERROR:
            return translate_result(result, self._source)
        return TransientError(
            f"unexpected answer from the server: {pq.ExecStatus(result.status).name}",
            code="stream-ended",
            where=address_of(self._source),
        )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
