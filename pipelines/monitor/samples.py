"""Looks at a running pipeline, and an hour of them: what metrics, page and alerts are views of.

The newest status is kept whole, of those before it only the ladder. A look that failed leaves the newest
status as it is; it grows old, and everything that shows it says so.

The thread that looks at the pipeline every few seconds while a command runs.

It never ends or delays the pipeline. It only reads; nobody waits for it; whatever it meets is logged once and
kept as the reason why the newest sample grows old. A look that takes long makes the next ones rarer, so that
looking takes at most a tenth of one core's time, as long as no sample grows late by that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from deltasmelt.pipelines.monitor.alerts import shown_text
from deltasmelt.pipelines.terminal.visible import in_a_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltasmelt.pipelines.health.status import Rung, Status

KEPT: Final = timedelta(hours=1)
LATE_SECONDS: Final = 120.0
"""Age of a sample from which it says nothing of now; more where a look takes long."""
LATEST_SECONDS: Final = 600.0
"""The same, however long a look takes."""
_LOOKS: Final = 3.0
"""A sample of now may be as old as its own look and the next, which may take twice as long."""
_REST_SECONDS: Final = 30.0
"""And the pause between them, at most (`pipelines.monitor.samples`)."""


@dataclass(frozen=True, slots=True)
class LadderPoint:
    """The ladder at one time."""

    at: datetime
    ladder: tuple[Rung, ...]


@dataclass(frozen=True, slots=True)
class View:
    """What is known at one moment.

    Attributes:
        status: the newest; None before the first look, and while each look fails.
        taken_at: when the look that read the newest status began: it says nothing of what came later.
        took: seconds that reading it took.
        failure: why the newest look failed; None where it did not.
        failures: looks that failed so far.
        points: the ladder of the last hour, oldest first.
        stages: whether each stage of the command lives.
        now: this moment.
    """

    status: Status | None = None
    taken_at: datetime | None = None
    took: float = 0.0
    failure: str | None = None
    failures: int = 0
    points: tuple[LadderPoint, ...] = ()
    stages: dict[str, bool] = field(default_factory=dict)
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def age(self) -> float | None:
        """Seconds since the look that read the newest status began."""
        return None if self.taken_at is None else max(0.0, (self.now - self.taken_at).total_seconds())

    @property
    def late(self) -> bool:
        """Whether the newest status says nothing of now."""
        allowed = max(LATE_SECONDS, _LOOKS * self.took + _REST_SECONDS)
        return self.age is None or self.age > min(allowed, LATEST_SECONDS)


def without_login(status: Status) -> Status:
    """The status without the role that logs in, which `smelt status` shows beside the address."""
    place, _, role = status.source.rpartition(" as ")
    if not place or not role:
        return status
    error = status.source_error
    return replace(
        status, source=place, source_error=None if error is None else error.replace(status.source, place)
    )


class Samples:
    """The newest status and an hour of ladders. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: deque[LadderPoint] = deque()
        self._status: Status | None = None
        self._taken_at: datetime | None = None
        self._took = 0.0
        self._failure: str | None = None
        self._failures = 0

    def add(self, status: Status, *, took: float = 0.0, at: datetime | None = None) -> None:
        """A look succeeded.

        Args:
            status: what it found.
            took: seconds that it took.
            at: when it began; default: now.
        """
        at = at or datetime.now(UTC)
        with self._lock:
            self._status, self._taken_at, self._took, self._failure = status, at, took, None
            self._points.append(LadderPoint(at, status.ladder))
            while self._points[0].at < at - KEPT:
                self._points.popleft()

    def fail(self, why: str) -> None:
        """A look failed."""
        with self._lock:
            self._failure = why
            self._failures += 1

    def view(self, stages: dict[str, bool] | None = None) -> View:
        """What is known now.

        Args:
            stages: whether each stage of the command lives.
        """
        with self._lock:
            return View(
                status=self._status,
                taken_at=self._taken_at,
                took=self._took,
                failure=self._failure,
                failures=self._failures,
                points=tuple(self._points),
                stages=stages or {},
            )


EVERY_SECONDS: Final = 5.0
_REST: Final = 9.0
"""Pause after a look, as a multiple of the time that it took, at least."""
_LONGEST_REST: Final = 30.0
"""No longer pause after a look that takes so long that samples would grow late while all is well."""
_END_SECONDS: Final = 1.0
_LOGGER = logging.getLogger("deltasmelt.monitor")


class Sampler:
    """Reads the status again and again, from the start of the block to its end.

    Args:
        read: reads the status.
        samples: takes what it reads.
        told: is told each status, in the sampler's thread.
        failed: is told why a look found nothing, there too.
        every: seconds from one look to the next.
    """

    def __init__(
        self,
        read: Callable[[], Status],
        samples: Samples,
        *,
        told: Callable[[Status], None] | None = None,
        failed: Callable[[str], None] | None = None,
        every: float = EVERY_SECONDS,
    ) -> None:
        self._read = read
        self._samples = samples
        self._told = told
        self._failed = failed
        self._every = every
        self._stop = threading.Event()
        self._said: dict[str, str] = {}
        self._thread = threading.Thread(target=self._work, name="sampler", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; a look that is under way is hardly waited for."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_END_SECONDS)

    def _work(self) -> None:
        while not self._stop.is_set():
            begun = time.monotonic()
            self._look(begun)
            took = time.monotonic() - begun
            self._stop.wait(rest(took, self._every))

    def _look(self, begun: float) -> None:
        at = datetime.now(UTC)
        try:
            status = self._read()
            if self._stop.is_set():
                return
            self._samples.add(status, took=time.monotonic() - begun, at=at)
            self._log(status.unseen)
            if self._told is not None:
                self._told(status)
        except BaseException as error:  # noqa: BLE001 - looks go on whatever one meets, also a panic of deltalake
            why = in_a_line(shown_text(f"{type(error).__name__}: {error}"))
            self._samples.fail(why)
            if self._stop.is_set():
                return
            self._log({"status": why})
            if self._failed is not None:
                self._failed(why)

    def _log(self, unseen: dict[str, str]) -> None:
        """Log what cannot be seen, once for each reason."""
        for what, why in unseen.items():
            if self._said.get(what) != why:
                _LOGGER.warning("the pipeline's %s could not be read: %s", what, in_a_line(shown_text(why)))
        self._said = unseen


def rest(took: float, every: float = EVERY_SECONDS) -> float:
    """Return the pause after a look: nine times as long, unless the sample were late before the next one.

    Args:
        took: seconds that the look took; the next one may take twice as long.
        every: seconds from one look to the next, where looks are quick.
    """
    return max(every - took, min(_REST * took, max(LATE_SECONDS - 3 * took, _LONGEST_REST)))
