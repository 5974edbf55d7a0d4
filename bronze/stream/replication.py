"""Start one stream of the log, drain arrived messages, send status feedback.

The stream uses protocol version 1 with `messages`, offered by every server from 14 on.

**The peer may not be a PostgreSQL.** libpq itself gives up a connection on two lengths: below the length
field's size, and above 30,000 for a kind of message that is never long. COPY data may be long: libpq accepts
up to 2 GiB and requests the memory at once, but uses memory only as the bytes arrive. `read_keepalive` and
`bronze.pgoutput` refuse messages of a valid length with impossible content.

PostgreSQL docs: https://www.postgresql.org/docs/current/protocol-replication.html.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import pq

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.identifiers import quote_identifier, quote_literal
from deltasmelt.bronze.lsn import LAST, ZERO, Lsn
from deltasmelt.bronze.pgoutput.framing import Block, malformed
from deltasmelt.bronze.postgres.replication import ReplicationConnection

if TYPE_CHECKING:
    import threading

    from deltasmelt.bronze.config.sections import SourceSettings

# A wake-up per message costs both ends more than the messages themselves. `SO_RCVLOWAT` lets `poll` sleep
# until so many bytes have arrived.
_WAKE_BYTES: Final = 256 * 1024
_WAKE_SECONDS: Final = 0.02
_TLS_POLL_SECONDS: Final = 0.1
_TLS_ATTEMPTS: Final = 4
_INPUT_BUFFER: Final = 1024 * 1024
_DRAIN_BYTES: Final = 1024 * 1024
"""Bytes to read before the caller checks its clock again."""

_XLOGDATA: Final = struct.Struct(">cQQq")
_KEEPALIVE: Final = struct.Struct(">cQq?")
_STATUS: Final = struct.Struct(">cQQQq?")

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""Zero of PostgreSQL's microsecond clock."""


@dataclass(frozen=True, slots=True)
class Keepalive:
    """A message of the server: everything before `wal_end` has been sent."""

    # exclusive end of the log that the server has decoded and, if published, sent
    wal_end: Lsn
    # the server's clock when it sent the message
    clock: datetime


@dataclass(slots=True)
class Drained:
    """The messages of one drain, in order."""

    # XLogData messages with their 25-byte header
    block: Block
    # the newest keepalive, if it came after all of them
    keepalive: Keepalive | None = None
    # whether the server wants feedback at once
    reply_requested: bool = False
    # newest WAL position seen; 0 without any
    received: Lsn = ZERO


def read_keepalive(data: bytes) -> Keepalive:
    """Parse a message that is too short for a change. Pure.

    Raises:
        DefiniteError: ``stream-malformed``: the message is no keepalive either, or has an impossible value.
    """
    if len(data) != _KEEPALIVE.size or data[:1] != b"k":
        malformed(f"a message of {len(data)} bytes is neither a change nor a keepalive", None)
    _, wal_end, clock, _ = _KEEPALIVE.unpack(data)
    if wal_end > LAST:
        malformed("the LSN of a keepalive is above the highest possible LSN", None)
    try:
        return Keepalive(Lsn(wal_end), _EPOCH + timedelta(microseconds=clock))
    except OverflowError:
        malformed("the clock of a keepalive is outside the calendar", Lsn(wal_end))


class ReplicationStream:
    """The stream of the source's slot, on a separate connection owned by one thread. Not thread-safe."""

    def __init__(
        self, source: SourceSettings, *, application_name: str, stop: threading.Event | None = None
    ) -> None:
        self._source = source
        self._connection = ReplicationConnection(source, application_name=application_name, stop=stop)
        self._pgconn = self._connection.pgconn
        self._where = self._connection.where
        self._socket: socket.socket | None = None
        self._last_byte_at = time.monotonic()
        self._ended: Exception | None = None

    @property
    def backend_pid(self) -> int:
        """Process id of the walsender."""
        return self._connection.backend_pid

    @property
    def silent_for(self) -> float:
        """Seconds since the last byte, as seen by `wait` and `drain`."""
        return time.monotonic() - self._last_byte_at

    def restart_clock(self) -> None:
        """Restart the clock of the silence: nothing was read until now."""
        self._last_byte_at = time.monotonic()

    def start(self, start_at: Lsn, *, encoding: str | None = None) -> None:
        """Send START_REPLICATION for the source's slot at a position.

        Args:
            encoding: encoding of the texts that the server sends; None means UTF-8.

        Raises:
            SmeltError: the slot is missing, in use, invalidated …, or the connection broke.
        """
        if encoding is not None:
            self._connection.query(f"SET client_encoding = {quote_literal(encoding)}")
        # libpq's input buffer grows to the largest message and keeps the size.
        self._connection.query(f"SELECT repeat(' ', {_INPUT_BUFFER})")
        publications = quote_literal(quote_identifier(self._source.publication))
        command = (
            f"START_REPLICATION SLOT {quote_identifier(self._source.slot)} LOGICAL {start_at} "
            f"(proto_version '1', publication_names {publications}, messages 'true')"
        )
        result = self._connection.run(command, Effect.START_STREAM)
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise self._connection.failure(result)
        self._socket = socket.socket(fileno=os.dup(self._pgconn.socket))
        self._set_low_water(_WAKE_BYTES)

    def wait(self, seconds: float, wake: int) -> None:
        """Sleep until a batch has arrived, a few bytes have waited long enough, or the time is over.

        Args:
            seconds: longest time to sleep in all.
            wake: a file descriptor that ends the sleep when it becomes readable.
        """
        poll = select.poll()
        poll.register(self._pgconn.socket, select.POLLIN)
        poll.register(wake, select.POLLIN)
        # Bytes may wait inside the TLS library while the socket has none, so a poll under TLS is short.
        if self._pgconn.ssl_in_use:
            seconds = min(seconds, _TLS_POLL_SECONDS)
        ready = poll.poll(1000 * min(seconds, _WAKE_SECONDS))
        # So that a few bytes never wait longer than 20 ms, wake up for any byte from now on.
        if not ready and seconds > _WAKE_SECONDS:
            self._set_low_water(1)
            ready = poll.poll(1000 * (seconds - _WAKE_SECONDS))
            self._set_low_water(_WAKE_BYTES)
        # Bytes count, not messages: one large row may be on its way for minutes.
        if any(descriptor == self._pgconn.socket for descriptor, _ in ready):
            self.restart_clock()

    def drain(self) -> Drained:
        """Read all arrived input, up to about a megabyte, without waiting.

        Raises:
            SmeltError: the stream or the connection ended.
        """
        return perform(Effect.RECEIVE, self._where, self._drain)

    def _drain(self) -> Drained:
        if self._ended is not None:
            raise self._ended
        messages: list[bytes | memoryview] = []
        take, append = self._take, messages.append
        # Bytes may wait inside the TLS library, so several attempts must bring nothing before the next poll.
        size, fruitless, attempts = 0, 0, _TLS_ATTEMPTS if self._pgconn.ssl_in_use else 1
        keepalive: Keepalive | None = None
        behind, reply_requested = 0, False
        while size < _DRAIN_BYTES and fruitless < attempts:
            self._consume()
            count, data = take(1)
            fruitless = 0 if count else fruitless + 1
            while count > 0:
                if count > _XLOGDATA.size:
                    append(data)
                    size += count
                else:
                    keepalive, behind = read_keepalive(bytes(data)), len(messages)
                    reply_requested |= bool(data[-1])
                count, data = take(1)
            if count < 0:
                self._ended = self._connection.ended()
                if not messages:
                    raise self._ended
                break  # return the messages before the end first
        if messages or keepalive is not None:
            self.restart_clock()
        # Join the messages at once: a queue of single messages would take many times the memory.
        drained = Drained(Block.of(messages), reply_requested=reply_requested)
        if messages:
            _, drained.received, _, _ = _XLOGDATA.unpack_from(messages[-1])
        if keepalive is not None and behind == len(messages):
            drained.keepalive = keepalive
            drained.received = keepalive.wal_end
        return drained

    def wait_for_end(self, seconds: float) -> None:
        """Receive and discard input until the stream ends or the time is over.

        Raises:
            SmeltError: the error that ended the stream.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.drain()
            select.select([self._pgconn.socket], [], [], self._source.timing.command_poll)

    def feedback(self, *, received: Lsn, durable: Lsn, request_reply: bool = False) -> None:
        """Send a status update: `received` as written; `durable` as flushed, the LSN to which the slot moves.

        Raises:
            SmeltError: the stream ended or the connection broke.
        """
        if self._ended is not None:
            raise self._ended
        clock = (datetime.now(UTC) - _EPOCH) // timedelta(microseconds=1)
        status = _STATUS.pack(b"r", max(received, durable), durable, durable, clock, request_reply)

        def send() -> None:
            self._pgconn.put_copy_data(status)
            self._pgconn.flush()

        try:
            perform(Effect.FEEDBACK, f"{self._where} {durable}", send)
        except psycopg.OperationalError as error:
            raise self._connection.lost(error) from error

    def close(self) -> None:
        """Close the connection; the slot becomes free a moment later."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._connection.close()

    def _take(self, asynchronous: int) -> tuple[int, memoryview]:
        try:
            return self._pgconn.get_copy_data(asynchronous)
        except psycopg.OperationalError as error:  # libpq no longer knows where a message begins
            raise self._connection.lost(error) from error

    def _consume(self) -> None:
        try:
            self._pgconn.consume_input()
        except psycopg.OperationalError as error:
            raise self._connection.lost(error) from error

    def _set_low_water(self, size: int) -> None:
        # Without this socket option poll only wakes up more often.
        if self._socket is not None:
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
