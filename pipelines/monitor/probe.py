"""Probe a command with ``--http``: a health check for machines without `curl`.

    python -m deltasmelt.pipelines.monitor.probe [/healthz | /readyz] [--http HOST:PORT] [--http-token-file
    FILE]

The probe serves a container's ``HEALTHCHECK`` and a pod's ``exec`` probes, which see nothing but an exit
code. Kubernetes' own HTTP client could not send the token, which no manifest should hold. The probe loads a
tenth of the modules of `smelt`, because the probe runs every few seconds for months. Every outcome except an
answer of 200 is one line and exit code 1. A hung command does not answer within ``--seconds``.
"""

from __future__ import annotations

import argparse
import http.client
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltasmelt.pipelines.monitor.access import BUSY, TOKEN_VARIABLE, address_of
from deltasmelt.pipelines.terminal.visible import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.pipelines.monitor.access import Address

_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - a name for where others listen
_MOST: Final = 4096
"""Largest number of printed bytes of an answer: the reasons in ``/readyz``."""


def _address(text: str) -> Address:
    try:
        return address_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parser() -> argparse.ArgumentParser:
    """Return the parser of the probe's arguments."""
    options = argparse.ArgumentParser(
        prog="python -m deltasmelt.pipelines.monitor.probe",
        description="Exit code 0 if a running command is alive (/healthz) or ready (/readyz).",
    )
    options.add_argument("path", nargs="?", default="/healthz", choices=("/healthz", "/readyz"))
    options.add_argument("--http", type=_address, default=address_of(":8080"), metavar="HOST:PORT")
    options.add_argument("--http-token-file", type=Path, metavar="FILE")
    options.add_argument("--seconds", type=float, default=4.0, help="seconds to wait for the answer")
    return options


def request(address: Address, path: str, token: str, seconds: float) -> tuple[bool, str]:
    """Return the probe's success and the answer's text; a busy command passes the liveness probe.

    Args:
        seconds: time limit for each step of the answer.
    """
    host = _EVERYWHERE.get(address.host, address.host)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connection = http.client.HTTPConnection(host, address.port, timeout=seconds)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        text = answer.read(_MOST).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a token of several lines
        text = type(error).__name__ if isinstance(error, ValueError) else str(error) or type(error).__name__
        return False, f"no answer from {address}: {text}"
    else:
        # A command too busy for one more client is alive, and a supervisor must not end a busy command.
        return answer.status == http.HTTPStatus.OK or (path == "/healthz" and text == BUSY), text
    finally:
        connection.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 for an answer of 200, 1 for any other or none, 2 for wrong arguments."""
    options = parser().parse_args(arguments)
    try:
        token = (
            os.environ.get(TOKEN_VARIABLE, "")
            if options.http_token_file is None
            else options.http_token_file.read_text(encoding="utf-8")
        )
    except (OSError, UnicodeDecodeError) as error:
        message = getattr(error, "strerror", None) or "the file is not text"
        sys.stdout.write(visible(f"{options.http_token_file} cannot be read: {message}\n"))
        return 1
    well, message = request(options.http, options.path, token.strip(), options.seconds)
    sys.stdout.write(visible(f"{message}\n"))
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
