"""Growing pauses between attempts at what failed for a reason that no rule knows.

A lasting cause is tried ever more rarely; the end of a temporary one is noticed within minutes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

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
