"""When a table that failed is tried again: ever more rarely."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from bronze.config.timing import Timing


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which a table is not tried.

    Attributes:
        seconds: how long; the next one is twice as long, up to `Timing.longest_pause`.
        over_at: when it is over, by the monotonic clock.
    """

    seconds: float
    over_at: float

    @classmethod
    def after(cls, before: Pause | None, timing: Timing) -> Self:
        """The pause that follows another one, or the first."""
        seconds = timing.look if before is None else min(before.seconds * 2, timing.longest_pause)
        # A little early, so that the look at that time finds it over.
        return cls(seconds, time.monotonic() + seconds * 0.9)

    @property
    def is_over(self) -> bool:
        """Whether the table may be tried again."""
        return time.monotonic() >= self.over_at
