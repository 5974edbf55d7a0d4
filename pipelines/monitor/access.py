"""The address of the status page, and the rules of access to the page.

The page shows names of tables and messages of errors, so the server listens on this machine alone by default.
Any other address requires a token: in the header ``Authorization: Bearer …``, or as ``?token=…`` from a
browser, which then receives a cookie in the token's place. Without the required token nothing starts. A
configured token is required on this machine too.

On this machine without a token, the name in the Host header must be local.
"""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import parse_qs

from deltasmelt.bronze.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from email.message import Message
    from pathlib import Path

TOKEN_VARIABLE: Final = "SMELT_HTTP_TOKEN"  # noqa: S105 - its name
BUSY: Final = "too many clients are connected"
"""Answer when every place is taken; the answer alone shows a living command."""
Headers: TypeAlias = "Mapping[str, str] | Message"
"""Headers of a request, in any case of letters, or as tests write them."""

_LEAST: Final = 16
_REMEDY: Final = (
    "write a random token into a file and name the file: openssl rand -hex 32 > token; --http-token-file "
    f"token (or set {TOKEN_VARIABLE}); or listen on 127.0.0.1"
)


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port to listen at; port 0 takes a free port."""

    host: str
    port: int

    @property
    def local(self) -> bool:
        """True if no other machine can reach the address."""
        return is_local(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """Addresses of a command's views."""

    # address of the status page; None for no page
    http: Address | None = None
    # port on this machine with metrics alone; None for no such port
    metrics_port: int | None = None
    # file with the token for the page
    token_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of access to the page."""

    # the required token; None admits everybody on this machine
    token: str | None = field(default=None, repr=False)

    def allows(self, headers: Headers, query: str) -> bool:
        """Check whether a request has the required token."""
        if self.token is None:
            return True
        kind, _, bearer = headers.get("Authorization", "").partition(" ")
        offered = [bearer.strip()] if kind.lower() == "bearer" else []
        try:
            offered += parse_qs(query, max_num_fields=20).get("token", [])
        except ValueError:
            return False
        offered += _cookies(headers, self._cookie_name())
        # Comparing every pair in constant time reveals no prefix of a secret.
        accepted = (self.token.encode(), self._mark().encode())
        matches = [
            hmac.compare_digest(credential.encode(), secret) for credential in offered for secret in accepted
        ]
        return any(matches)

    def cookie(self, query: str) -> str | None:
        """Return the cookie for a browser with ``?token=…``, so that links need no token; otherwise None."""
        if self.token is None or "token=" not in query:
            return None
        return f"{self._cookie_name()}={self._mark()}; HttpOnly; SameSite=Strict; Path=/"

    def _mark(self) -> str:
        """Return a digest in the token's place; nobody can compute the token from the digest."""
        return hmac.new((self.token or "").encode(), b"deltasmelt status page", "sha256").hexdigest()

    def _cookie_name(self) -> str:
        """Name of the cookie, different for each token."""
        return (
            # Ports of one host share cookies. A name derived from the token keeps two pipelines of one
            # machine from logging each other out.
            f"smelt-{hmac.new((self.token or '').encode(), b'name of the cookie', 'sha256').hexdigest()[:12]}"
        )

    def knows_host(self, headers: Headers) -> bool:
        """Check whether the request names this machine; with a required token, any name is accepted."""
        if self.token is not None:
            return True
        # A foreign web page could resolve its own name to 127.0.0.1, and read the status page through the
        # user's browser.
        host = headers.get("Host", "")
        name = host.partition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
        return not name or is_local(name)


def _cookies(headers: Headers, cookie_name: str) -> list[str]:
    pairs = (part.strip().partition("=") for part in headers.get("Cookie", "").split(";"))
    return [value for name, _, value in pairs if name == cookie_name]


def is_local(host: str) -> bool:
    """Check whether a name or address belongs to this machine's loopback."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def address_of(text: str) -> Address:
    """Parse ``127.0.0.1:8080``, ``[::1]:8080`` or ``:8080`` (this machine).

    Raises:
        ValueError: text of another form.
    """
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ValueError("expected HOST:PORT, e.g. 127.0.0.1:8080")
    bracketed = host.startswith("[") and host.endswith("]")
    if (":" in host) != bracketed or "/" in host or "@" in host:
        raise ValueError("expected HOST:PORT, e.g. 127.0.0.1:8080 or [::1]:8080")
    return Address(host.strip("[]") or "127.0.0.1", int(port))


def access_to(address: Address, *, token_file: Path | None, variable: str | None) -> Access:
    """Return the rules of access to a page at an address.

    Args:
        variable: the token from the environment; the file takes precedence.

    Raises:
        ConfigurationError: a required token is missing, or a token is unusable.
    """
    source, token = f"--http {address}", (variable or "").strip()
    if token_file is not None:
        source, token = str(token_file), _read(token_file)
    if not token:
        if address.local and token_file is None:
            return Access()
        message = (
            "the file contains no token"
            if token_file
            else "other machines can reach this address, so the page needs a token"
        )
        raise ConfigurationError(message, code="http-token", where=source, remedy=_REMEDY)
    if len(token) < _LEAST or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError(
            f"the token must be at least {_LEAST} letters, digits and signs, without spaces",
            code="http-token",
            where=source if token_file else TOKEN_VARIABLE,
            remedy=_REMEDY,
        )
    return Access(token)


def _read(file: Path) -> str:
    try:
        return file.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the file is not text"
        raise ConfigurationError(
            f"the file with the token cannot be read: {reason}",
            code="http-token",
            where=str(file),
            remedy=_REMEDY,
        ) from None
