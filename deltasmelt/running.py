"""A pipeline that runs inside a program: `deltasmelt.run` and `deltasmelt.start`.

A thread of the program does what the command `smelt run` does in its main thread
(`deltasmelt.pipelines.commands.run`): the reader is a child process, silver and gold are a further thread.
Spark is the program's own session, or a session that ends with the run. So a notebook remains usable, and
Ctrl-C reaches the program, which waits for the thread alone.

* *the program fails or is interrupted inside the `with` block*: the run ends in order, as at Ctrl-C of the
  command; then the program gets its own error. An event states the end, never `Thread.join`: before Python
  3.13, an interrupted join takes a living thread for an ended thread.
* *a statement of silver or gold outlasts the end*: the run holds the lake's locks until the statement's end.
  `stop` raises an error after its time limit.
* *the program ends without `stop`*: the run is stopped before Python ends the pools of threads.
* *the program is killed*: as with a killed command. The reader notices the end of its parent, and the next
  run continues from the marks in the lake. A child process that the program forks while the pipeline runs
  keeps locks and the reader until its own end: start such processes before, or by `spawn`.
* *the run fails*: `wait`, `stop` and the end of the `with` block raise the error, once.
* *`progress` fails*: the failure is logged, and the run continues.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - its hook at the interpreter's end has to be older than ours
import logging
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.figures import estimate_text
from deltasmelt.bronze.store.ownership import require_own_lake
from deltasmelt.pipelines.commands.run import run_layers
from deltasmelt.pipelines.health.status import read_status
from deltasmelt.pipelines.runtime.progress_text import reader_text, seconds_of
from deltasmelt.pipelines.runtime.supervisor import END_SECONDS
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.terminal.failures import Failure
from deltasmelt.pipelines.terminal.output import SilentOutput

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from deltasmelt.bronze.lake.control import Cut, Run
    from deltasmelt.bronze.lake.location import Layer
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.pipelines.health.status import Status
    from deltasmelt.pipelines.settings import Pipeline

_LOGGER = logging.getLogger("deltasmelt.run")
_LAYERS: Final[tuple[Layer, ...]] = ("bronze", "silver", "gold")
_END_SECONDS: Final = END_SECONDS + 15.0
"""Time limit for the end of a run with its observers; the supervisor's own limit is a part of it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of a running pipeline."""

    layer: Layer
    # of silver and gold: the commit that the layer has reached; None for bronze
    commit_lsn: Lsn | None
    # changes in this step by table or document; for bronze the changes since the start, under ""
    changes: dict[str, int]
    # seconds of the slowest table or document; 0 for bronze
    seconds: float = 0.0
    # what the reader does now, in a few words; empty for silver and gold
    doing: str = ""


class RunningPipeline:
    """A running pipeline; made by `deltasmelt.start`, ended by `stop` or by the end of a `with` block.

    >>> with deltasmelt.start("pipeline.yml") as running:                         # doctest: +SKIP
    ...     while not running.wait(60):
    ...         print(running.status().errors)

    Attributes:
        pipeline: the loaded pipeline file.
    """

    def __init__(
        self, pipeline: Pipeline, *, until_caught_up: bool, progress: Callable[[Progress], None] | None
    ) -> None:
        self.pipeline = pipeline
        self._until_caught_up = until_caught_up
        self._progress = progress
        self._stop = threading.Event()
        self._over = threading.Event()
        self._error: BaseException | None = None
        # identifiers of threads within `progress`
        self._reporting: set[int] = set()
        _RUNNING.add(self)
        threading.Thread(target=self._run, name="deltasmelt", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.stop()
        else:
            self._end()

    def __repr__(self) -> str:
        state = "running" if self.alive else "ended"
        return f"<{state} pipeline {self.pipeline.pipeline} of {self.pipeline.path}>"

    @property
    def alive(self) -> bool:
        """Whether the pipeline runs."""
        return not self._over.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of the run; return whether the run has ended.

        Args:
            seconds: the longest wait; None waits until the run is caught up, fails or is stopped.

        Raises:
            SmeltError: the reason for the end. ``tables-stopped``: the run caught up except for tables or
                documents that an error has stopped.
        """
        self._refuse_progress()
        if not self._over.wait(seconds):
            return False
        error, self._error = self._error, None
        if error is not None:
            raise error
        return True

    def status(self) -> Status:
        """Return the lag of each stage, slot, tables, documents and open errors, as `OpenLake.status`."""
        return read_status(self.pipeline)

    def stop(self) -> None:
        """End the run in order: the reader, a running cycle, an own Spark session; return afterwards.

        Raises:
            SmeltError: as `wait`, if the run had failed before; ``run-not-ended``: the run did not end within
                its time limit.
        """
        self._refuse_progress()
        self._end()
        if not self.wait(0):
            raise DefiniteError(
                f"the run has not ended within {estimate_text(_END_SECONDS)}",
                code="run-not-ended",
                where=str(self.pipeline.path),
                remedy="wait for the end of its last statement, or end the program: the next run continues",
            )

    def _end(self) -> None:
        self._stop.set()
        self._over.wait(_END_SECONDS)

    def _refuse_progress(self) -> None:
        """Refuse a wait for the run inside the run."""
        if threading.get_ident() in self._reporting:
            raise RuntimeError("progress is called by the run, and must not wait for its end")

    def _report(self, step: Progress) -> None:
        self._reporting.add(threading.get_ident())
        try:
            if self._progress is not None:
                self._progress(step)
        except Exception:
            _LOGGER.exception("progress failed at %s", step)
        finally:
            self._reporting.discard(threading.get_ident())

    def _run(self) -> None:
        try:
            run_layers(
                self.pipeline,
                SilentOutput(),
                layers=_LAYERS,
                until_caught_up=self._until_caught_up,
                command="deltasmelt.run",
                progress=_Values(self._report),
                stop=self._stop,
            )
        except Failure as failure:
            message, _, remedy = str(failure).partition("\nremedy: ")
            where = str(self.pipeline.path)
            self._error = DefiniteError(message, code="tables-stopped", where=where, remedy=remedy)
        except BaseException as error:  # noqa: BLE001 - raised by `wait`, in the program's thread
            self._error = error
        finally:
            self._over.set()


_RUNNING: Final[weakref.WeakSet[RunningPipeline]] = weakref.WeakSet()


def _end_all() -> None:
    for running in list(_RUNNING):
        running._end()  # noqa: SLF001 - our own class


# The hooks of `atexit` run only after Python has waited for the threads of silver and gold.
threading._register_atexit(_end_all)  # type: ignore[attr-defined] # noqa: SLF001 - as concurrent.futures does


class _Values:
    """Turns cuts and the reader's events into values of `Progress`."""

    def __init__(self, receive: Callable[[Progress], None]) -> None:
        self._receive = receive
        self._last: tuple[int, str] | None = None

    def cut(self, cut: Cut, runs: list[Run]) -> None:
        changes = {run.name: run.changes for run in runs if run.changes or run.mode == "full"}
        if changes:
            self._receive(Progress(cut.layer, cut.commit_lsn, changes, seconds_of(runs)))

    def reader(self, event: dict[str, Any]) -> None:
        present = (event["changes"], reader_text(event))
        if present != self._last:
            self._last = present
            self._receive(Progress("bronze", None, {"": present[0]}, doing=present[1]))

    def folding(self, done: int, total: int) -> None:
        """Drop the numbers: a program receives the cycle's cut."""


def start(
    file: str | Path, *, until_caught_up: bool = False, progress: Callable[[Progress], None] | None = None
) -> RunningPipeline:
    """Start a pipeline; see `deltasmelt.start`."""
    pipeline = load_pipeline(file)
    require_own_lake(pipeline.lake_address(), pipeline.pipeline)
    return RunningPipeline(pipeline, until_caught_up=until_caught_up, progress=progress)
