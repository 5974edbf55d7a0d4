"""One gate for "it got better": pauses begin anew, and errors close, with what has worked.

Three lines of work of a reader go on side by side: the stream, the copies, the watch. Each fails and heals by
itself. `Trouble` is one line's gate:

* A failure opens an error of the pipeline in `control.errors`, and makes the next pause twice as long.
* What has worked ends both: the first durable commit of a session, or a target that is reached (the stream);
  a round to its end (the copies); a whole turn (the watch). A beginning proves nothing: a connection is
  admitted, and a session starts, while the disk is still full.

So a fault that lasts is one row of `control.errors`, and the attempts, as all that follows from them, grow
rarer up to `Timing.retry_longest`. Errors of tables follow the same rule (`bronze.reader.table_errors`).

**A code that two lines have met** is one row. It closes when the last of these lines works. Errors that no
line has met are of another process: an earlier one, or one that was started by mistake. They close when the
stream works, and at each look while it does (`PipelineErrors.strays`).

**What is not recorded**, and stands in the log alone: errors while the lake is not known to be this
pipeline's, and those that say whose it is (`PipelineErrors.record`). The reader that they concern would never
close them, for that reader works.
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

_OF_ANOTHER: Final = FOREIGN_CODES | {"lake-in-use", "slot-in-use"}
"""Errors that say: lake or slot are another reader's, which is not in trouble."""


class PipelineErrors:
    """The open errors of one pipeline, and which lines of work have met each.

    Threads: any line; one lock is held over the writes to the lake, so that no line closes what another one
    opens at the same moment.

    Args:
        lake: where they are recorded.
        pipeline: whose they are.
        control: the lake's control tables.

    Attributes:
        of_this_pipeline: the lake is known to be this pipeline's.
        stream_works: the stream has worked since it failed last.
        admitted_at: when it did, by the monotonic clock.
    """

    def __init__(self, lake: Lake, pipeline: str, control: ControlTables) -> None:
        self._lake = lake
        self._pipeline = pipeline
        self._control = control
        self._lock = threading.Lock()
        self._met: dict[str, set[Trouble]] = {}
        self.of_this_pipeline = self.stream_works = False
        self.admitted_at = 0.0

    def record(self, line: Trouble, error: SmeltError) -> None:
        """Open an error that a line of work met; said in the log alone where the lake cannot be written.

        Nothing is written to a lake that is not known to be this pipeline's, nor about one that is another's.
        """
        opened = OpenError("pipeline", self._pipeline, error.code, error.message, error.remedy)
        try:
            with self._lock, lake_failures("the lake"):
                if error.code in _OF_ANOTHER or not self._is_ours():
                    return
                self._met.setdefault(error.code, set()).add(line)
                self._control.open_error(opened)
        except TransientError as failure:  # the lake itself may be what is full
            _LOGGER.warning("the error could not be recorded in the lake: %s", failure)

    def close(self, line: Trouble) -> None:
        """Close what a line of work met and no other line has still open; raises as `any_open`."""
        with self._lock, lake_failures("the lake"):
            left = self._met_by_others(line)
            ours = self._met.keys() - left.keys()
            known = self._control.open_errors()
            closed = [one for one in known if one.scope == "pipeline" and one.code in ours]
            self._control.close_all([*closed, *self._strays(known)])
            self._met = left

    def give_up(self, line: Trouble) -> None:
        """Count what a line of work met as another process's: the line has ended and never works again."""
        with self._lock:
            self._met = self._met_by_others(line)

    def any_open(self) -> bool:
        """Check whether an error of this pipeline is open, whoever met it.

        Raises:
            TransientError: the lake cannot be read, or not be written.
        """
        with self._lock, lake_failures("the lake"):
            return any(error.scope == "pipeline" for error in self._control.open_errors())

    def strays(self, known: Iterable[OpenError]) -> list[OpenError]:
        """Return the open errors of the pipeline that are another process's, while the stream works.

        Whatever their name: one lake is one pipeline's.
        """
        with self._lock:
            return self._strays(known)

    def _met_by_others(self, line: Trouble) -> dict[str, set[Trouble]]:
        """Return the codes that lines of work other than this have met, with these lines."""
        return {code: lines - {line} for code, lines in self._met.items() if lines - {line}}

    def _strays(self, known: Iterable[OpenError]) -> list[OpenError]:
        if not self.stream_works:
            return []
        return [error for error in known if error.scope == "pipeline" and error.code not in self._met]

    def _is_ours(self) -> bool:
        """Whether the lake is this pipeline's: a sink was opened, or an earlier reader has made it."""
        if not self.of_this_pipeline:
            changes = delta.open_table(delta.location(self._lake, "bronze", CHANGES))
            found = {} if changes is None else changes.metadata().configuration
            self.of_this_pipeline = found.get(PIPELINE_PROPERTY) == self._pipeline
        return self.of_this_pipeline


class Trouble:
    """The failures of one line of work since it worked.

    Threads: the line's own calls `failed`, `pause` and `worked`; any may ask `refused`.

    Args:
        errors: the pipeline's.
        timing: of the pauses.
        stream: whether this line is the stream, whose work shows that the whole pipeline is well.
    """

    def __init__(self, errors: PipelineErrors, timing: Timing, *, stream: bool = False) -> None:
        self._errors = errors
        self._stream = stream
        self._backoff = Backoff(timing.retry_first, timing.retry_longest)
        self._open: bool | None = None if stream else False
        self._lock = threading.Lock()
        self._refused: tuple[SmeltError, float] | None = None

    def is_open(self) -> bool:
        """Check whether something failed since this line worked; the stream's first look is at the lake.

        Raises:
            TransientError: the lake cannot be read.
        """
        if self._open is None:
            self._open = self._errors.any_open()
        return self._open

    def failed(self, error: SmeltError, *, recorded: bool = True) -> None:
        """Note that an attempt failed; `pause` follows where there is to be another one.

        Args:
            error: why.
            recorded: in `control.errors`, too.
        """
        with self._lock:
            if isinstance(error, TransientError):
                self._refused = None
            else:
                self._refused = (error, time.monotonic() if self._refused is None else self._refused[1])
        self._open = True
        if self._stream:
            self._errors.stream_works = False
        if recorded:
            self._errors.record(self, error)

    def ended(self) -> None:
        """Note that the line has ended for good: its errors close when the stream works."""
        self._errors.give_up(self)

    def pause(self, stop: threading.Event) -> bool:
        """Wait until the next attempt is due, longer each time; whether `stop` was set meanwhile."""
        return self._backoff.pause(stop)

    def worked(self) -> None:
        """The line did what it is for: the next pause is the first again, and its errors close.

        Costs nothing where nothing is open.

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
        """The refusal that needs a person, if there is one, and since how many seconds.

        Where the server has let the stream in meanwhile, patience begins anew.
        """
        with self._lock:
            found = self._refused
        return (
            None if found is None else (found[0], time.monotonic() - max(found[1], self._errors.admitted_at))
        )
