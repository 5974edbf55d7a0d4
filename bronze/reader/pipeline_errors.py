"""Reset pauses and close errors through one gate, once work has succeeded.

Three lines of work of a reader run in parallel: the stream, the copies, the watch. Each fails and recovers
independently. `RetryGate` is the gate of one line:

* A failure opens an error of the pipeline in `control.errors`, and doubles the next pause.
* Success closes the error and resets the pause. Success is the first durable commit of a session or a reached
  target (the stream), a completed round (the copies), a complete turn (the watch). A start proves nothing: a
  connection is admitted, and a session starts, while the disk is still full.

So a lasting fault is one row of `control.errors`, and the attempts with all consequences become rarer, up to
`Timing.retry_longest`. Errors of tables follow the same rule (`bronze.reader.table_errors`).

**A code met by two lines** is one row, closed by the last of these lines to succeed. An error met by no line
belongs to another process: an earlier reader, or a reader started by mistake. The stream closes these errors
on success, and each catalog poll does while the stream works (`PipelineErrors.strays`).

**Not recorded**, only logged: errors while the lake is not known to be this pipeline's, and errors about the
owner of lake or slot (`PipelineErrors.record`).
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.backoff import Backoff
from deltasmelt.bronze.checks.ownership import FOREIGN_CODES
from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.failures import lake_failures
from deltasmelt.bronze.store.contract import CHANGES, PIPELINE_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltasmelt.bronze.config.timing import Timing
    from deltasmelt.bronze.errors import SmeltError
    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.location import Lake

_LOGGER = logging.getLogger("deltasmelt.reader")

_ENDED: Final = "stream-ended"
"""Code of an error that is recorded only if the next attempt meets it, too: a server's stop is one error."""
_OF_ANOTHER: Final = FOREIGN_CODES | {"lake-in-use", "slot-in-use"}
"""Errors of a lake or slot whose owner is another, working reader."""


class PipelineErrors:
    """The open errors of one pipeline, and the lines of work that have met each error.

    Threads: any line; one lock covers the writes to the lake. So no line closes an error while another line
    opens the error.
    """

    def __init__(self, lake: Lake, pipeline: str, control: ControlTables) -> None:
        self._lake = lake
        self._pipeline = pipeline
        self._control = control
        self._lock = threading.Lock()
        self._codes: dict[str, set[RetryGate]] = {}
        # whether the lake is known to be this pipeline's; whether the stream has worked since its last
        # failure
        self.of_this_pipeline = self.stream_works = False
        # time of the stream's last success, by the monotonic clock
        self.admitted_at = 0.0

    def record(self, line: RetryGate, error: SmeltError) -> None:
        """Open an error that a line of work met; only log the error if the lake cannot be written."""
        opened = OpenError("pipeline", self._pipeline, error.code, error.message, error.remedy)
        try:
            with self._lock, lake_failures("the lake"):
                # The owning reader works, so the owning reader would never close this error.
                if error.code in _OF_ANOTHER or not self._is_ours():
                    return
                self._codes.setdefault(error.code, set()).add(line)
                self._control.open_error(opened)
        except TransientError as failure:  # the lake itself may be full
            _LOGGER.warning("the error could not be recorded in the lake: %s", failure)

    def close(self, line: RetryGate) -> None:
        """Close the errors that a line met and no other line has open; raise as `any_open`."""
        with self._lock, lake_failures("the lake"):
            codes_of_others = self._codes_of_others(line)
            own_codes = self._codes.keys() - codes_of_others.keys()
            open_errors = self._control.open_errors()
            closed = [error for error in open_errors if error.scope == "pipeline" and error.code in own_codes]
            self._control.close_all([*closed, *self._strays(open_errors)])
            self._codes = codes_of_others

    def give_up(self, line: RetryGate) -> None:
        """Count the errors of a line as another process's: the line has ended and never works again."""
        with self._lock:
            self._codes = self._codes_of_others(line)

    def any_open(self) -> bool:
        """Check whether an error of this pipeline is open, from any process.

        Raises:
            TransientError: the lake cannot be read or written.
        """
        with self._lock, lake_failures("the lake"):
            return any(error.scope == "pipeline" for error in self._control.open_errors())

    def strays(self, known: Iterable[OpenError]) -> list[OpenError]:
        """Return the open pipeline errors of other processes, while the stream works.

        The pipeline's name in the error does not matter: a lake belongs to one pipeline.
        """
        with self._lock:
            return self._strays(known)

    def _codes_of_others(self, line: RetryGate) -> dict[str, set[RetryGate]]:
        """Return the codes that other lines of work have met, each with these lines."""
        return {code: lines - {line} for code, lines in self._codes.items() if lines - {line}}

    def _strays(self, known: Iterable[OpenError]) -> list[OpenError]:
        if not self.stream_works:
            return []
        return [error for error in known if error.scope == "pipeline" and error.code not in self._codes]

    def _is_ours(self) -> bool:
        """Check whether the lake is this pipeline's: opened by a sink, or created by an earlier reader."""
        if not self.of_this_pipeline:
            changes = delta.open_table(self._lake.uri("bronze", CHANGES))
            properties = {} if changes is None else changes.metadata().configuration
            self.of_this_pipeline = properties.get(PIPELINE_PROPERTY) == self._pipeline
        return self.of_this_pipeline


class RetryGate:
    """The failures of one line of work since its last success.

    Threads: the line's own thread calls `failed`, `pause` and `worked`; any thread calls `refused`.

    Args:
        stream: whether this line is the stream, whose success proves that the whole pipeline works.
    """

    def __init__(self, errors: PipelineErrors, timing: Timing, *, stream: bool = False) -> None:
        self._errors = errors
        self._stream = stream
        self._backoff = Backoff(timing.retry_first, timing.retry_longest)
        self._open: bool | None = None if stream else False
        self._lock = threading.Lock()
        self._refused: tuple[SmeltError, float] | None = None

    def is_open(self) -> bool:
        """Check whether the line failed since its last success; the stream's first call reads the lake.

        Raises:
            TransientError: the lake cannot be read.
        """
        if self._open is None:
            self._open = self._errors.any_open()
        return self._open

    def failed(self, error: SmeltError, *, recorded: bool = True) -> None:
        """Note a failed attempt, if `recorded` also in `control.errors`; `pause` follows."""
        with self._lock:
            if isinstance(error, TransientError):
                self._refused = None
            else:
                self._refused = (error, time.monotonic() if self._refused is None else self._refused[1])
        first, self._open = self._open is False, True
        if self._stream:
            self._errors.stream_works = False
        # A server that ends the stream in order is about to stop: the next attempt meets the cause, or
        # succeeds.
        if recorded and not (first and error.code == _ENDED):
            self._errors.record(self, error)

    def ended(self) -> None:
        """Note that the line has ended for good: its errors close when the stream works."""
        self._errors.give_up(self)

    def pause(self, stop: threading.Event) -> bool:
        """Wait until the next attempt is due, longer each time; return whether `stop` was set."""
        return self._backoff.pause(stop)

    def worked(self) -> None:
        """Note that the line has succeeded: reset the pause and close the line's errors; free without errors.

        Raises:
            TransientError: the lake cannot be written; the line still counts as failing.
        """
        if self._stream:
            self._errors.stream_works, self._errors.admitted_at = True, time.monotonic()
        if not self.is_open():
            return
        self._errors.close(self)
        self._open = False
        self._backoff.worked()
        with self._lock:
            self._refused = None

    def refused(self) -> tuple[SmeltError, float] | None:
        """Return the refusal that needs a person, and its duration in seconds; None without a refusal."""
        with self._lock:
            # The duration restarts when the stream succeeds.
            refusal = self._refused
        return (
            None
            if refusal is None
            else (refusal[0], time.monotonic() - max(refusal[1], self._errors.admitted_at))
        )
