"""Samples of a running pipeline, and an hour of them; metrics, page and alerts are views of the samples.

`Samples` keeps the newest status whole, and only the ladder of earlier statuses. A failed sample leaves the
newest status unchanged; the status grows old, and every view shows the age.

`Sampler` is the thread that samples the pipeline every few seconds while a command runs. The sampler never
ends or delays the pipeline: the sampler only reads, no thread waits for the sampler, and each failure is
logged once and remains the reason of the aging sample.
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
"""Age at which a sample is late; more for slow samples."""
LATEST_SECONDS: Final = 600.0
"""Age at which any sample is late."""
_LATE_FACTOR: Final = 3.0
"""A sample may be as old as its own duration and the next sample's, which may be twice as long."""
_REST_SECONDS: Final = 30.0
"""Longest pause between two samples within this age."""


@dataclass(frozen=True, slots=True)
class LadderPoint:
    """The ladder at one time."""

    at: datetime
    ladder: tuple[Rung, ...]


@dataclass(frozen=True, slots=True)
class View:
    """The known state at one moment."""

    # the newest status; None before the first sample, and while every sample fails
    status: Status | None = None
    # begin of the newest status's sample; the status shows nothing later
    taken_at: datetime | None = None
    # seconds of this sample
    took: float = 0.0
    # reason of the newest sample's failure; None after a success
    failure: str | None = None
    # number of failed samples so far
    failures: int = 0
    # the ladder of the last hour, oldest first
    points: tuple[LadderPoint, ...] = ()
    # for each stage of the command, True if the stage is alive
    stages: dict[str, bool] = field(default_factory=dict)
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def age(self) -> float | None:
        """Seconds since the begin of the newest status's sample."""
        return None if self.taken_at is None else max(0.0, (self.now - self.taken_at).total_seconds())

    @property
    def late(self) -> bool:
        """True if the newest status is too old to describe the present."""
        allowed = max(LATE_SECONDS, _LATE_FACTOR * self.took + _REST_SECONDS)
        return self.age is None or self.age > min(allowed, LATEST_SECONDS)


def without_login(status: Status) -> Status:
    """Return the status without the login role, which `smelt status` shows with the address."""
    place, _, role = status.source.rpartition(" as ")
    if not place or not role:
        return status
    error = status.source_error
    return replace(
        status, source=place, source_error=None if error is None else error.replace(status.source, place)
    )


class Samples:
    """The newest status and an hour of ladders. Any thread may call all methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: deque[LadderPoint] = deque()
        self._status: Status | None = None
        self._taken_at: datetime | None = None
        self._took = 0.0
        self._failure: str | None = None
        self._failures = 0

    def add(self, status: Status, *, took: float = 0.0, at: datetime | None = None) -> None:
        """Record a successful sample that began at `at` (default: now) and took `took` seconds."""
        at = at or datetime.now(UTC)
        with self._lock:
            self._status, self._taken_at, self._took, self._failure = status, at, took, None
            self._points.append(LadderPoint(at, status.ladder))
            while self._points[0].at < at - KEPT:
                self._points.popleft()

    def fail(self, why: str) -> None:
        """Record a failed sample."""
        with self._lock:
            self._failure = why
            self._failures += 1

    def view(self, stages: dict[str, bool] | None = None) -> View:
        """Return the known state now."""
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
"""Shortest pause after a sample, as a multiple of the sample's duration."""
_LONGEST_REST: Final = 30.0
"""Longest pause after a slow sample; a longer pause would make samples late without a fault."""
_END_SECONDS: Final = 1.0
_LOGGER = logging.getLogger("deltasmelt.monitor")


class Sampler:
    """Reads the status repeatedly, from the start of the block to its end.

    Args:
        on_status: receives each status, in the sampler's thread.
        on_failure: receives the reason of each failed sample, in the sampler's thread.
        interval: seconds from one sample to the next.
    """

    def __init__(
        self,
        read: Callable[[], Status],
        samples: Samples,
        *,
        on_status: Callable[[Status], None] | None = None,
        on_failure: Callable[[str], None] | None = None,
        interval: float = EVERY_SECONDS,
    ) -> None:
        self._read = read
        self._samples = samples
        self._on_status = on_status
        self._on_failure = on_failure
        self._interval = interval
        self._stop = threading.Event()
        self._logged: dict[str, str] = {}
        self._thread = threading.Thread(target=self._work, name="sampler", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling; hardly wait for a sample under way."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_END_SECONDS)

    def _work(self) -> None:
        while not self._stop.is_set():
            start = time.monotonic()
            self._sample(start)
            duration = time.monotonic() - start
            # Sampling takes at most a tenth of one core's time, as long as no sample grows late thereby.
            self._stop.wait(rest(duration, self._interval))

    def _sample(self, start: float) -> None:
        at = datetime.now(UTC)
        try:
            status = self._read()
            if self._stop.is_set():
                return
            self._samples.add(status, took=time.monotonic() - start, at=at)
            self._log(status.unseen)
            if self._on_status is not None:
                self._on_status(status)
        except BaseException as error:  # noqa: BLE001 - sampling continues, also after a panic of deltalake
            reason = in_a_line(shown_text(f"{type(error).__name__}: {error}"))
            self._samples.fail(reason)
            if self._stop.is_set():
                return
            self._log({"status": reason})
            if self._on_failure is not None:
                self._on_failure(reason)

    def _log(self, unseen: dict[str, str]) -> None:
        """Log an invisible part, once for each reason."""
        for part, reason in unseen.items():
            if self._logged.get(part) != reason:
                _LOGGER.warning(
                    "the pipeline's %s could not be read: %s", part, in_a_line(shown_text(reason))
                )
        self._logged = unseen


def rest(took: float, interval: float = EVERY_SECONDS) -> float:
    """Return the pause after a sample: nine times its duration, unless the next sample would be late.

    Args:
        took: seconds of the sample; the next sample may take twice as long.
    """
    return max(interval - took, min(_REST * took, max(LATE_SECONDS - 3 * took, _LONGEST_REST)))
