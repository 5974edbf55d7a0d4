"""How long a slot's room lasts, from looks over two minutes. Pure.

The room (``safe_wal_size``) goes down as WAL is written, and up in steps as the reader confirms. Between two
looks it may only fall although nothing is wrong, so a rate over some seconds makes alerts that flap. Here the
most room of one minute is compared with the most of the minute before it. Steps that come more often than
once a minute do not count then, and what remains is the net pace at which the room shrinks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pipelines.health.status import Status

HALF_SECONDS: Final = 60.0
"""Each of the two times that are compared."""


class _Look(NamedTuple):
    """When it was, the room of the slot, and the end of the log, both in bytes."""

    at: float
    room: int
    head: int


class SlotTrend:
    """Looks of the last two minutes at one slot."""

    def __init__(self) -> None:
        self._looks: deque[_Look] = deque()
        self._limit: int | None = None

    def of(self, status: Status, now: float) -> Status:
        """The status with the time left, and the rate of writing, by this trend; None until it is known.

        Args:
            status: the newest; what it says of seconds left is not used.
            now: by the monotonic clock, in seconds.
        """
        if status.source_error is not None:  # it says nothing of the slot, and the looks before stay true
            return status
        self._add(status, now)
        wal = None if status.wal is None else replace(status.wal, rate=self._written())
        return replace(status, slot_seconds_left=self._left(), wal=wal)

    def _add(self, status: Status, now: float) -> None:
        slot, limit = status.slot, None if status.wal is None else status.wal.limit
        if slot is None or slot.safe_wal_size is None or limit != self._limit:
            self._looks.clear()
        self._limit = limit
        if slot is None or slot.safe_wal_size is None:
            return
        head = next((rung.lsn for rung in status.ladder if rung.name == "head"), None)
        self._looks.append(_Look(now, slot.safe_wal_size, head or 0))
        while len(self._looks) > 1 and now - self._looks[1].at >= 2 * HALF_SECONDS:
            self._looks.popleft()

    def _known(self) -> bool:
        return bool(self._looks) and self._looks[-1].at - self._looks[0].at >= 2 * HALF_SECONDS

    def _left(self) -> float | None:
        if not self._known():
            return None
        middle = self._looks[-1].at - HALF_SECONDS
        before = max((look for look in self._looks if look.at <= middle), key=lambda look: look.room)
        after = max((look for look in self._looks if look.at > middle), key=lambda look: look.room)
        shrunk = before.room - after.room
        if shrunk <= 0:
            return None
        return max(self._looks[-1].room, 0) * max(after.at - before.at, HALF_SECONDS) / shrunk

    def _written(self) -> float | None:
        if not self._known():
            return None
        first, last = self._looks[0], self._looks[-1]
        return max(last.head - first.head, 0) / (last.at - first.at)
