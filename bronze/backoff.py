"""Growing pauses between attempts, with jitter so that clients of one server do not come back all at once.

When a table that failed is tried again: ever more rarely.

Growing pauses between attempts at what failed for a reason that no rule knows.

A lasting cause is tried ever more rarely; the end of a temporary one is noticed within minutes.
"""

from __future__ import annotations

import functools
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, ParamSpec, Self, TypeVar

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Hashable, Iterator


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which a table is not tried.

    Attributes:
        seconds: how long; the next one is twice as long, up to the longest.
        over_at: when it is over, by the monotonic clock.
    """

    seconds: float
    over_at: float

    @classmethod
    def after(cls, before: Pause | None, *, first: float, longest: float) -> Self:
        """The pause that follows another one, or the first."""
        seconds = first if before is None else min(before.seconds * 2, longest)
        # A little early, so that the look at that time finds it over.
        return cls(seconds, time.monotonic() + seconds * 0.9)

    @property
    def is_over(self) -> bool:
        """Whether the table may be tried again."""
        return time.monotonic() >= self.over_at


FIRST_SECONDS: Final = 30.0
LONGEST_SECONDS: Final = 600.0
_Key = TypeVar("_Key", bound="Hashable")


@dataclass(frozen=True, slots=True)
class _Pause:
    """Between two attempts.

    Attributes:
        seconds: how long it is.
        until: its end by the monotonic clock.
    """

    seconds: float
    until: float


class Pauses(Generic[_Key]):
    """What rests after a failure, and how long."""

    def __init__(self) -> None:
        self._pauses: dict[_Key, _Pause] = {}

    def __contains__(self, key: _Key) -> bool:
        """Whether its last attempt failed, be its pause over or not."""
        return key in self._pauses

    def __iter__(self) -> Iterator[_Key]:
        """All of which the last attempt failed."""
        return iter(tuple(self._pauses))

    def failed(self, key: _Key) -> float:
        """An attempt failed; returns for how many seconds there is no other, twice as long as before."""
        known = self._pauses.get(key)
        seconds = FIRST_SECONDS if known is None else min(2 * known.seconds, LONGEST_SECONDS)
        self._pauses[key] = _Pause(seconds, time.monotonic() + seconds)
        return seconds

    def rests(self, key: _Key) -> bool:
        """Whether its pause is not over yet."""
        known = self._pauses.get(key)
        return known is not None and time.monotonic() < known.until

    def passed(self, key: _Key) -> bool:
        """An attempt was good, or it no longer matters; returns whether the one before it had failed."""
        return self._pauses.pop(key, None) is not None


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
