"""How often tables are looked at, and when one that failed is tried again: ever more rarely."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, Self

LOOK_SECONDS: Final = 30.0
"""Between two looks when nothing asks for one; also the first pause of a table that failed."""

_LONGEST_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which a table is not tried.

    Attributes:
        seconds: how long; the next one is twice as long, up to ten minutes.
        over_at: when it is over, by the monotonic clock.
    """

    seconds: float
    over_at: float

    @classmethod
    def after(cls, before: Pause | None) -> Self:
        """The pause that follows another one, or the first."""
        seconds = LOOK_SECONDS if before is None else min(before.seconds * 2, _LONGEST_SECONDS)
        # A little early, so that the look at that time finds it over.
        return cls(seconds, time.monotonic() + seconds * 0.9)

    @property
    def is_over(self) -> bool:
        """Whether the table may be tried again."""
        return time.monotonic() >= self.over_at
