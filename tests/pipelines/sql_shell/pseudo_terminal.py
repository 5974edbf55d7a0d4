"""A command on a terminal into which a test types."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.living import processes

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

ROOT = Path(__file__).parents[3]
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\x1b[=>]")
_LAUNCH = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, '-m', 'deltasmelt', *sys.argv[1:]])"
)


class Terminal:
    """A process of `smelt …` with a pseudo-terminal; killed at the end of the block."""

    def __init__(self, *arguments: str | Path, folder: Path, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "SMELT_LOGS": str(folder / "logs"),
                "XDG_STATE_HOME": str(folder / "state"),
                "PROMPT_TOOLKIT_NO_CPR": "1",
                "TERM": "xterm-256color",
                **environment,
            },
        )
        os.close(theirs)
        self.seen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def type(self, text: str, expected: str, seconds: float = 240) -> str:
        """Type a line or a control character; return the output up to the expected text.

        The output omits colours and cursor movements.
        """
        self._put(text)
        return self._shown(lambda shown: expected in shown, expected, seconds)

    def until_prompt(self, prompt: str, text: str = "", seconds: float = 240) -> str:
        """Type an optional line; return the output up to the next prompt, given without its blank."""
        if text:
            self._put(text)
        return self._shown(lambda shown: shown.rstrip().endswith(prompt), prompt, seconds)

    def children(self, program: str) -> list[int]:
        """Return the ids of the command's child processes of a program."""
        return [
            process.pid
            for process in processes()
            if (process.name, process.parent) == (program, self.process.pid)
        ]

    def _put(self, text: str) -> None:
        os.write(self._ours, (text if text < " " else f"{text}\r").encode())

    def _shown(self, is_there: Callable[[str], bool], expected: str, seconds: float) -> str:
        screen, deadline = "", time.monotonic() + seconds
        while True:
            assert time.monotonic() < deadline, f"{expected!r} did not come; shown is:\n{screen}"
            chunk = self._read(0.3)
            if not chunk and is_there(screen):
                return screen
            screen += chunk

    def ended(self, seconds: float = 60) -> int:
        """Wait for the end of the process; return its exit code."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.seen
            self._read()
        return self.process.returncode

    def _read(self, seconds: float = 0.1) -> str:
        ready, _, _ = select.select([self._ours], [], [], seconds)
        try:
            read = os.read(self._ours, 65_536).decode(errors="replace") if ready else ""
        except OSError:  # the other side is closed
            return ""
        plain = _STYLE.sub("", read)
        self.seen += plain
        return plain
