"""The HTTP server beside a running command: a few pages, each a view of the newest sample.

It listens before anything else starts, so that a port in use costs no snapshot, and serves in daemon threads.
A request reads memory alone, never server or lake, so that nobody can slow the pipeline by asking. A client
that says nothing is closed after some seconds. Requests are not logged: a query may hold the token.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import socketserver
import threading
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from bronze.errors import ConfigurationError
from pipelines.monitor.access import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pipelines.monitor.access import Access

_CLIENT_SECONDS: Final = 10.0
_LOGGER = logging.getLogger("deltasmelt.monitor")
_REMEDIES: Final = {
    errno.EADDRINUSE: "choose another port (0 takes a free one), or end what listens there (ss -ltnp)",
    errno.EADDRNOTAVAIL: "choose an address of this machine; 127.0.0.1 is always one",
    errno.EACCES: "choose a port of 1024 or above",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def server_bind(self) -> None:
        """Bind without asking the name service who we are, which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = map_address(self.server_address)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - its interface
        """A client went away, or a page could not be made."""
        _LOGGER.debug("a request was not answered")


class _Server6(_Server):
    address_family = socket.AF_INET6


def map_address(found: Any) -> tuple[str, int]:
    """Host and port of a socket's address, of whichever family."""
    return str(found[0]), int(found[1])


class PageServer:
    """Serves pages at one address until it is stopped.

    Args:
        address: where.
        access: who may see them.
        pages: by path; each makes its answer when it is asked.
        option: that named the address, for messages.

    Raises:
        ConfigurationError: nobody can listen there.
    """

    def __init__(
        self,
        address: Address,
        access: Access,
        pages: Mapping[str, Callable[[], Answer]],
        *,
        option: str = "--http",
    ) -> None:
        kind = _Server6 if ":" in address.host else _Server
        try:
            self._server = kind((address.host, address.port), _handler(access, pages))
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen there: {error.strerror or os.strerror(error.errno or 0)}",
                code="cannot-listen",
                where=f"{option} {address}",
                remedy=_REMEDIES.get(error.errno or 0, "choose another address, e.g. 127.0.0.1:8080"),
            ) from None
        self.address = Address(*map_address(self._server.server_address))
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="status-page", daemon=True
        )

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no more."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _handler(access: Access, pages: Mapping[str, Callable[[], Answer]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _CLIENT_SECONDS
        server_version = "deltasmelt"
        sys_version = ""

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if not access.knows_host(self.headers):
                said = (
                    b"this page is for names of this machine alone; with --http-token-file for others too\n"
                )
                self._send(Answer(said, status=HTTPStatus.FORBIDDEN))
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

        def log_message(self, *_: Any) -> None:
            """Nothing: the query may hold the token."""

    return Handler


def _made(page: Callable[[], Answer]) -> Answer:
    try:
        return page()
    except Exception:
        _LOGGER.exception("a page of the status could not be made")
        return Answer(
            b"the page could not be made; smelt.log says why\n", status=HTTPStatus.INTERNAL_SERVER_ERROR
        )
