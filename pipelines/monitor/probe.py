"""Ask a command that shows itself by ``--http`` how it is: a health check where there is no `curl`.

    python -m pipelines.monitor.probe [/healthz | /readyz] [--http HOST:PORT] [--http-token-file FILE]

For a container's ``HEALTHCHECK`` and a pod's ``exec`` probes, which see nothing but an exit code. A probe by
Kubernetes' own HTTP client could not send the token, which no manifest should hold. It loads a tenth of what
`smelt` loads, because it runs every few seconds for months. Whatever keeps it from an answer of 200 is one
line and exit code 1. A command that hangs does not answer within ``--seconds``. A command that is too busy to
serve one more client is alive: nobody should end it for that.
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
"""Bytes of an answer that are shown: the reasons of ``/readyz``."""


def _address(text: str) -> Address:
    try:
        return address_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parser() -> argparse.ArgumentParser:
    """What can be asked."""
    made = argparse.ArgumentParser(
        prog="python -m deltasmelt.pipelines.monitor.probe",
        description="Exit code 0 if a running command is well.",
    )
    made.add_argument("path", nargs="?", default="/healthz", choices=("/healthz", "/readyz"))
    made.add_argument("--http", type=_address, default=address_of(":8080"), metavar="HOST:PORT")
    made.add_argument("--http-token-file", type=Path, metavar="FILE")
    made.add_argument("--seconds", type=float, default=4.0, help="for the answer")
    return made


def ask(address: Address, path: str, token: str, seconds: float) -> tuple[bool, str]:
    """Whether the answer is 200, or a busy command is asked whether it lives; and what the answer says.

    Args:
        address: where the command listens.
        path: of the probe.
        token: that it demands; empty for none.
        seconds: for each step of the answer.
    """
    host = _EVERYWHERE.get(address.host, address.host)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connection = http.client.HTTPConnection(host, address.port, timeout=seconds)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        said = answer.read(_MOST).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a token of several lines
        said = type(error).__name__ if isinstance(error, ValueError) else str(error) or type(error).__name__
        return False, f"no answer from {address}: {said}"
    else:
        return answer.status == http.HTTPStatus.OK or (path == "/healthz" and said == BUSY), said
    finally:
        connection.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 for an answer of 200, 1 for any other or none, 2 for arguments that do not parse."""
    asked = parser().parse_args(arguments)
    try:
        token = (
            os.environ.get(TOKEN_VARIABLE, "")
            if asked.http_token_file is None
            else asked.http_token_file.read_text(encoding="utf-8")
        )
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is not text"
        sys.stdout.write(visible(f"{asked.http_token_file} cannot be read: {said}\n"))
        return 1
    well, said = ask(asked.http, asked.path, token.strip(), asked.seconds)
    sys.stdout.write(visible(f"{said}\n"))
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
