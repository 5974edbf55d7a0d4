"""What keeps tables from being copied while the stream goes on, as an error of the pipeline until it heals.

The copies' thread tells each failure at once and closes it with the round that comes to its end. So
`control.errors` knows of a snapshot that was given up and begun again as it knows of a stream that was. A
stream that begins closes the pipeline's errors, these among them; the next failure of a copy opens its own
again.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from bronze.errors import TransientError
from bronze.lake.control import OpenError
from bronze.lake.failures import lake_failures

if TYPE_CHECKING:
    from bronze.errors import SmeltError
    from bronze.lake.control_tables import ControlTables

_LOGGER = logging.getLogger("deltasmelt.reader")


def record_error(control: ControlTables, pipeline: str, error: SmeltError) -> None:
    """Open an error of the pipeline; said in the log alone where the lake cannot be written."""
    told = OpenError("pipeline", pipeline, error.code, error.message, error.remedy)
    try:
        with lake_failures("the lake"):
            control.open_error(told)
    except TransientError as failure:  # the lake itself may be what is full
        _LOGGER.warning("the error could not be recorded in the lake: %s", failure)


class CopyTrouble:
    """The failures of copies since a round of them that came to its end.

    Threads: the copies' thread calls `failed` and `ended`, and alone touches `_open`. The stream's thread
    calls `stream_began` and `refused`; `_lock` holds `_refused` against both.

    Args:
        control: where they are told.
        pipeline: whose they are.
    """

    def __init__(self, control: ControlTables, pipeline: str) -> None:
        self._control = control
        self._pipeline = pipeline
        self._open: set[str] = set()
        self._lock = threading.Lock()
        self._refused: tuple[SmeltError, float] | None = None

    def failed(self, error: SmeltError) -> None:
        """A round ended early; it is tried again. Said in the log alone where the lake fails."""
        with self._lock:
            if isinstance(error, TransientError):
                self._refused = None
            else:
                self._refused = (error, time.monotonic() if self._refused is None else self._refused[1])
        for code in self._open - {error.code}:
            try:
                with lake_failures("the lake"):
                    self._close(code)
            except TransientError as failure:  # it stays open; the next failure or round closes it
                _LOGGER.warning("error %s could not be closed in the lake: %s", code, failure)
        record_error(self._control, self._pipeline, error)
        self._open.add(error.code)

    def ended(self) -> None:
        """A round came to its end.

        Raises:
            OSError, DeltaError: the lake cannot be written; the next round closes what is open.
        """
        with self._lock:
            self._refused = None
        for code in sorted(self._open):
            self._close(code)

    def stream_began(self) -> None:
        """The stream was let in, which may let in copies too."""
        with self._lock:
            self._refused = None

    def refused(self) -> tuple[SmeltError, float] | None:
        """The refusal that needs a person, if there is one, and since how many seconds."""
        with self._lock:
            found = self._refused
        return None if found is None else (found[0], time.monotonic() - found[1])

    def _close(self, code: str) -> None:
        self._control.close_errors("pipeline", self._pipeline, code)
        self._open.discard(code)
