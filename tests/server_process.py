"""A server of a test's own as a process: it answers at its port when the block begins, and ends with it."""

from __future__ import annotations

import socket
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING, Self

from tests.patience import until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType


class ServerProcess:
    """Started when it is made.

    Args:
        command: program and arguments.
        port: of the loopback, at which it will answer.
        said: file for what it prints.
        folder: that it runs in.
        environment: of the process; None: this one's.
        seconds: in which it has to answer.
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
            until(lambda: self._answers() or self.process.poll() is not None, self._seconds)
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
        """End it."""
        self.process.kill()
        self.process.wait()

    def _answers(self) -> bool:
        with closing(socket.socket()) as one:
            return one.connect_ex(("127.0.0.1", self.port)) == 0
