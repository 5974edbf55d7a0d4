"""The source's rows at an LSN: a snapshot like the reader's, into a lake of its own.

It is the reader's snapshot (`bronze.snapshot`): an exported one whose LSN is known, by several connections,
in chunks, under the same pinned settings. Its slot is temporary and gone before the first row is read, its
transactions only read. So nothing is left at the server, whatever ends this process.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bronze.backoff import Backoff
from bronze.errors import TransientError
from bronze.postgres.connection import connect, identify, translated
from bronze.progress import Progress
from bronze.snapshot.snapshot import Snapshot
from bronze.snapshot.table_copy import Outcome
from bronze.store.landing import Landing
from bronze.store.relations import ShapeLog
from bronze.store.sink import DeltaSink
from pipelines.proof.documents import ServerDocuments
from pipelines.proof.sample import has_sample, in_postgres

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bronze.catalog.source_table import SourceTable
    from bronze.errors import TableError
    from bronze.identifiers import TableName
    from bronze.lake.location import Lake
    from bronze.lsn import Lsn
    from bronze.shapes import Relation
    from pipelines.proof.load import Load
    from pipelines.settings import Pipeline

_ATTEMPTS: Final = 6


@dataclass(slots=True)
class Taken:
    """What was taken.

    Attributes:
        lsns: of each table that is complete, the LSN of its rows.
        failed: why others are not.
    """

    lsns: dict[TableName, Lsn] = field(default_factory=dict)
    failed: list[TableError] = field(default_factory=list)


def _at_once(_: int) -> None:
    """Nothing slows the reading down."""


class Pace:
    """Keeps readers to so many bytes a second, all together."""

    def __init__(self, rate: int, stop: threading.Event) -> None:
        self._rate = rate
        self._stop = stop
        self._lock = threading.Lock()
        self._free_at = 0.0

    def __call__(self, size: int) -> None:
        """A block of this size was read: wait as long as it may take."""
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + size / self._rate
            seconds = self._free_at - now
        self._stop.wait(seconds)


class SourceCopy:
    """Takes tables in a thread of its own, so that Spark can start meanwhile.

    Args:
        pipeline: whose source.
        tables: to be taken.
        lake: where to; a new one.
        load: how much of the server it may take.
        documents: what the server is to compute in the same snapshot.
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
        self._taken = Taken()
        self._failure: BaseException | None = None
        self._outcome = Outcome()
        self._exported = threading.Event()
        self._thread = threading.Thread(target=self._run, name="smelt-verify-copy", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait a while; whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def exported(self, seconds: float) -> Lsn | None:
        """Wait for the first snapshot, or the end; its LSN, which is known long before its rows are read."""
        self._exported.wait(seconds)
        return self._outcome.lsn or None

    def stop(self) -> None:
        """End it between two blocks, and wait for that."""
        self._stop.set()
        self._documents.stop()
        self._thread.join()

    def counters(self) -> dict[str, Any]:
        """How far it is (`bronze.progress.Progress.read`)."""
        return self._progress.read()

    def result(self) -> Taken:
        """What was taken, after its end.

        Raises:
            SmeltError: what ended it.
        """
        if self._failure is not None:
            raise self._failure
        return self._taken

    def _run(self) -> None:
        try:
            self._take()
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            self._failure = error
        finally:
            self._exported.set()

    def _take(self) -> None:
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
            beside=self._documents.begin,
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
                self._taken.failed += outcome.failed
            done = {*outcome.taken, *(error.table for error in outcome.failed)}
            waiting = [table for table in waiting if table.table not in done]
            if not waiting or self._stop.is_set() or backoff.pause(self._stop):
                break
        self._taken.lsns = sink.tables.snapshots([table.table for table in self._tables])

    def _reached(self, point: str) -> None:
        if point == "snapshot-exported":
            self._exported.set()

    def _condition(self, shape: Relation) -> str:
        sample = self._load.sample
        taken = sample is not None and has_sample(shape, self._pipeline.silver.types)
        return in_postgres(shape, sample) if sample is not None and taken else ""
