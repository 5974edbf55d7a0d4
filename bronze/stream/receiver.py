"""Own the replication connection on a thread, fill a bounded queue, and send feedback to the server.

**A separate thread**, because `wal_sender_timeout` cuts a silent client, while decoding or a commit may last
long. The thread sends feedback on a timer, whatever the consumer does.

**Only a durable LSN moves the slot**: the mark of bronze at the begin of a session (`durable`), then what
`confirm` gets. The writer calls `confirm` after its Delta commit is durable. Messages in the queue of a
killed process were never confirmed, so the server sends them again.

**A connection may die without an end**: a firewall forgot the connection, a machine vanished, a proxy hangs.
The kernel's keepalives do not notice all of these. So after some silence the receiver requests an answer. If
the server stays silent although idle (`line`, checked twice), the receiver gives the connection up.

PostgreSQL docs: https://www.postgresql.org/docs/current/protocol-replication.html (Standby status update).
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.figures import estimate_text
from deltasmelt.bronze.postgres.connection import connect, translated
from deltasmelt.bronze.postgres.heartbeat import write_heartbeat
from deltasmelt.bronze.postgres.liveness import Liveness

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.bronze.pgoutput.framing import Block
    from deltasmelt.bronze.stream.replication import Drained, Keepalive, ReplicationStream

_FIRST_SECONDS: Final = 0.01
_DOUBLINGS: Final = 16
"""Bound on the growth of waits: a server that decodes for hours is pushed a million times."""


class Nudge:
    """A counter of the requests that make one session's idle stream advance."""

    def __init__(self, source: SourceSettings, receiver: Receiver) -> None:
        self._source = source
        self._receiver = receiver
        self._pushes = 0

    @property
    def patience(self) -> float:
        """Seconds to wait for input before the next push."""
        # The first waits are short: a server with nothing to send answers in a millisecond, and a job without
        # work ends sooner.
        return min(self._source.timing.target_poll, _FIRST_SECONDS * 2.0 ** min(self._pushes, _DOUBLINGS))

    def push(self) -> None:
        """Request a keepalive; at the third push also write a message, once.

        Raises:
            SmeltError: the server is unreachable or refuses the message.
        """
        self._pushes += 1
        # An idle server rarely reports how far it has read, and its log may end exactly at the position to
        # reach.
        if self._pushes == 3:  # two requests brought nothing
            patience = self._source.timing.watch_answer
            with connect(self._source, patience=patience) as connection, translated(self._source):
                write_heartbeat(connection, "until")
        self._receiver.request_reply()


_FULL_SECONDS: Final = 0.2
"""Longest sleep before a full queue is checked again; the consumer wakes the thread sooner."""


@dataclass(slots=True)
class Batch:
    """Messages in order, their bytes, and the keepalive after all of them, if any.

    `reply_requested`: the server waits for a confirmation, for instance before a shutdown.
    """

    blocks: list[Block]
    size: int = 0
    keepalive: Keepalive | None = None
    reply_requested: bool = False


class Receiver:
    """A thread that receives messages, from `start` to `stop`.

    Args:
        connection: connection with a started stream; owned by the receiver and closed at the end.
        capacity: bytes of messages that may wait in the queue.
        durable: position up to which everything is durable at the start.
        feedback_seconds: longest silence towards the server.
        silence_seconds: longest silence of the server without a check of `line`; the receiver requests an
            answer after a third of this time.
        line: returns the state of the walsender; the silence of an idle walsender means a dead connection.
            Called on the receiver's thread.
        unknown_seconds: longest silence while the walsender's state is unknown.
    """

    def __init__(
        self,
        connection: ReplicationStream,
        *,
        capacity: int,
        durable: Lsn,
        feedback_seconds: float,
        silence_seconds: float,
        line: Callable[[], Liveness] = lambda: Liveness.UNKNOWN,
        unknown_seconds: float = 600.0,
    ) -> None:
        self._connection = connection
        self._silence_seconds = silence_seconds
        self._line = line
        self._unknown_seconds = unknown_seconds
        self._polls_over = 0
        self._capacity = capacity
        self._feedback_seconds = min(feedback_seconds, silence_seconds / 4)
        self._durable = durable
        self._received = durable
        self._queue: deque[Drained] = deque()
        self._size = 0
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._stopping = False
        self._reply_needed = False
        self._report = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._thread = threading.Thread(target=self._run, name="smelt-receiver", daemon=True)

    @property
    def received(self) -> Lsn:
        """Newest WAL position seen on the connection."""
        return self._received

    def start(self) -> None:
        """Begin to receive."""
        self._thread.start()

    def take(self, *, most: int, timeout: float) -> Batch | None:
        """Return the next messages, about `most` bytes; None if nothing arrives in time.

        Raises:
            SmeltError: the error that ended the stream, after everything received before was taken.
        """
        with self._changed:
            self._changed.wait_for(lambda: bool(self._queue) or self._error is not None, timeout)
            if not self._queue:
                # Raise only after the consumer has taken all messages received before. These messages are
                # valid, and the complete transactions among them need not be sent again.
                if self._error is not None:
                    raise self._error
                return None
            was_full = self._size >= self._capacity
            batch = Batch([])
            while self._queue and batch.size < most:
                drained = self._queue.popleft()
                batch.blocks.append(drained.block)
                batch.size += len(drained.block.data)
                batch.keepalive = drained.keepalive
                batch.reply_requested |= drained.reply_requested
            self._size -= batch.size
        if was_full:
            self._wake()
        return batch

    def confirm(self, durable: Lsn, *, at_once: bool = False) -> None:
        """Record that everything before this position is durable; the next feedback moves the slot here."""
        self._durable = durable
        if at_once:
            self._report = True
            self._wake()

    def request_reply(self) -> None:
        """Request a keepalive from the server now."""
        self._reply_needed = self._report = True
        self._wake()

    def stop(self) -> None:
        """End the thread after a last feedback, and close the connection."""
        self._stopping = True
        self._wake()
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        try:
            self._receive()
            self._connection.feedback(received=self._received, durable=self._durable)
        except BaseException as error:  # noqa: BLE001 - the consumer raises the error
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            self._connection.close()

    def _receive(self) -> None:
        due = watch_due = 0.0
        while not self._stopping:
            now = time.monotonic()
            # The watch has its own clock: a consumer that requests a reply every tenth of a second would
            # postpone the watch with each request, and a dead connection would never end.
            if now >= watch_due:
                watch_due = now + self._feedback_seconds
                if self._watch():
                    self._reply_needed, due = True, 0.0
            if now >= due or self._report:
                self._report = False
                reply_needed, self._reply_needed = self._reply_needed, False
                self._connection.feedback(
                    received=self._received, durable=self._durable, request_reply=reply_needed
                )
                due = now + self._feedback_seconds
            # With a full queue the thread stops reading but still sends feedback. The server then waits, and
            # nothing is buffered here.
            if self._size >= self._capacity:
                # A keepalive unread behind data needs no answer, because any feedback counts.
                self._sleep(min(_FULL_SECONDS, due - now))
                self._connection.restart_clock()
                continue
            drained = self._connection.drain()
            if drained.reply_requested:
                due = 0.0
            if len(drained.block) or drained.keepalive is not None:
                self._put(drained)
            elif not drained.reply_requested:
                self._connection.wait(max(min(due, watch_due) - now, 0.0), self._wake_read)
                self._clear_wake()

    def _watch(self) -> bool:
        """Check whether to request an answer from the server.

        Raises:
            TransientError: the server gave no answer and is idle, or its state is unknown for too long.
        """
        silent = self._connection.silent_for
        if silent < self._silence_seconds:
            self._polls_over = 0
            return silent >= self._silence_seconds / 3
        # A walsender that decodes a large transaction is silent, too, for any length of time, and is left
        # alone. A walsender in an unknown state is left alone for `unknown_seconds`.
        liveness = self._line()
        self._polls_over = self._polls_over + 1 if liveness is Liveness.OVER else 0
        unknown = liveness is Liveness.UNKNOWN and silent >= self._unknown_seconds
        if self._polls_over > 1 or unknown:
            idle = "although the server is idle and the reader requested an answer"
            raise TransientError(
                f"nothing has arrived over the replication connection for {estimate_text(silent)}, "
                + ("and the server does not report the state of the connection" if unknown else idle),
                code="connection-lost",
                remedy="nothing to do: the reader restarts the stream. If this happens often, check "
                "firewalls and proxies between reader and server",
            )
        return True

    def _put(self, drained: Drained) -> None:
        with self._changed:
            self._received = max(self._received, drained.received)
            self._queue.append(drained)
            self._size += len(drained.block.data)
            self._changed.notify()

    def _sleep(self, seconds: float) -> None:
        select.select([self._wake_read], [], [], max(seconds, 0.0))
        self._clear_wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # a full pipe wakes as well
            os.write(self._wake_write, b"!")

    def _clear_wake(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
