"""Growing pauses between attempts, with jitter so that clients of one server do not come back all at once."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import threading

_FIRST_SECONDS: Final = 0.2
_LONGEST_SECONDS: Final = 30.0


class Backoff:
    """Pauses of 0.2 s, doubled up to 30 s, each between half and whole."""

    def __init__(self) -> None:
        self._next = _FIRST_SECONDS

    def pause(self, stop: threading.Event) -> bool:
        """Wait; whether `stop` was set meanwhile."""
        seconds = self._next * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        self._next = min(2 * self._next, _LONGEST_SECONDS)
        return stop.wait(seconds)

    def reset(self) -> None:
        """An attempt succeeded."""
        self._next = _FIRST_SECONDS
