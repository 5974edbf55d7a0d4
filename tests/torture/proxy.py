"""A TCP proxy between reader and server that damages connections as networks do.

By default the proxy forwards all bytes. On request the proxy cuts lines, stops in the middle of a message,
delays bytes, or keeps the server's side open after the reader's side ended, as when a machine vanishes.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_LINGER_NOT = struct.pack("ii", 1, 0)


class Proxy:
    """A listener on a free port of 127.0.0.1 for one server; a context manager.

    Attributes:
        delay: seconds that each piece waits before the proxy forwards it.
        refusing: whether the proxy closes new connections immediately.
        leave_open: whether the server's side stays open after the reader's side ended.
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._lines: list[_Line] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.delay = 0.0
        self.refusing = False
        self.leave_open = False

    def dsn(self, server_dsn: str) -> str:
        """Return the server's DSN with the proxy's address."""
        values = conninfo_to_dict(server_dsn)
        return make_conninfo("", **{**values, "host": "127.0.0.1", "port": str(self.port)})

    def stall(self, after: int = 0) -> None:
        """Forward `after` more bytes from the server on each open line, then nothing in either direction."""
        with self._lock:
            for line in self._lines:
                line.budget = after

    def cut(self) -> None:
        """Reset every open line without an orderly close."""
        with self._lock:
            lines, self._lines = self._lines, []
        for line in lines:
            line.close()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                reader, _ = self._listener.accept()
            except OSError:  # closed
                return
            if self.refusing:
                reader.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                reader.close()
                continue
            line = _Line(self, reader, server)
            with self._lock:
                self._lines.append(line)
            line.start()


class _Line:
    """A connection: a socket to each side, and a thread for each direction."""

    def __init__(self, proxy: Proxy, reader: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._reader = reader
        self._server = server
        self._closed = threading.Event()
        self.budget: int | None = None

    def start(self) -> None:
        for task in (self._to_server, self._to_reader):
            threading.Thread(target=task, daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        for side in (self._reader, self._server):
            with suppress(OSError):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()

    def _to_server(self) -> None:
        with suppress(OSError):
            while data := self._reader.recv(65536):
                if self.budget is not None and self.budget <= 0:
                    continue  # taken, and lost on the way
                time.sleep(self._proxy.delay)
                self._server.sendall(data)
        if self._proxy.leave_open:
            self._closed.wait()
        self.close()

    def _to_reader(self) -> None:
        with suppress(OSError):
            while data := self._server.recv(65536):
                if self.budget is not None:
                    data, self.budget = data[: self.budget], self.budget - len(data)
                    if self.budget <= 0:
                        self._reader.sendall(data)
                        break
                time.sleep(self._proxy.delay)
                self._reader.sendall(data)
        if self.budget is not None or self._proxy.leave_open:
            self._closed.wait()
        self.close()
