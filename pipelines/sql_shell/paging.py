"""Long results go through the user's pager; short ones are printed as they are.

Lines are held until they fill the screen. Only then a pager starts, and gets them all. So it can show the
first rows of a result while later ones are still fetched. ``PAGER`` names it, an empty one or ``cat`` asks
for none; by default it is ``less``, which is told to chop long lines and to leave the screen as it was.
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

_LESS: Final = {"LESS": "FRSX", "LESSCHARSET": "utf-8"}
_PROMPT_LINES: Final = 2
"""Of the screen, for what follows the result."""


def pager_command(environment: Mapping[str, str]) -> list[str] | None:
    """The pager's command line; None where the user wants none, or none is there."""
    try:
        words = shlex.split(environment.get("PAGER", "less"))
    except ValueError:  # a quote that is not closed
        return None
    return words if words and words[0] != "cat" and shutil.which(words[0]) else None


class Paged:
    """Where a result's text goes: the terminal, or a pager. Used by one thread after the other.

    Args:
        command: the pager's; None prints everything.
        height: lines of the screen.
    """

    def __init__(self, command: list[str] | None, height: int) -> None:
        self._command = command
        self._height = height - _PROMPT_LINES
        self._held: list[str] | None = None if command is None else []
        self._lines = 0
        self._pager: subprocess.Popen[str] | None = None

    @property
    def paging(self) -> bool:
        """Whether a pager has the terminal."""
        return self._pager is not None

    def write(self, text: str) -> None:
        """Print some text, with its line ends.

        Raises:
            BrokenPipeError: the pager was left.
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
        """Print what is held, or wait until the pager is left; Ctrl-C belongs to the pager meanwhile."""
        if self._held is not None:
            held, self._held = self._held, None
            self._put("".join(held))
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
        held, self._held = self._held or [], None
        sys.stdout.flush()
        if self._command is not None:
            self._pager = subprocess.Popen(  # noqa: S603 - the user's own command
                self._command,
                stdin=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env={**_LESS, **os.environ},
            )
        self._put("".join(held))

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
