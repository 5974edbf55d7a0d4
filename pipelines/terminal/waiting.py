"""The terminal's standard error: its styles, and a line that moves while something takes long.

Colours follow the terminal and its user, by rich's own rules: none where standard error is a file or a pipe,
``NO_COLOR`` is set or ``TERM=dumb``; ``FORCE_COLOR`` asks for them anyway.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

ERROR: Final = "bold red"
WARNING: Final = "yellow"
GOOD: Final = "green"
TITLE: Final = "bold"
QUIET: Final = "dim"
"""Styles; every command takes them from here."""


@cache
def messages() -> Console:
    """The console of standard error. There is one, so that a message and a moving line never mix."""
    from rich.console import Console  # noqa: PLC0415 - most commands never print in colours

    return Console(stderr=True, soft_wrap=True, highlight=False)


@contextmanager
def waiting(text: str, announce: Callable[[str], None] | None) -> Iterator[None]:
    """Show what is waited for, and for how long, until the block ends; then the line is gone.

    Messages that are printed meanwhile stand above it; results are printed after the block. Beside the main
    thread no line moves: there somebody else draws, as a prompt or a live view.

    Args:
        text: what takes long, e.g. ``starting Spark``.
        announce: is told once where no line can move; None: nothing is shown anywhere.
    """
    beside = threading.current_thread() is not threading.main_thread()
    if announce is None or beside or not sys.stderr.isatty() or messages().is_dumb_terminal:
        if announce is not None:
            announce(f"{text} …")
        yield
        return
    from rich.progress import (  # noqa: PLC0415 - on a terminal alone
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = SpinnerColumn(), TextColumn("{task.description} …", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=messages(), transient=True, redirect_stdout=False) as progress:
        progress.add_task(text, total=None)
        yield
