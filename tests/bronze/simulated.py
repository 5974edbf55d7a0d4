"""Simulated hours: an event whose waits end immediately, and the number of attempts that pauses allow."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from deltasmelt.bronze.config.timing import Timing

TWO_HOURS: Final = 7200.0


class SimulatedHours(threading.Event):
    """A stop event that is set after a total waiting time or a maximum number of waits.

    Attributes:
        pauses: duration of each wait in seconds.
    """

    def __init__(self, seconds: float = TWO_HOURS, most: int = 1000) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self._seconds = seconds
        self._most = most

    @property
    def passed(self) -> float:
        return sum(self.pauses)

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout or 0.0)
        if self.passed >= self._seconds or len(self.pauses) > self._most:
            self.set()
        return self.is_set()


def most_attempts(timing: Timing, seconds: float = TWO_HOURS) -> int:
    """Return the number of attempts in this time if every pause is shortest: half of its full length."""
    passed, pause, attempts = 0.0, timing.retry_first, 1
    while passed < seconds:
        passed += pause / 2
        pause = min(2 * pause, timing.retry_longest)
        attempts += 1
    return attempts
