"""Paging: long results go through the user's pager; short results are printed.

Lines are buffered until they fill the screen. Only then a pager starts and receives all lines, so the pager
shows the first rows of a result while Spark fetches later rows.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# Chops long lines, and leaves the screen unchanged.
_LESS: Final = {"LESS": "FRSX", "LESSCHARSET": "utf-8"}
_PROMPT_LINES: Final = 2
"""Lines of the screen reserved after the result."""


def pager_command(environment: Mapping[str, str]) -> list[str] | None:
    """Return the pager's command line; None without a wanted or installed pager."""
    try:
        # An empty `PAGER`, or `cat`, means no pager.
        words = shlex.split(environment.get("PAGER", "less"))
    except ValueError:  # a quote that is not closed
        return None
    return words if words and words[0] != "cat" and shutil.which(words[0]) else None


class Paged:
    """Destination of a result's text: the terminal, or a pager (`command`). One thread at a time."""

    def __init__(self, command: list[str] | None, height: int) -> None:
        self._command = command
        self._height = height - _PROMPT_LINES
        self._held: list[str] | None = None if command is None else []
        self._lines = 0
        self._pager: subprocess.Popen[str] | None = None

    @property
    def paging(self) -> bool:
        """True while a pager owns the terminal."""
        return self._pager is not None

    def write(self, text: str) -> None:
        """Print text with its line ends.

        Raises:
            BrokenPipeError: the user left the pager.
        """
        if self._held is not None:
            self._held.append(text)
            self._lines += text.count("\n")
            if self._lines <= self._height:
                return
            self._start()
            return
        self._put(text)

    def close(self) -> None:
        """Print the buffered lines, or wait for the pager's end; Ctrl-C belongs to the pager meanwhile."""
        if self._held is not None:
            lines, self._held = self._held, None
            self._put("".join(lines))
        sys.stdout.flush()
        pager, self._pager = self._pager, None
        if pager is None or pager.stdin is None:
            return
        while True:
            try:
                if not pager.stdin.closed:
                    _close(pager)
                pager.wait()
            except KeyboardInterrupt:
                continue
            return

    def _start(self) -> None:
        lines, self._held = self._held or [], None
        sys.stdout.flush()
        if self._command is not None:
            self._pager = subprocess.Popen(  # noqa: S603 - the user's own command
                self._command,
                stdin=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env={**_LESS, **os.environ},
            )
        self._put("".join(lines))

    def _put(self, text: str) -> None:
        if self._pager is not None and self._pager.stdin is not None:
            self._pager.stdin.write(text)
            self._pager.stdin.flush()
        else:
            sys.stdout.write(text)


def _close(pager: subprocess.Popen[str]) -> None:
    if pager.stdin is not None:
        try:
            pager.stdin.close()
        except BrokenPipeError:  # left before it had read everything
            return
