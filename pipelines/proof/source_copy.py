"""Copy the source's rows at an LSN: a snapshot like the reader's, in a separate lake.

The copy is the reader's snapshot (`bronze.snapshot`): an exported snapshot with a known LSN, read by several
connections, in chunks, under the same pinned settings. The slot is temporary and dropped before the first row
is read, and the transactions only read. So nothing stays at the server, whatever ends this process.

The copy is a separate lake, removed afterwards (`bronze.lake.copies`).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.backoff import Backoff
from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.postgres.connection import connect, identify, translated
from deltasmelt.bronze.progress import Progress
from deltasmelt.bronze.snapshot.snapshot import Snapshot
from deltasmelt.bronze.snapshot.table_copy import Outcome
from deltasmelt.bronze.store.landing import Landing
from deltasmelt.bronze.store.relations import ShapeLog
from deltasmelt.bronze.store.sink import DeltaSink
from deltasmelt.pipelines.proof.documents import ServerDocuments
from deltasmelt.pipelines.proof.load import has_sample, in_postgres

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.errors import TableError
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.pipelines.proof.load import Load
    from deltasmelt.pipelines.settings import Pipeline

_ATTEMPTS: Final = 6


@dataclass(slots=True)
class CopyResult:
    """The copied tables: LSN of each complete table's rows, and the reason of each other table's failure."""

    lsns: dict[TableName, Lsn] = field(default_factory=dict)
    failed: list[TableError] = field(default_factory=list)


def _at_once(_: int) -> None:
    """Never slow the reading down."""


class Pace:
    """Limits the bytes per second of all readers together."""

    def __init__(self, rate: int, stop: threading.Event) -> None:
        self._rate = rate
        self._stop = stop
        self._lock = threading.Lock()
        self._free_at = 0.0

    def __call__(self, size: int) -> None:
        """Wait after a block of this size, as long as the limit requires."""
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + size / self._rate
            seconds = self._free_at - now
        self._stop.wait(seconds)


class SourceCopy:
    """Copies tables to a new lake in a separate thread, so Spark can start meanwhile.

    The server computes the `documents` in the same snapshot.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        tables: Sequence[SourceTable],
        lake: Lake,
        load: Load,
        documents: ServerDocuments | None = None,
    ) -> None:
        self._documents = documents or ServerDocuments(pipeline, [], tables)
        self._pipeline = pipeline
        self._tables = tables
        self._lake = lake
        self._load = load
        self._stop = threading.Event()
        self._progress = Progress()
        self._result = CopyResult()
        self._failure: BaseException | None = None
        self._outcome = Outcome()
        self._exported = threading.Event()
        self._thread = threading.Thread(target=self._run, name="smelt-verify-copy", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait a while; return whether the copy has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def exported(self, seconds: float) -> Lsn | None:
        """Wait for the first snapshot, or the end; return the snapshot's LSN, known before the rows."""
        self._exported.wait(seconds)
        return self._outcome.lsn or None

    def stop(self) -> None:
        """End the copy between two blocks, and wait for the end."""
        self._stop.set()
        self._documents.stop()
        self._thread.join()

    def counters(self) -> dict[str, Any]:
        """Return the progress of the copy (`bronze.progress.Progress.read`)."""
        return self._progress.read()

    def result(self) -> CopyResult:
        """Return the copied tables, after the end; raise the error that ended the copy."""
        if self._failure is not None:
            raise self._failure
        return self._result

    def _run(self) -> None:
        try:
            self._copy()
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            self._failure = error
        finally:
            self._exported.set()

    def _copy(self) -> None:
        source, load = self._pipeline.source, self._load
        with translated(source), connect(source, application_name="deltasmelt verify") as connection:
            sink = DeltaSink(self._lake, self._pipeline.pipeline, identify(connection))
        landing = Landing(
            sink,
            ShapeLog(sink.relations(), sink.add_relations),
            self._progress,
            self._reached,
            pace=_at_once if load.rate is None else Pace(load.rate, self._stop),
        )
        settings = self._pipeline.snapshot
        if load.connections is not None:
            settings = settings.model_copy(update={"workers": load.connections})
        snapshot = Snapshot(
            source,
            settings,
            landing,
            application_name="deltasmelt verify",
            condition=self._condition,
            on_export=self._documents.begin,
        )
        backoff, waiting = Backoff(0.5, 10.0), list(self._tables)
        for attempt in range(_ATTEMPTS):
            outcome = self._outcome = Outcome()
            try:
                snapshot.take(waiting, self._stop, outcome)
            except TransientError:
                if attempt + 1 == _ATTEMPTS:
                    raise
            finally:
                self._result.failed += outcome.failed
            settled = {*outcome.copied, *(error.table for error in outcome.failed)}
            waiting = [table for table in waiting if table.table not in settled]
            if not waiting or self._stop.is_set() or backoff.pause(self._stop):
                break
        self._result.lsns = sink.tables.snapshots([table.table for table in self._tables])

    def _reached(self, point: str) -> None:
        if point == "snapshot-exported":
            self._exported.set()

    def _condition(self, shape: Relation) -> str:
        sample = self._load.sample
        sampled = sample is not None and has_sample(
            shape, self._pipeline.silver.types, self._pipeline.source.rules
        )
        return in_postgres(shape, sample) if sample is not None and sampled else ""
