"""A server process for one test: the server answers on its port during a block and ends with the block."""

from __future__ import annotations

import socket
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING, Self

from tests.patience import wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType


class ServerProcess:
    """A process that starts on construction.

    Args:
        port: port of the loopback on which the server will answer.
        said: file for the process's output, standard error included.
        environment: environment of the process; None: this process's own.
        seconds: time within which the server must answer.
    """

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        said: Path,
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        seconds: float = 60,
    ) -> None:
        self.port = port
        self._said, self._seconds = said, seconds
        with said.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Self:
        try:
            wait_for(lambda: self._answers() or self.process.poll() is not None, self._seconds)
            assert self.process.poll() is None, self._said.read_text()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill the process and wait for its end."""
        self.process.kill()
        self.process.wait()

    def _answers(self) -> bool:
        with closing(socket.socket()) as connection:
            return connection.connect_ex(("127.0.0.1", self.port)) == 0
