"""A server with wrong lengths or impossible messages causes an error of deltasmelt, in bounded memory.

libpq reads the wire, so the tests cover libpq's behaviour, too. The server is a short Python program that
speaks the protocol until the stream has begun.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from deltasmelt.bronze.config.sections import SourceSettings
from deltasmelt.bronze.errors import DefiniteError, SmeltError, TransientError
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.stream.replication import ReplicationStream, read_keepalive

if TYPE_CHECKING:
    from collections.abc import Iterator

READY: Final = b"Z\0\0\0\5I"


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", len(body) + 4) + body


def keepalive(wal_end: int = 5, clock: int = 0, reply: int = 0) -> bytes:
    return struct.pack(">cQqB", b"k", wal_end, clock, reply)


class HostileServer:
    """A server that sends given bytes after START_REPLICATION, and then stays silent or hangs up."""

    def __init__(self, messages: bytes, *, hangs_up: bool) -> None:
        self._messages, self._hangs_up = messages, hangs_up
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        with suppress(OSError):
            line = self._listener.accept()[0]
            with line:
                self._talk(line)

    def _talk(self, line: socket.socket) -> None:
        line.settimeout(20)
        while True:  # a request for encryption is declined
            length, code = struct.unpack(">ii", line.recv(8, socket.MSG_WAITALL))
            if code in (80877103, 80877104):
                line.sendall(b"N")
                continue
            line.recv(length - 8, socket.MSG_WAITALL)
            break
        names = {
            b"server_version": b"16.4",
            b"client_encoding": b"UTF8",
            b"standard_conforming_strings": b"on",
        }
        line.sendall(message(b"R", bytes(4)))
        line.sendall(b"".join(message(b"S", name + b"\0" + value + b"\0") for name, value in names.items()))
        line.sendall(message(b"K", bytes(8)) + READY)
        while True:
            _kind, length = struct.unpack(">ci", line.recv(5, socket.MSG_WAITALL))
            query = line.recv(length - 4, socket.MSG_WAITALL)
            if b"START_REPLICATION" in query:
                break
            if query.startswith(b"SELECT"):
                line.sendall(message(b"T", bytes(2)) + message(b"C", b"SELECT 0\0") + READY)
            else:
                line.sendall(message(b"C", b"SET\0") + READY)
        line.sendall(message(b"W", bytes(3)) + self._messages)
        if not self._hangs_up:
            self._over.wait(20)


def source_at(port: int) -> SourceSettings:
    keys = {"host": "127.0.0.1", "port": port, "user": "me", "database": "shop", "password": "x"}
    return SourceSettings.model_validate({"slot": "s", "publication": "p", **keys})


def memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def drained(said: bytes, *, hangs_up: bool) -> Iterator[bytes]:
    """Return the messages of a stream until the stream fails."""
    server = HostileServer(said, hangs_up=hangs_up)
    with closing(server):
        stream = ReplicationStream(source_at(server.port), application_name="test")
        with closing(stream):
            stream.start(Lsn(1))
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                yield from stream.drain().block.messages()
                time.sleep(0.01)
    pytest.fail("it neither failed nor ended")


LOST = {
    "a length of nothing": b"d" + struct.pack(">i", 0),
    "a length below its own field": b"d" + struct.pack(">i", 3),
    "a negative length": b"d" + struct.pack(">i", -1),
    "a long message of a kind that is short": b"Z" + struct.pack(">i", 30_001) + bytes(100),
    "the end of the stream, without that of the command": b"c" + struct.pack(">i", 4),
    "a kind that there is not": b"?" + struct.pack(">i", 2**31 - 1) + bytes(100),
}


@pytest.mark.parametrize("kind", sorted(LOST))
def test_libpq_drops_connection_with_impossible_lengths(kind: str) -> None:
    with pytest.raises(TransientError) as caught:
        list(drained(LOST[kind], hangs_up=False))
    assert caught.value.code in {"connection-lost", "stream-ended"}
    assert caught.value.remedy


@pytest.mark.parametrize("length", [1000, 2**30, 2**31 - 1])
def test_announced_but_missing_message_takes_no_memory(length: int) -> None:
    before = memory()
    with pytest.raises(SmeltError) as caught:
        list(drained(b"d" + struct.pack(">i", length) + bytes(500), hangs_up=True))
    assert caught.value.code in {"connection-lost", "stream-ended", "server-error"}
    assert memory() - before < 64 << 20


@pytest.mark.parametrize(
    "body",
    [
        b"k",
        keepalive()[:-1],
        keepalive() + b"\0",
        b"w" + bytes(24),
        b"x" + keepalive()[1:],
        keepalive(wal_end=2**64 - 1),
        keepalive(clock=2**63 - 1),
        keepalive(clock=-(2**63)),
    ],
)
def test_short_non_keepalive_message_is_rejected(body: bytes) -> None:
    with pytest.raises(DefiniteError) as caught:
        list(drained(message(b"d", body), hangs_up=False))
    assert caught.value.code == "stream-malformed"


def test_keepalive_is_read_as_in_protocol() -> None:
    assert read_keepalive(keepalive(wal_end=7, clock=1_000_000, reply=1)).clock.isoformat() == (
        "2000-01-01T00:00:01+00:00"
    )
