"""Growing pauses between attempts: each twice as long as the one before, up to a longest.

A lasting cause is tried ever more rarely; the end of a temporary cause is noticed within minutes.

`Backoff` is the rule, for one line of attempts; `Pauses` keeps a line for each table, document or part of the
work that failed, so that the others go on meanwhile.
"""

from __future__ import annotations

import functools
import random
import time
from typing import TYPE_CHECKING, Final, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Hashable, Iterator

FIRST_SECONDS: Final = 30.0
LONGEST_SECONDS: Final = 600.0
_Key = TypeVar("_Key", bound="Hashable")
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Backoff:
    """The pauses of one line of attempts.

    Args:
        first: seconds of the first pause.
        longest: seconds of the longest pause.
        least: the smallest share of a pause that is waited for. The rest is jitter, so that clients of one
            server do not come back all at once.
    """

    def __init__(self, first: float, longest: float, *, least: float = 0.5) -> None:
        self._first = self._next = first
        self._longest = longest
        self._least = least

    def seconds(self) -> float:
        """Return how long to wait after an attempt that failed."""
        seconds = self._next * random.uniform(self._least, 1.0)  # noqa: S311 - no secret
        self._next = min(2 * self._next, self._longest)
        return seconds

    def pause(self, stop: threading.Event) -> bool:
        """Wait after an attempt that failed; return whether `stop` was set meanwhile."""
        return stop.wait(self.seconds())

    def worked(self) -> None:
        """Begin with the first pause again: the purpose of the attempts is reached, not only begun."""
        self._next = self._first


class Pauses(Generic[_Key]):
    """Which keys failed at their last attempt, and until when each of them rests.

    Args:
        first: seconds of the first pause, by default `FIRST_SECONDS`.
        longest: seconds of the longest pause.
        share: the part of a pause after which it is over: below 1, so that a periodic poll that comes at the
            end of a pause finds it over.
    """

    def __init__(
        self, first: float | None = None, longest: float = LONGEST_SECONDS, *, share: float = 1.0
    ) -> None:
        self._first = first
        self._longest = longest
        self._share = share
        self._failed: dict[_Key, tuple[Backoff, float]] = {}

    def __contains__(self, key: _Key) -> bool:
        """Check whether the last attempt failed, be its pause over or not."""
        return key in self._failed

    def __iter__(self) -> Iterator[_Key]:
        """Give all keys whose last attempt failed."""
        return iter(tuple(self._failed))

    def failed(self, key: _Key) -> float:
        """Begin the next pause of a key whose attempt failed; return its seconds."""
        if key in self._failed:
            backoff, _ = self._failed[key]
        else:
            first = FIRST_SECONDS if self._first is None else self._first
            backoff = Backoff(first, self._longest, least=1.0)
        seconds = backoff.seconds()
        self._failed[key] = backoff, time.monotonic() + seconds * self._share
        return seconds

    def rests(self, key: _Key) -> bool:
        """Check whether the pause of a key is not over yet."""
        return key in self._failed and time.monotonic() < self._failed[key][1]

    def passed(self, key: _Key) -> bool:
        """Forget the failures of a key that went through, or is gone; return whether there was any."""
        return self._failed.pop(key, None) is not None


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
