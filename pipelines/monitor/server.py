"""The HTTP server of a running command: a few pages, each a view of the newest sample.

The server listens before anything else starts, so a port in use costs no snapshot, and serves in daemon
threads. A request reads memory alone, never server or lake, so no client can slow the pipeline. The server
logs no requests: a query may contain the token.

The server serves a limited number of clients at once, and allows each client some seconds for the whole
request, at any pace of sending. A client with a complete request holds its place.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import socket
import socketserver
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.pipelines.monitor.access import BUSY, Address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from _typeshed import WriteableBuffer

    from deltasmelt.pipelines.monitor.access import Access

_CLIENT_SECONDS: Final = 10.0
"""Time limit of a whole request, and of receiving each half of the answer."""
_CLIENTS: Final = 32
"""Largest number of clients at once. A browser, a Prometheus and some probes are a handful."""
_BUSY: Final = (
    b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
    b"Retry-After: 10\r\n\r\n" + BUSY.encode() + b"\n"
)
_LOGGER = logging.getLogger("deltasmelt.monitor")
_REMEDIES: Final = {
    errno.EADDRINUSE: (
        "choose another port (0 selects a free port), or end the process that listens on this port (ss -ltnp)"
    ),
    errno.EADDRNOTAVAIL: "choose an address of this machine; 127.0.0.1 always exists",
    errno.EACCES: "choose a port of 1024 or above",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # connections that wait to be accepted
    places = _CLIENTS

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._lock = threading.Lock()
        self._open: set[Any] = set()
        self._silent: dict[Any, None] = {}
        """Connections without a request so far, oldest first."""

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a client in a separate thread, or refuse the client at the limit."""
        with self._lock:
            full = len(self._open) >= self.places
            # With all places taken, the client with the longest silence yields its place to the next client.
            # So silent connections cannot keep a probe from its answer.
            refused: Any = next(iter(self._silent), request) if full else None
            self._forget(refused)
            if refused is not request:
                self._open.add(request)
                self._silent[request] = None
        if refused is request:
            with suppress(OSError):
                request.setblocking(False)  # the server never waits for this client
                request.send(_BUSY)
                request.recv(65536)  # unread input would make the client discard the answer
            self.shutdown_request(request)
            return
        if refused is not None:
            with suppress(OSError):
                refused.send(_BUSY)  # fits: nothing was sent on this connection yet
                refused.shutdown(socket.SHUT_RDWR)  # ends the read of the client's thread
        try:
            super().process_request(request, client_address)
        except BaseException:
            with self._lock:
                self._forget(request)
            raise

    def requested(self, request: Any) -> None:
        """Record the complete request of a client, which now holds its place."""
        with self._lock:
            self._silent.pop(request, None)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve one client in its thread; free the place before the client sees the end of the connection."""
        try:
            super().finish_request(request, client_address)
        finally:
            with self._lock:
                self._forget(request)

    def _forget(self, request: Any) -> None:
        self._open.discard(request)
        self._silent.pop(request, None)

    def server_bind(self) -> None:
        """Bind without a query of the name service, which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = map_address(self.server_address)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - its interface
        """Log the failure of a request: the client left, or the page could not be made."""
        _LOGGER.debug("a request was not answered")


class _Server6(_Server):
    address_family = socket.AF_INET6


class _InTime(io.RawIOBase):
    """Input of a client until a deadline, at any pace; each read waits for the remaining time."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        super().__init__()
        self._connection = connection
        self._end = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        remaining = self._end - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._connection.settimeout(remaining)
        return self._connection.recv_into(buffer)


class _InTimeHandler(BaseHTTPRequestHandler):
    client_seconds = _CLIENT_SECONDS
    server_version = "deltasmelt"
    sys_version = ""

    def setup(self) -> None:
        """Read with a deadline: without a deadline, a client with a byte now and then would stay for ever."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_InTime(self.connection, self.client_seconds))

    def log_message(self, *_: Any) -> None:
        """Log nothing: the query may contain the token."""


def map_address(address: Any) -> tuple[str, int]:
    """Return host and port of a socket's address, in any address family."""
    return str(address[0]), int(address[1])


class PageServer:
    """Serves pages at one address until `stop`.

    Args:
        pages: functions by path; each makes its answer at a request.
        option: name of the option with the address, for messages.
        clients: largest number of clients at once; then a silent client, or the new client, is refused (503).
        seconds: time limit of a whole request.

    Raises:
        ConfigurationError: no socket can listen at the address.
    """

    def __init__(
        self,
        address: Address,
        access: Access,
        pages: Mapping[str, Callable[[], Answer]],
        *,
        option: str = "--http",
        clients: int = _CLIENTS,
        seconds: float = _CLIENT_SECONDS,
    ) -> None:
        kind = _Server6 if ":" in address.host else _Server
        try:
            self._server = kind((address.host, address.port), _handler(access, pages, seconds))
            self._server.places = clients
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on this address: {error.strerror or os.strerror(error.errno or 0)}",
                code="cannot-listen",
                where=f"{option} {address}",
                remedy=_REMEDIES.get(error.errno or 0, "choose another address, e.g. 127.0.0.1:8080"),
            ) from None
        self.address = Address(*map_address(self._server.server_address))
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="status-page", daemon=True
        )

    def start(self) -> None:
        """Begin to answer requests."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering requests."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _handler(
    access: Access, pages: Mapping[str, Callable[[], Answer]], seconds: float
) -> type[BaseHTTPRequestHandler]:
    class Handler(_InTimeHandler):
        client_seconds = seconds
        server: _Server

        def do_GET(self) -> None:
            self.server.requested(self.connection)
            path, _, query = self.path.partition("?")
            if not access.knows_host(self.headers):
                message = (
                    b"this page is for names of this machine alone; with --http-token-file for others too\n"
                )
                self._send(Answer(message, status=HTTPStatus.FORBIDDEN))
            elif not access.allows(self.headers, query):
                self._send(
                    Answer(
                        b"a token is needed: Authorization: Bearer TOKEN\n", status=HTTPStatus.UNAUTHORIZED
                    )
                )
            elif (page := pages.get(path)) is None:
                self._send(Answer(b"there is no such page\n", status=HTTPStatus.NOT_FOUND))
            else:
                self._send(_made(page), cookie=access.cookie(query))

        do_HEAD = do_GET  # noqa: N815 - its interface

        def _send(self, answer: Answer, *, cookie: str | None = None) -> None:
            self.connection.settimeout(self.client_seconds)
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("X-Frame-Options", "DENY")
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header(
                "Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
            )
            if answer.status is HTTPStatus.UNAUTHORIZED:
                self.send_header("WWW-Authenticate", "Bearer")
            if cookie is not None:
                self.send_header("Set-Cookie", cookie)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

    return Handler


def _made(page: Callable[[], Answer]) -> Answer:
    try:
        return page()
    except Exception:
        _LOGGER.exception("a page of the status could not be created")
        return Answer(
            b"the page could not be made; smelt.log says why\n", status=HTTPStatus.INTERNAL_SERVER_ERROR
        )
