"""Growing pauses between attempts: each pause is twice as long as the pause before, up to a bound.

A lasting cause is retried ever more rarely; the end of a temporary cause is noticed within minutes. `Backoff`
is the rule for a single row of attempts. `Pauses` has a row for each table, document or part of the work that
failed, while the rest of the work continues.
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
    """The pauses of a single row of attempts, between `first` and `longest` seconds before jitter."""

    def __init__(self, first: float, longest: float, *, least: float = 0.5) -> None:
        self._first = self._next = first
        self._longest = longest
        self._least = least

    def seconds(self) -> float:
        """Return the seconds to wait after a failed attempt."""
        # `least` is the smallest share of a pause to wait. The rest is jitter, so that the clients of one
        # server do not all reconnect at the same moment.
        seconds = self._next * random.uniform(self._least, 1.0)  # noqa: S311 - no secret
        self._next = min(2 * self._next, self._longest)
        return seconds

    def pause(self, stop: threading.Event) -> bool:
        """Wait after a failed attempt; return whether `stop` was set meanwhile."""
        return stop.wait(self.seconds())

    def worked(self) -> None:
        """Begin with the first pause again. Call after an attempt has done its work, not after its start."""
        self._next = self._first


class Pauses(Generic[_Key]):
    """The keys whose last attempt failed, and the pause of each key."""

    def __init__(
        self, first: float | None = None, longest: float = LONGEST_SECONDS, *, share: float = 1.0
    ) -> None:
        self._first = first
        self._longest = longest
        # A pause is over after this share. A share below 1 lets a periodic poll at the end of a pause find
        # the pause over.
        self._share = share
        self._failed: dict[_Key, tuple[Backoff, float]] = {}

    def __contains__(self, key: _Key) -> bool:
        """Check whether the last attempt for `key` failed, even if the pause is over."""
        return key in self._failed

    def __iter__(self) -> Iterator[_Key]:
        """Iterate over all keys whose last attempt failed."""
        return iter(tuple(self._failed))

    def failed(self, key: _Key) -> float:
        """Begin the next pause after a failed attempt; return the seconds of the pause."""
        if key in self._failed:
            backoff, _ = self._failed[key]
        else:
            first = FIRST_SECONDS if self._first is None else self._first
            backoff = Backoff(first, self._longest, least=1.0)
        seconds = backoff.seconds()
        self._failed[key] = backoff, time.monotonic() + seconds * self._share
        return seconds

    def rests(self, key: _Key) -> bool:
        """Check whether the pause of `key` still lasts."""
        return key in self._failed and time.monotonic() < self._failed[key][1]

    def passed(self, key: _Key) -> bool:
        """Remove the failures of a key that worked or no longer exists; return whether any existed."""
        return self._failed.pop(key, None) is not None


def tried_again(
    error: type[Exception], *, attempts: int, first: float, longest: float
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Return a decorator that calls a function again after an error of one kind.

    The error of the last attempt is raised; every other error is raised at once.
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
