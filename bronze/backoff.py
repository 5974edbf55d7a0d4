"""Growing pauses between attempts, with jitter so that clients of one server do not come back all at once."""

from __future__ import annotations

import functools
import random
import time
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Backoff:
    """Pauses, each twice as long as the one before, and each between half and whole.

    Args:
        first: seconds of the first.
        longest: seconds of the longest.
    """

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._next = self._first

    def seconds(self) -> float:
        """An attempt failed: how long to wait before the next."""
        seconds = self._next * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        self._next = min(2 * self._next, self._longest)
        return seconds

    def pause(self, stop: threading.Event) -> bool:
        """An attempt failed: wait; whether `stop` was set meanwhile."""
        return stop.wait(self.seconds())

    def worked(self) -> None:
        """Begin with the first pause again: what the attempts are for has been done, not only begun."""
        self._next = self._first


def tried_again(
    error: type[Exception], *, attempts: int, first: float, longest: float
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """A decorator: call again after an error of this kind; the error of the last attempt is raised.

    Args:
        error: the kind; any other is raised at once.
        attempts: calls at most.
        first: seconds of the first pause.
        longest: seconds of the longest.
    """

    def decorated(call: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(call)
        def persistent(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            backoff = Backoff(first, longest)
            for _ in range(attempts - 1):
                try:
                    return call(*args, **kwargs)
                except error:
                    time.sleep(backoff.seconds())
            return call(*args, **kwargs)

        return persistent

    return decorated
