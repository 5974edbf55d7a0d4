"""Ctrl-C, SIGTERM and SIGHUP during work with an orderly end."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.errors import causes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NUMBERS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REPEAT_SECONDS: Final = 0.05
_TOGETHER_SECONDS: Final = 1.0
_effective_at = -math.inf  # time of the last interruption in a block of `joined`


class Terminated(BaseException):
    """Raised at SIGTERM or SIGHUP; no Exception, like KeyboardInterrupt, so no error handler catches it."""

    def __init__(self, number: signal.Signals = signal.SIGTERM) -> None:
        super().__init__(number)
        self.number = number


INTERRUPTIONS: Final = (KeyboardInterrupt, Terminated)


@contextmanager
def held_back(undo: Callable[[], None]) -> Iterator[None]:
    """Complete a short block before an interruption takes effect.

    A second interruption takes effect at once. Signals interrupt the main thread alone; in other threads the
    block is unprotected.

    Args:
        undo: called after the block, before a deferred interruption takes effect.
    """
    arrived: list[Callable[[], None]] = []

    def hold(interrupt: Callable[[], None]) -> None:
        arrived.append(interrupt)
        if len(arrived) > 1:
            interrupt()

    with _handled(hold):
        yield
    if arrived:
        undo()
        arrived[0]()


@contextmanager
def deferred() -> Iterator[None]:
    """Complete a block of limited length before an interruption takes effect, however many arrive.

    During the handling of an error, the interruption is dropped: the error ends the command already.
    """
    arrived: list[Callable[[], None]] = []
    with _handled(arrived.append):
        yield
    if arrived and sys.exception() is None:
        arrived[0]()


@contextmanager
def joined() -> Iterator[None]:
    """Let interruptions that arrive within a second take effect as one.

    A service ends by several signals at once. The second would interrupt the first step of the block's end,
    before the end has begun with `deferred`. After this time, a person can repeat an interruption.
    """
    global _effective_at  # noqa: PLW0603 - of the process, as handlers of signals are
    if threading.current_thread() is threading.main_thread():
        _effective_at = -math.inf

    def receive(interrupt: Callable[[], None]) -> None:
        global _effective_at  # noqa: PLW0603 - as above
        now = time.monotonic()
        if now - _effective_at >= _TOGETHER_SECONDS:
            _effective_at = now
            interrupt()

    with _handled(receive):
        yield


@contextmanager
def before_interruption(work: Callable[[], None]) -> Iterator[None]:
    """Call `work` at each interruption of the block, before the interruption takes effect.

    So no other block's end comes before `work`, also at a further interruption: that calls `work` again.
    `work` runs between two steps of any code, so it must not log, print, or start a thread.
    """

    def first(interrupt: Callable[[], None]) -> None:
        work()
        interrupt()

    with _handled(first):
        yield


@contextmanager
def _handled(handle: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """Let `handle` receive each interruption of a block, as the call by which it takes effect.

    Signals interrupt the main thread alone; in other threads `handle` receives nothing.
    """
    before: dict[signal.Signals, Any] = {}

    def receive(number: int, frame: object) -> None:
        handle(partial(before[signal.Signals(number)], number, frame))

    if threading.current_thread() is threading.main_thread():
        for number in _NUMBERS:
            if callable(handler := signal.getsignal(number)):
                before[number] = handler
                signal.signal(number, receive)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def interruption_behind(error: BaseException, kinds: tuple[type[BaseException], ...]) -> BaseException | None:
    """Return the interruption behind an error: work in progress failed during the interruption."""
    return next((cause for cause in causes(error, hidden=True) if isinstance(cause, kinds)), None)


@contextmanager
def terminable() -> Iterator[None]:
    """End the block in order at SIGTERM, and at SIGHUP of a closed terminal, as at Ctrl-C.

    The protection needs the right to handle signals; an ignored SIGHUP (`nohup`) stays ignored. Within a
    further block of this kind nothing changes, so an inner block keeps what `before_interruption` has added.
    """
    outer = getattr(signal.getsignal(signal.SIGTERM), "__module__", None) == __name__
    if outer or threading.current_thread() is not threading.main_thread():
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
        global _effective_at  # noqa: PLW0603 - as in `joined`
        _effective_at = -math.inf
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
