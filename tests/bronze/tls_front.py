"""TLS before a server without TLS: the front answers libpq's SSLRequest and then forwards bytes.

The front shows the behaviour of the client and libpq: which certificates libpq accepts and presents, and how
failures are reported. Only a server with TLS maps client certificates to roles (``cert`` in pg_hba.conf).
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bronze.certificates import Certificate

_SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"


class TlsFront:
    """A listener on a free port of 127.0.0.1 until the block ends.

    Args:
        server: certificate that the front presents.
        port: port of the server behind.
        clients: authority that must have issued a client's certificate; None: clients need no certificate.

    Attributes:
        clients_seen: common names of the certificates that clients presented.
    """

    def __init__(self, server: Certificate, port: int, *, clients: Path | None = None) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(server.certificate, server.key)
        if clients is not None:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(clients)
        self.clients_seen: list[str] = []
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while client.recv(8) != _SSL_REQUEST:
                client.sendall(b"N")  # no Kerberos
            client.sendall(b"S")
            with (
                self._context.wrap_socket(client, server_side=True) as outside,
                socket.create_connection(("127.0.0.1", self._server_port)) as inside,
            ):
                subject: Any = (outside.getpeercert() or {}).get("subject", ())
                self.clients_seen += [
                    value for part in subject for name, value in part if name == "commonName"
                ]
                _pass_on(outside, inside)


def _pass_on(outside: ssl.SSLSocket, inside: socket.socket) -> None:
    """Forward both directions in one thread, because two threads must not share an SSL object."""
    while True:
        readable: list[socket.socket] = [outside]
        if not outside.pending():
            readable, _, _ = select.select([outside, inside], [], [])
        for source in readable:
            data = source.recv(65536)
            if not data:
                return
            (inside if source is outside else outside).sendall(data)
