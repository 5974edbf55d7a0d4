"""Ctrl-C, SIGTERM and SIGHUP during work with an orderly end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.errors import causes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NUMBERS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REPEAT_SECONDS: Final = 0.05


@contextmanager
def held_back(undo: Callable[[], None]) -> Iterator[None]:
    """Complete a short block before an interruption takes effect.

    A second interruption takes effect at once. Signals interrupt the main thread alone; in other threads the
    block is unprotected.

    Args:
        undo: called after the block, before a deferred interruption takes effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[signal.Signals] = []
    before: dict[signal.Signals, Any] = {}

    def hold(number: int, frame: object) -> None:
        arrived.append(signal.Signals(number))
        if len(arrived) > 1:
            before[arrived[-1]](number, frame)

    for number in _NUMBERS:
        if callable(handler := signal.getsignal(number)):
            before[number] = handler
            signal.signal(number, hold)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if arrived:
        undo()
        before[arrived[0]](arrived[0], None)


def interruption_behind(error: BaseException, kinds: tuple[type[BaseException], ...]) -> BaseException | None:
    """Return the interruption behind an error: work in progress failed during the interruption."""
    return next((cause for cause in causes(error, hidden=True) if isinstance(cause, kinds)), None)


@contextmanager
def terminable() -> Iterator[None]:
    """End the block in order at SIGTERM, and at SIGHUP of a closed terminal, as at Ctrl-C.

    The protection needs the right to handle signals; an ignored SIGHUP (`nohup`) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        raise Terminated(signal.Signals(number))

    handled = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handled.append(signal.SIGHUP)
    before = {number: signal.signal(number, end) for number in handled}
    previous_hook = sys.unraisablehook

    def again(lost: sys.UnraisableHookArgs) -> None:
        if not isinstance(lost.exc_value, Terminated | KeyboardInterrupt):
            previous_hook(lost)
            return
        number = lost.exc_value.number if isinstance(lost.exc_value, Terminated) else signal.SIGINT
        # Later and from a thread: raised here, the signal would be lost, too.
        timer = threading.Timer(_REPEAT_SECONDS, os.kill, (os.getpid(), number))
        timer.daemon = True
        timer.start()

    # Python prints and drops an interruption during the finalizer of an object. The sender of a signal sends
    # no second signal before SIGKILL, so this process repeats the signal to itself.
    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = previous_hook
        for number, handler in before.items():
            signal.signal(number, handler)


class Terminated(BaseException):
    """Raised at SIGTERM or SIGHUP; no Exception, like KeyboardInterrupt, so no error handler catches it."""

    def __init__(self, number: signal.Signals = signal.SIGTERM) -> None:
        super().__init__(number)
        self.number = number
