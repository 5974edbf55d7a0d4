"""The thread that looks at the pipeline every few seconds while a command runs.

It never ends or delays the pipeline. It only reads; nobody waits for it; whatever it meets is logged once and
kept as the reason why the newest sample grows old. A look that takes long makes the next ones rarer, so that
looking takes at most a tenth of one core's time, as long as no sample grows late by that.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from pipelines.monitor.samples import LATE_SECONDS
from pipelines.monitor.shown_text import shown_text
from pipelines.terminal.visible import in_a_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipelines.health.status import Status
    from pipelines.monitor.samples import Samples

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
