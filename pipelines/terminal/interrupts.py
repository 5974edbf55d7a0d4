"""Ctrl-C, SIGTERM and SIGHUP at a moment when nothing may be left half done."""

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
_AGAIN_SECONDS: Final = 0.05


@contextmanager
def held_back(undo: Callable[[], None]) -> Iterator[None]:
    """Let a short piece of work end before an interruption that arrives meanwhile takes effect.

    A second one takes effect at once. Only the main thread is interrupted by
    signals; in others this does nothing.

    Args:
        undo: called after the work, before a held back interruption takes effect.
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
    """The interruption that an error came from: what was under way failed while it was being carried out."""
    return next((one for one in causes(error, hidden=True) if isinstance(one, kinds)), None)


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that is closed, end the block in order, as Ctrl-C does.

    Only where signals may be handled; a SIGHUP that is ignored (`nohup`) stays so. An interruption that
    arrives while Python cleans an object up cannot leave that code: Python prints it and goes on. Whoever
    stops us sends no second signal before it kills us, so we send it once more ourselves.
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
    told = sys.unraisablehook

    def again(lost: sys.UnraisableHookArgs) -> None:
        if not isinstance(lost.exc_value, Terminated | KeyboardInterrupt):
            told(lost)
            return
        number = lost.exc_value.number if isinstance(lost.exc_value, Terminated) else signal.SIGINT
        # later and from a thread: here it would be lost in the same way
        timer = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), number))
        timer.daemon = True
        timer.start()

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = told
        for number, handler in before.items():
            signal.signal(number, handler)


class Terminated(BaseException):
    """SIGTERM or SIGHUP arrived; like KeyboardInterrupt, no Exception, so that nothing takes it for an error.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: signal.Signals = signal.SIGTERM) -> None:
        super().__init__(number)
        self.number = number
