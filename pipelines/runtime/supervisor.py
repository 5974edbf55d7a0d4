"""A running pipeline: the reader in a process, silver and gold in a thread, the main thread for the user.

The parts, and why none hangs:

* the reader is a child process without a JVM (`reader_supervision`);
* silver and gold run in a worker thread. Spark starts at their first use; a job without work never starts
  Spark. Signals reach Python's main thread alone, and the main thread never waits inside Spark, so Ctrl-C
  acts at once;
* `wait` watches both and raises the error of either;
* the end of the block requests the reader's end and allows the reader and a running cycle a moment. Then
  Spark is stopped under the cycle, while a slow reader ends. Together they take `END_SECONDS` at most; job
  definitions allow this time. Every commit is atomic and contains its own position, so an interrupted cycle
  is repeated;
* Ctrl-C: a person waits, so the moments are short. After them the reader and Spark's JVM are killed, as a
  crash would, before the lake's locks are released. Only a lake in a folder allows this: a killed process
  has no request to a store under way, which could arrive after the release. A reader that copies by Spark
  ends in order, too: its Python workers write into the lake, and outlive their JVM by a moment;
* a further interruption, at once or during this end, changes nothing: otherwise the locks could be released
  while a statement still runs, and commits without them.

`is_little` decides whether a job has little to carry: the JVM then compiles quickly and does not optimise.
Most of a short job's cost is compiling code with few runs. Measured: a JVM with its quick compiler alone
needs 0.78 of the CPU for such a job. Over some million rows the unoptimised code would be slower.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Self

from deltasmelt.bronze.errors import SmeltError
from deltasmelt.bronze.lake.leases import still_holding
from deltasmelt.bronze.lake.spark_errors import cause_of
from deltasmelt.bronze.store.position import PositionWatch
from deltasmelt.pipelines.runtime.locks import lake_lock
from deltasmelt.pipelines.runtime.reader_supervision import REPORT_SECONDS, STOP_SECONDS, ReaderProcess
from deltasmelt.pipelines.spark.jvm_death import death_reported
from deltasmelt.pipelines.spark.launch import session_fingerprint
from deltasmelt.pipelines.spark.session import SPARK_STOP_SECONDS
from deltasmelt.pipelines.spark.session_owner import Owned, existing_session, take
from deltasmelt.pipelines.terminal.interrupts import deferred, joined
from deltasmelt.pipelines.terminal.jvm_errors import in_words
from deltasmelt.pipelines.terminal.logs import spark_log
from deltasmelt.silver.spark.access import access_of, kill_jvm
from deltasmelt.silver.spark.lazy_session import LazySession, lazily

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.lake.control import Cut, Run
    from deltasmelt.bronze.lake.location import Layer
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.gold.language.document import Document
    from deltasmelt.pipelines.runtime.stages import Stages
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.spark.session_owner import Borrowed

LITTLE: Final = 64 * 2**20  # bytes of a lake, and of a database with the WAL held back by its slot
_FILES: Final = 5_000  # largest number of counted files; a lake with more files is large
_BYTES: Final = """
SELECT pg_database_size(current_database()) + coalesce(max(pg_wal_lsn_diff(
  CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END,
  confirmed_flush_lsn)), 0)
FROM pg_replication_slots WHERE slot_name = %s
"""


def is_little(pipeline: Pipeline, layers: Collection[Layer]) -> bool:
    """Check whether neither the lake nor, for a run with a reader, the source holds more than `LITTLE`.

    A lake in an object store, or a server without an answer, has an unknown size and counts as large.
    """
    folder = pipeline.lake_address().folder
    try:
        if folder is None or _exceeds(folder):
            return False
    except OSError:  # stages that read the lake report what is wrong with it
        return False
    return "bronze" not in layers or _to_read(pipeline.source) <= LITTLE


def _exceeds(folder: Path) -> bool:
    """Check whether the files of a folder exceed `LITTLE`; stop counting then."""
    total = 0
    for number, size in enumerate(_sizes(folder), start=1):
        total += size
        if total > LITTLE or number > _FILES:
            return True
    return False


def _sizes(folder: Path) -> Iterator[int]:
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.stat(os.path.join(place, name)).st_size  # noqa: PTH116, PTH118 - of thousands of files
            except FileNotFoundError:  # the reader renames and removes files meanwhile
                continue


def _to_read(source: SourceSettings) -> float:
    """Return the bytes of the database and of the log after its slot; infinity if the server is silent."""
    from deltasmelt.bronze.postgres.connection import (  # noqa: PLC0415 - silver and gold need no server
        connect,
        translated,
        within,
    )

    try:
        with (
            connect(source) as connection,
            translated(source),
            within(source.timing.session_settings, connection),
        ):
            row = connection.execute(_BYTES, [source.slot]).fetchone()
    except SmeltError:  # the reader will report the reason
        return float("inf")
    return float("inf") if row is None else float(row[0])


_CYCLE_SECONDS: Final = 3.0
_PERSON_SECONDS: Final = 0.8
"""As `_CYCLE_SECONDS`, after Ctrl-C."""
_READER_SECONDS: Final = 1.5
"""As `STOP_SECONDS`, after Ctrl-C: time for a commit, or to cancel a waiting statement at the server."""
_RECORD_SECONDS: Final = 0.5
"""Seconds for work without Spark to end, such as the record of a cut."""
_WORKER_SECONDS: Final = 20.0
_STAGES_SECONDS: Final = 2 * _CYCLE_SECONDS + SPARK_STOP_SECONDS + _WORKER_SECONDS
END_SECONDS: Final = max(STOP_SECONDS, _STAGES_SECONDS) + 2 * REPORT_SECONDS
"""Time limit for the end of reader, silver and gold; afterwards the lake's locks are released."""
_STATEMENT_SECONDS: Final = 3600.0
"""Longest time for the last statement in a program's session, which this project must not cancel."""
_ENDED: Final = "the run ended during the start of Spark"
_LOGGER = logging.getLogger("deltasmelt.run")


class Supervisor:
    """Runs some stages of a pipeline until their target or the end of the block.

    Args:
        documents: gold's documents, read and checked beforehand.
        until: with ``bronze``: the server's WAL position at the start, for the reader to reach. Without: the
            LSN for the later stages to reach.
        command: name of the command for the lake's lock.
        observe: receives each cut with its runs.
        announce: receives slow activities in a few words, and in a run without an end errors of tables.
        loaded_reader: an already loaded process of the reader (`loaded_reader`).
        after_cycle: receives the session after each cycle of a continuous run; returns at once.
        patient: keep the lake's locks until the last statement has ended: the process lives on.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        documents: Sequence[Document],
        *,
        command: str,
        layers: Sequence[Layer] = ("bronze", "silver", "gold"),
        until: Lsn | None = None,
        observe: Callable[[Cut, list[Run]], None] | None = None,
        progress: Callable[[dict[str, Any]], None] | None = None,
        announce: Callable[[str], None] | None = None,
        loaded_reader: subprocess.Popen[bytes] | None = None,
        after_cycle: Callable[[SparkSession], None] | None = None,
        unreadable: Mapping[str, SmeltError] | None = None,
        patient: bool = False,
    ) -> None:
        self._patient = patient
        self._after_cycle = after_cycle
        self._pipeline = pipeline
        self._position = PositionWatch(pipeline.lake_address())
        self._documents = documents
        self._unreadable = unreadable
        self._layers = layers
        self._until = until
        self._command = command
        self._observe = observe
        self._announce = announce
        self._stop = threading.Event()
        self._done = threading.Event()
        self._failure: BaseException | None = None
        self._held = ExitStack()
        self._signals = ExitStack()
        self._taken: Owned | Borrowed | None = None
        self._worker: threading.Thread | None = None
        self._progress = progress
        self._lazy: LazySession | None = None
        self._starting = threading.Lock()
        self.log = spark_log(pipeline.pipeline)
        self.reader = (
            ReaderProcess(pipeline, until=until, on_progress=self._hear, loaded=loaded_reader)
            if "bronze" in layers
            else None
        )
        self.spark: SparkSession | None = None
        self.stages: Stages | None = None

    def __enter__(self) -> Self:
        self._signals.enter_context(joined())
        try:
            lake = self._pipeline.lake_address()
            self._held.enter_context(lake_lock(lake, self._layers, command=self._command))
            if set(self._layers) & {"silver", "gold"}:
                self._lazy = self._session()
            if self.reader is not None:
                self.reader.start()
            if self._lazy is not None:
                self._worker = threading.Thread(target=self._work, name="stages", daemon=True)
                self._worker.start()
        except BaseException as error:
            with self._signals, deferred():
                self._end(hurried=self._hurried_by(error))
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._signals, deferred():
            failure = None if error is None else in_words(error)
            try:
                self._end(hurried=self._hurried_by(error))
            except Exception as end_error:
                if failure is None:
                    raise
                _LOGGER.warning("ending the run failed as well: %s", cause_of(end_error))
            if failure is not None and failure is not error:
                raise failure

    def wait(self, seconds: float) -> bool:
        """Wait a while; return whether all stages reached their target.

        Raises:
            SmeltError: a stage's failure without hope for a retry, or a stage taken over by another process.
        """
        self._done.wait(seconds)
        still_holding(self._pipeline.lake_address(), self._layers)
        if self._failure is not None:
            raise self._failure
        if self._lazy is not None and self._lazy.failure is not None:
            raise in_words(self._lazy.failure)  # also of a start ahead of time: no snapshot is made in vain
        if self.reader is not None:
            self.reader.check()
        if self._worker is None:
            return self.reader is not None and self.reader.finished
        return self._done.is_set()

    def alive(self) -> dict[str, bool]:
        """For each stage, True while the stage runs or after its target; for any thread."""
        worker = self._worker is not None and (self._worker.is_alive() or self._done.is_set())
        reader = self.reader is not None and self.reader.alive
        return {
            layer: reader if layer == "bronze" else worker and self._failure is None for layer in self._layers
        }

    def restarts(self) -> int | None:
        """Return the number of the reader's restarts; None without a reader; for any thread."""
        return None if self.reader is None else self.reader.restarts

    def finish(self) -> None:
        """Stop reader and loop, and keep the Spark session for the rest of the caller's block."""
        self._stop.set()
        if self.reader is not None:
            self.reader.stop()
        if self._worker is not None:
            self._worker.join()
        if self._failure is not None:
            raise self._failure

    def _session(self) -> LazySession:
        """Return the existing session as borrowed; otherwise an owned session, started at its first use."""
        borrowed = existing_session()
        if borrowed is None:
            return LazySession(self._start_spark, fingerprint=session_fingerprint(self._pipeline.spark))
        return lazily(self._work_in(borrowed))

    def _work_in(self, taken: Owned | Borrowed) -> SparkSession:
        self._taken = taken
        self.spark = self._held.enter_context(taken.work(self._pipeline.spark))
        return self.spark

    def _start_spark(self) -> SparkSession:
        brief = self._until is not None and is_little(self._pipeline, self._layers)
        if self._stop.is_set():
            raise InterruptedError(_ENDED)
        taken = take(self._pipeline, self._announce, brief=brief)
        with self._starting:
            if not self._stop.is_set():
                return self._work_in(taken)
        taken.end()
        raise InterruptedError(_ENDED)

    def _hear(self, event: dict[str, Any]) -> None:
        """Pass on the reader's report, and notice whether silver will need Spark."""
        brings = event["changes"] or event["snapshots"]
        # The JVM starts as soon as work is certain, while the reader takes its snapshot or writes changes.
        if brings and self._lazy is not None and not self._stop.is_set():
            self._lazy.prepare()
        if self._progress is not None:
            self._progress(event)

    def _work(self) -> None:
        lazy = self._lazy
        if lazy is None:
            return
        try:
            if self._until is None:  # a continuous run starts Spark at once
                lazy.get()
            with death_reported(self._pipeline.spark, self.log):
                # While the reader starts: loading all of silver and gold takes about as long.
                from deltasmelt.pipelines.runtime.stages import PATIENCE_SECONDS, Stages  # noqa: PLC0415
                from deltasmelt.silver.spark.access import warm_up  # noqa: PLC0415

                if self._until is None:
                    warm_up(lazy.get())
                layers: list[Layer] = [layer for layer in self._layers if layer != "bronze"]
                self.stages = Stages(
                    lazy,
                    self._pipeline,
                    self._documents,
                    unreadable=self._unreadable,
                    layers=layers,
                    observe=self._observe,
                    maintain=self._until is None,
                    after_cycle=self._after_cycle if self._until is None else None,
                    announce=self._announce if self._until is None else None,
                )
                patience = math.inf if self._until is None else PATIENCE_SECONDS
                self.stages.carry(self._goal, self._stop, patience=patience)
                # A run without an end decides in its maintenance.
                if self._until is not None and "silver" in layers and not self._stop.is_set():
                    from deltasmelt.pipelines.runtime.retention import decide_at_end  # noqa: PLC0415 - as above

                    decide_at_end(self._pipeline)
        except BaseException as error:  # noqa: BLE001 - raised again by `wait`, in the main thread
            failure = in_words(error)
            if self._stop.is_set():
                _LOGGER.info("a cycle was cut short by the stop: %s", failure)
            else:
                self._failure = failure
        finally:
            self._done.set()
            if self.stages is not None:
                self.stages.end()

    def _goal(self) -> Lsn | None:
        """Return the goal of silver and gold: beside a reader, bronze's frontier after the reader's end."""
        if self._until is None:
            return None
        if self.reader is None:
            return self._until
        position = self._position.read()
        if not self.reader.finished:
            if position is None and self._lazy is not None:
                self._lazy.prepare()  # a new pipeline: there will be snapshots
            return None
        return None if position is None else position.frontier

    def _hurried_by(self, error: BaseException | None) -> bool:
        return isinstance(error, KeyboardInterrupt) and self._pipeline.lake_address().folder is not None

    def _end(self, *, hurried: bool) -> None:
        """End the stages, Spark and the reader; release the locks last, also after a failure."""
        self._stop.set()
        until = time.monotonic() + _PERSON_SECONDS
        with ExitStack() as ending:
            ending.callback(self._held.close)
            ending.callback(self._kill_own_jvm)
            if self.reader is not None:
                ending.callback(self.reader.stop)
                by_spark = self._pipeline.snapshot.engine == "spark"
                # Meanwhile a check of data quality may end, too.
                self.reader.request_end(
                    0.0 if hurried else _CYCLE_SECONDS,
                    limit=_READER_SECONDS if hurried and not by_spark else None,
                )
            # Hardly a wait for a Spark that is still starting: its JVM ends when its standard input closes.
            starting = self._lazy is not None and self._lazy.starting
            longest = _RECORD_SECONDS if starting else _CYCLE_SECONDS
            self._end_stages(min(longest, until - time.monotonic()) if hurried else longest, hurried=hurried)

    def _kill_own_jvm(self) -> None:
        """Kill a JVM of this run that has not ended: `Owned.end` has failed."""
        if isinstance(self._taken, Owned):
            process = access_of(self._taken.spark).process()
            if process is not None:
                kill_jvm(process)

    def _end_stages(self, seconds: float, *, hurried: bool) -> None:
        if self._worker is not None:
            self._worker.join(max(seconds, 0.0))
        with self._starting:
            taken = self._taken
        if taken is not None:
            working = self.spark if self._worker is not None and self._worker.is_alive() else None
            if hurried and isinstance(taken, Owned) and access_of(taken.spark).process() is not None:
                taken.end(working, patience=0.0)
            else:
                taken.end(working)
            if self._worker is not None:
                self._worker.join(_WORKER_SECONDS)
        if self._patient and self._worker is not None:
            self._worker.join(_STATEMENT_SECONDS)
