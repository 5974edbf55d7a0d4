"""Silver and gold over one Spark session: the loop that carries bronze's changes through both.

The loop may end at any point. Each MERGE commits its position together with its rows, a cut is recorded after
all its tables, and the next start continues from there. So a stop never waits for the end of a long cycle.

Long work delays nothing else. A large table is folded while cycles of the other tables pass
(`silver.run.long_work`). Cycles also pass while gold builds for more than some seconds: gold has a thread of
its own, and reads silver at the versions of one cut. During long work, the run keeps the layer's lease and
maintains no table; each end of long work gives maintenance a turn. No pause between failures shrinks before
the success of such work.

The loop waits for a lake without an answer, at any point of a cycle (`silver.spark.failure_scope`): the next
cycle sees all work done so far. A Spark without an answer ends the loop. The loop starts and calls Spark only
with rows to fold or documents to build.
"""

from __future__ import annotations

import logging
import math
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze import backoff
from deltasmelt.bronze.errors import SmeltError, TransientError
from deltasmelt.bronze.figures import counted
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.failures import vanished
from deltasmelt.bronze.lake.leases import still_writing
from deltasmelt.bronze.lsn import ZERO
from deltasmelt.bronze.store.position import PositionWatch
from deltasmelt.bronze.store.relations import RelationsWatch, read_relations
from deltasmelt.gold.cycle import Gold
from deltasmelt.pipelines.runtime.catalog_keys import CatalogKeys
from deltasmelt.pipelines.runtime.catalog_names import CatalogNames
from deltasmelt.pipelines.runtime.clustering import by_name, clustered
from deltasmelt.pipelines.runtime.locks import writing
from deltasmelt.pipelines.runtime.progress_text import maintenance_text
from deltasmelt.pipelines.terminal.failures import open_error_text
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.run.long_work import GRACE_SECONDS
from deltasmelt.silver.schema.catalog import silver_catalog
from deltasmelt.silver.spark.failure_scope import answers, outage
from deltasmelt.silver.spark.lazy_session import lazily
from deltasmelt.silver.spark.tuning import on_databricks

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.control import Cut, Run
    from deltasmelt.bronze.lake.location import Layer
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.gold.language.document import Document
    from deltasmelt.pipelines.runtime.maintenance import Maintenance
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.silver.schema.catalog import SilverTable
    from deltasmelt.silver.spark.lazy_session import LazySession

_POLL_SECONDS: Final = 0.1
POLL_SECONDS_IN_STORES: Final = 1.0  # each poll of an object store costs a request
_POLLS_PER_READ_OF_ERRORS: Final = 100
_ANNOUNCED: Final = 5
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
PATIENCE_SECONDS: Final = 600.0  # of retries after temporary failures, in a run that must catch up
_LOGGER = logging.getLogger("deltasmelt.stages")


def record_definitions(
    control: ControlTables, defined: Iterable[str], unreadable: Mapping[str, SmeltError] | None = None
) -> None:
    """Record the errors of unreadable documents; close the errors of removed documents.

    `defined` are the names of the readable documents.
    """
    unreadable = unreadable or {}
    for name, error in unreadable.items():
        message = f"{error.where}: {error.message}" if error.where else error.message
        remedy = error.remedy or "correct the document file; the next start builds the document"
        control.restate_error(OpenError("document", name, error.code, message, remedy))
    names = {*defined, *unreadable}
    control.close_all(
        [
            recorded
            for recorded in control.open_errors()
            if recorded.scope == "document" and recorded.name not in names
        ]
    )


class Stages:
    """Silver and gold of one pipeline.

    Args:
        observe: receives each cut with its runs.
        maintain: maintain the tables between cycles, if this pays (`pipelines.runtime.maintenance`).
        after_cycle: receives the session after each cycle with a cut of silver; returns at once.
        unreadable: errors of unreadable documents, by name.
        announce: receives each new error of a table or document as text.

    Attributes:
        silver_cut: the newest cut of silver made or found by this process.
        gold_cut: the newest cut of gold made or found by this process.
    """

    def __init__(
        self,
        spark: SparkSession | LazySession,
        pipeline: Pipeline,
        documents: Sequence[Document],
        *,
        layers: Sequence[Layer] = ("silver", "gold"),
        observe: Callable[[Cut, list[Run]], None] | None = None,
        maintain: bool = False,
        after_cycle: Callable[[SparkSession], None] | None = None,
        unreadable: Mapping[str, SmeltError] | None = None,
        announce: Callable[[str], None] | None = None,
    ) -> None:
        self._announce = announce
        self._announced: frozenset[tuple[str, str, str]] = frozenset()
        self._errors_due = 0.0
        self._spark = spark = lazily(spark)
        self._lake = pipeline.lake_address()
        self._control = ControlTables(self._lake)
        self._position = PositionWatch(self._lake)
        self._relations = RelationsWatch(self._lake)
        self._poll_seconds = POLL_SECONDS_IN_STORES if self._lake.is_remote else _POLL_SECONDS
        self._settings = clustered(pipeline.silver, documents)
        self._observe = observe
        self._after_cycle = after_cycle
        self._folded_version = -1
        self._unfinished = False
        self._cycle_start = -math.inf
        self._folded = ZERO
        self._built = ZERO
        self._built_from: Cut | None = None
        self._silver = (
            Silver(spark, self._lake, self._settings, self._control, changes=self._position.changes)
            if "silver" in layers
            else None
        )
        builds_gold = "gold" in layers and documents
        self._gold = (
            Gold(spark, self._lake, list(documents), self.catalog, self._control) if builds_gold else None
        )
        self._unreadable = unreadable
        self._defined = [document.name for document in documents] if "gold" in layers else None
        self._catalog = pipeline.lake.catalog
        self._names: CatalogNames | None = None
        self._keys: CatalogKeys | None = None
        self._has_positions = False
        self._lease: ExitStack | None = None
        self._stop: threading.Event | None = None
        self._building: tuple[Cut, Future[Cut | None]] | None = None
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="gold")
        self.silver_cut: Cut | None = None
        self.gold_cut: Cut | None = None
        self._maintenance = maintenance(spark.get(), pipeline, self._control, layers) if maintain else None

    def catalog(self) -> dict[TableName, SilverTable]:
        """Silver's tables as described by bronze's newest relations."""
        return silver_catalog(self._relations.read(), self._settings)

    @property
    def folding(self) -> tuple[int, int]:
        """Return how many tables silver's present cycle has folded, and how many it folds."""
        return (0, 0) if self._silver is None else self._silver.folding

    def carry(
        self, target: Callable[[], Lsn | None], stop: threading.Event, *, patience: float = math.inf
    ) -> None:
        """Run cycles until a request to stop, or until both layers reach the target.

        Args:
            target: the LSN at the end of the loop, once known; None until then, or for ever.
            patience: seconds of retries after temporary failures.

        Raises:
            SmeltError: a failure without hope for a retry, or longer than `patience`.
        """
        self._stop = stop
        self._errors_due = time.monotonic() + self._errors_pause  # the reader may close some first
        pauses, failing_since = backoff.Backoff(_FIRST_PAUSE, _LONGEST_PAUSE), math.inf
        while not stop.is_set():
            try:
                self._announce_errors()
                goal = target()
                moved = self.cycle(at_once=goal is not None)
            except Exception as error:
                if isinstance(error, InterruptedError) and stop.is_set():
                    return
                waits = self._waits_for(error)
                failing_since = min(failing_since, time.monotonic())
                if waits is None:
                    raise
                if time.monotonic() - failing_since >= patience:
                    raise waits from error
                pause = pauses.seconds()
                _LOGGER.warning("retry in %.1f s: %s", pause, waits)
                stop.wait(pause)
                continue
            failing_since = math.inf
            if self._is_idle():
                self._maintain(stop)
                pauses.worked()
            if self._after_cycle is not None and self.silver_cut is not None and not stop.is_set():
                self._after_cycle(self._spark.get())
            if goal is not None and self.reached(goal):
                return
            if not moved:
                stop.wait(self._poll_seconds)

    def _announce_errors(self) -> None:
        """Announce the errors that any process has opened since the last read, the first few of many."""
        if self._announce is None or time.monotonic() < self._errors_due:
            return
        self._errors_due = time.monotonic() + self._errors_pause
        errors = self._control.open_errors()
        # A retry may change an error's message, but the error stays the same.
        new = [error for error in errors if error.key not in self._announced]
        for error in new[:_ANNOUNCED]:
            self._announce(f"{error.scope} {open_error_text(error)}")
        if len(new) > _ANNOUNCED:
            more = counted(len(new) - _ANNOUNCED, "more new error")
            self._announce(f"{more}; `smelt status` shows each with its remedy")
        self._announced = frozenset(error.key for error in errors)

    @property
    def _errors_pause(self) -> float:
        return _POLLS_PER_READ_OF_ERRORS * self._poll_seconds

    def _is_idle(self) -> bool:
        """Check whether no long work is left to a later cycle."""
        return self._lease is None and self._building is None

    def _maintain(self, stop: threading.Event) -> None:
        if self._maintenance is not None and not stop.is_set():
            for result in self._maintenance.when_it_pays():
                _LOGGER.info("%s", maintenance_text(result))

    def _read_positions(self) -> None:
        """Read the layers' positions, once; wait at the start for a lake without an answer, as later."""
        if self._has_positions:
            return
        if self._defined is not None:
            record_definitions(self._control, self._defined, self._unreadable)
        self.silver_cut, self.gold_cut = self._control.latest_cut("silver"), self._control.latest_cut("gold")
        self._has_positions = True

    def _waits_for(self, error: Exception) -> TransientError | None:
        """Return a temporary failure as its error; None for another failure, or a Spark without an answer."""
        if isinstance(error, SmeltError):
            return error if isinstance(error, TransientError) else None
        failure = outage(error, self._lake)
        return failure if failure is not None and answers(self._spark, after=error) else None

    def cycle(self, *, at_once: bool = True) -> bool:
        """Fold new changes into silver, then build gold; return whether any layer moved.

        With `at_once`, do not wait until silver's next cycle is due (``silver.every``).
        """
        self._read_positions()
        moved = False
        if self._silver is not None and (at_once or self._is_due()):
            # Milliseconds; in an object store one request.
            position = self._position.read()
            if position is None and self._folded_version >= 0:
                raise vanished(self._lake.label)
            if position is not None and (
                position.version != self._folded_version
                or self._unfinished
                or self._has_work(at_once=at_once)
            ):
                start = time.monotonic()
                self._unfinished = True  # a cycle that ends before its cut is repeated
                if self._catalog is not None and on_databricks():
                    self._keys = self._keys or CatalogKeys(self._spark.get(), self._catalog)
                release = None if self._keys is None else self._keys.release
                with self._writing(self._silver):
                    cut = self._silver.cycle(release=release, leaves=not at_once)
                self._unfinished = False
                self._folded_version, self._folded, self._cycle_start = (
                    position.version,
                    position.frontier,
                    start,
                )
                if cut is not None:
                    self.silver_cut, moved = cut, True
                    self._report(cut, self._silver.runs)
        if self._gold is not None:
            # Silver may record the cut of one LSN again, with a table that joined it or was derived again.
            if self._silver is None and (newest := self._control.latest_cut("silver")) != self.silver_cut:
                self.silver_cut = newest
            moved |= self._build(self._gold, leaves=not at_once)
        return moved

    def reached(self, goal: Lsn) -> bool:
        """Check whether every layer of this process has finished all work up to an LSN.

        Tables and documents stopped by an error do not count.
        """
        return (self._silver is None or (self._folded >= goal and self._lease is None)) and (
            self._gold is None
            or (self._built >= goal and self._built_from is self.silver_cut)
            or self._nothing_to_build()
        )

    def _build(self, gold: Gold, *, leaves: bool) -> bool:
        """Build gold from silver's newest cut, or retry a failed document; return whether gold has a new cut.

        With `leaves`, return after some seconds, and leave the result to a later call; otherwise build until
        gold has finished silver's newest cut.
        """
        moved, submitted, seconds = False, False, 0.0
        while True:
            if self._building is None:
                owes_retry = not submitted and gold.owes_retry(at_once=not leaves)
                if self.silver_cut is None or (self.silver_cut is self._built_from and not owes_retry):
                    return moved
                submitted, self._built_from = True, None  # a build that fails is repeated
                self._building = (
                    self.silver_cut,
                    self._builder.submit(self._gold_cycle, gold, at_once=not leaves),
                )
                seconds = GRACE_SECONDS
            source, future = self._building
            if not wait([future], seconds if leaves else None).done:
                return moved
            self._building = None
            built = future.result()
            self._built, self._built_from = source.commit_lsn, source
            if built is not None:
                self.gold_cut, moved = built, True
                self._report(built, gold.runs)
            if leaves:
                return moved  # between two builds maintenance has its turn

    def _gold_cycle(self, gold: Gold, *, at_once: bool) -> Cut | None:
        with writing(self._lake, "gold", stop=self._stop):
            return gold.cycle(at_once=at_once)

    @contextmanager
    def _writing(self, silver: Silver) -> Iterator[None]:
        """Hold silver's lease for a cycle, and further until the end of the cycle's long work."""
        if self._lease is not None and not self._holds():
            self._lease.close()
            self._lease = None
        lease = self._lease or ExitStack()
        try:
            if self._lease is None:
                lease.enter_context(writing(self._lake, "silver", stop=self._stop))
            yield
        finally:
            self._lease = lease if silver.long_work.tables else None
            if self._lease is None:
                lease.close()

    def _holds(self) -> bool:
        """Check whether this process still holds silver's lease; a lost lease makes long work worthless."""
        try:
            still_writing(self._lake, "silver")
        except TransientError:
            return False
        return True

    def _has_work(self, *, at_once: bool) -> bool:
        """Check whether silver has work without a new version of bronze."""
        if self._silver is None:
            return False
        long, rest = self._silver.long_work, time.monotonic() - self._cycle_start
        retries = self._silver.owes_retry and rest >= backoff.FIRST_SECONDS  # a refused table stays due
        # Long work has a result, or must be waited for; or a failed table's pause is over.
        return bool(long.has_ended or (at_once and long.tables) or retries)

    def end(self) -> None:
        """Wait for long work and release its leases; a stop of Spark's session ends such work."""
        self._builder.shutdown(wait=True, cancel_futures=True)
        if self._silver is not None and self._lease is not None:
            self._silver.long_work.close()
            self._lease.close()
            self._lease = None

    def _is_due(self) -> bool:
        every = self._settings.every
        return every is None or time.monotonic() - self._cycle_start >= every

    def _nothing_to_build(self) -> bool:
        """Check whether silver has no cut at all: no table could be folded."""
        return self._silver is not None and self.silver_cut is None

    def _report(self, cut: Cut, runs: Sequence[Run]) -> None:
        if self._catalog is not None and cut.tables:
            if self._names is None:
                self._names = CatalogNames(self._spark.get(), self._lake, self._catalog)
            self._names.make(cut)
            if self._keys is not None and cut.layer == "silver":
                self._keys.state(cut, self.catalog().values())
        if self._observe is not None:
            self._observe(cut, [run for run in runs if run.to_lsn == cut.commit_lsn])


def maintenance(
    spark: SparkSession,
    pipeline: Pipeline,
    control: ControlTables,
    layers: Sequence[Layer],
    documents: Sequence[Document] | None = None,
) -> Maintenance:
    """Return the maintenance of a pipeline's tables.

    The joins of `documents` decide the clustering of silver's tables; None keeps the present order.
    """
    from deltasmelt.pipelines.runtime.maintenance import Maintenance  # noqa: PLC0415 - loads Spark
    from deltasmelt.pipelines.runtime.retention import BronzeRetention  # noqa: PLC0415 - with it

    lake = pipeline.lake_address()
    shapes, retains = None, pipeline.bronze.retention is not None and "silver" in layers
    if documents is not None:
        shapes = by_name(read_relations(lake), clustered(pipeline.silver, documents))
    return Maintenance(
        spark,
        lake,
        control,
        retention=pipeline.lake.retention,
        documents=bool(pipeline.gold.documents),
        layers=layers,
        shapes=shapes,
        retain=BronzeRetention(pipeline, control).decide if retains else None,
    )
