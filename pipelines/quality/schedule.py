"""Check data quality in parallel with a running pipeline: `quality.every`.

After each cycle, `after_cycle` checks at no cost whether a run is due. A due run starts in a separate thread,
on a child of the pipeline's session, unless a former run is still working. So a cycle waits for no run, and
sees none of its settings and views. Findings and failures are logged and printed in a line; nothing in the
run affects the pipeline. In a session without fair scheduling, a job of a cycle waits for the one job of the
run before.

The newest run in `quality.results` decides when the next is due, also after a restart and with runs by hand.
The end of a pipeline does not wait for a run: its results are one commit, so half of a run is none. A run at
the pipeline's end gives up: otherwise the run would report the end of the session as a finding.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from deltasmelt.bronze.errors import SmeltError
from deltasmelt.pipelines.quality.engine import short_cause
from deltasmelt.pipelines.quality.results import newest_run
from deltasmelt.pipelines.quality.run import run_quality
from deltasmelt.pipelines.terminal.logs import log_folder
from deltasmelt.silver.spark.access import access_of, child_session

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pyspark.sql import SparkSession

    from deltasmelt.pipelines.settings import Pipeline

_LOGGER = logging.getLogger("deltasmelt.quality")


class ParallelQuality:
    """Quality runs of one pipeline, at a limited frequency.

    `seconds` are the shortest time from the begin of a run to the begin of the next; `report` receives the
    result of each run in a line.
    """

    def __init__(self, pipeline: Pipeline, seconds: float, report: Callable[[str], None]) -> None:
        self._pipeline = pipeline
        self._seconds = seconds
        self._report = report
        self._due: float | None = None
        self._ended = threading.Event()
        self._worker: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()

    def after_cycle(self, spark: SparkSession) -> None:
        """Begin a due run. Raise nothing and wait for nothing."""
        if self._worker is not None and self._worker.is_alive():
            return
        if self._ended.is_set() or (self._due is not None and time.monotonic() < self._due):
            return
        self._worker = threading.Thread(target=self._work, args=(spark,), name="quality", daemon=True)
        self._worker.start()

    def wait(self, seconds: float) -> bool:
        """Wait for a run under way; return whether every run has ended."""
        if self._worker is not None:
            self._worker.join(seconds)
        return self._worker is None or not self._worker.is_alive()

    def _work(self, spark: SparkSession) -> None:
        """Run, unless the newest recorded run, which the first call reads, is too young."""
        if self._due is None:
            self._due = time.monotonic() + self._rest()
            if time.monotonic() < self._due:
                return
        self._due = time.monotonic() + self._seconds
        self._run(spark)

    def _rest(self) -> float:
        """Return the seconds until the next run is due, by the newest recorded run."""
        try:
            newest = newest_run(self._pipeline.lake_address())
        except Exception as error:  # noqa: BLE001 - a lake that cannot be read is the pipeline's own matter
            _LOGGER.warning("quality.results could not be read: %s", error)
            return 0.0
        if newest is None:
            return 0.0
        past = (datetime.now(UTC) - newest).total_seconds()
        return min(max(self._seconds - past, 0.0), self._seconds)

    def _run(self, spark: SparkSession) -> None:
        report = log_folder(self._pipeline.pipeline) / "quality.html"
        try:
            # The run's jobs have a share of the cores (`silver.spark.access.Jvm`).
            access_of(spark).in_background("quality")
            with child_session(spark) as session:
                # The run caches no table, because the pipeline's work needs the memory.
                result = run_quality(
                    session, self._pipeline, report=report, in_memory=False, ended=self._ended.is_set
                )
        except Exception as error:  # noqa: BLE001 - whatever it is, the pipeline goes on
            if self._ended.is_set():
                _LOGGER.info("data quality was interrupted by the end of the run")
                return
            reason = str(error) if isinstance(error, SmeltError) else short_cause(str(error))
            _LOGGER.warning("data quality could not be checked: %s", reason)
            self._report(f"data quality could not be checked: {reason}")
            return
        line = f"data quality: {result.summary()} as of {result.commit_lsn}; report: {report}"
        _LOGGER.log(logging.INFO if result.success else logging.WARNING, "%s", line)
        self._report(line)
