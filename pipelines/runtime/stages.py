"""Silver and gold over one Spark session: the loop that carries what bronze has through both.

The loop may end anywhere. Each MERGE carries its position in its own commit, a cut is recorded after all its
tables, and the next start continues from there. So stopping never waits for a long cycle to finish.

A continuous run maintains the tables between two cycles, where it pays (`pipelines.runtime.maintenance`);
nothing that fails there ends it.

Long work holds nothing else. A large table is folded while cycles of the others pass
(`silver.run.long_work`). Cycles also pass while gold builds for longer than some seconds: gold has a thread
of its own, and reads silver at the versions of one cut. While either is at work, the run keeps the layer's
lease and maintains no table; each end of such work lets maintenance have its turn. No pause between failures
shrinks until such work has succeeded.

A lake that does not answer is waited for, wherever in a cycle that happens (`silver.spark.errors`): nothing
is half-done that the next cycle does not see. A Spark that does not answer ends the loop.

New bronze commits are noticed by reading bronze's position (milliseconds; in an object store one request).
Delta's logs say what they hold. Spark is started, and asked, only where there is something to fold or to
build.
"""

from __future__ import annotations

import logging
import math
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.backoff import Backoff
from deltasmelt.bronze.errors import SmeltError, TransientError
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.failures import vanished
from deltasmelt.bronze.lake.leases import still_writing
from deltasmelt.bronze.lsn import ZERO
from deltasmelt.bronze.store.position import PositionWatch
from deltasmelt.bronze.store.relations import RelationsWatch, read_relations
from deltasmelt.gold.cycle import Gold
from deltasmelt.pipelines.runtime.catalog_keys import CatalogKeys, has_constraints
from deltasmelt.pipelines.runtime.catalog_names import CatalogNames
from deltasmelt.pipelines.runtime.clustering import by_name, clustered
from deltasmelt.pipelines.runtime.locks import writing
from deltasmelt.pipelines.runtime.progress_text import maintenance_text
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.run.failed_tables import answers, unreachable
from deltasmelt.silver.run.long_work import GRACE_SECONDS
from deltasmelt.silver.schema.catalog import silver_catalog
from deltasmelt.silver.spark.errors import outage
from deltasmelt.silver.spark.lazy_session import lazily

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
POLL_SECONDS_IN_STORES: Final = 1.0
"""A look that finds nothing new takes a request there."""
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
PATIENCE_SECONDS: Final = 600.0
"""Seconds for which a run that must catch up retries after temporary failures."""
_LOGGER = logging.getLogger("deltasmelt.stages")


def record_definitions(
    control: ControlTables, defined: Iterable[str], wrong: Mapping[str, SmeltError] | None = None
) -> None:
    """Record the errors of documents that cannot be read; close those of documents that are gone.

    Args:
        control: the lake's control tables.
        defined: names of the documents that can be built.
        wrong: errors of other documents, by name.
    """
    wrong = wrong or {}
    for name, error in wrong.items():
        message = f"{error.where}: {error.message}" if error.where else error.message
        remedy = error.remedy or "correct the document file; the next start builds the document"
        control.restate_error(OpenError("document", name, error.code, message, remedy))
    known = {*defined, *wrong}
    control.close_all(
        [one for one in control.open_errors() if one.scope == "document" and one.name not in known]
    )


class Stages:
    """Silver and gold of one pipeline.

    Args:
        spark: a session; one that starts when needed is started by what needs it.
        pipeline: the pipeline.
        documents: gold's.
        layers: the stages to run.
        observe: is told each cut with its runs.
        maintain: whether to maintain the tables between cycles.
        after_cycle: is given the session after each cycle, once silver has a cut; it returns at once.
        wrong: errors of documents whose definitions cannot be read, by name.

    Attributes:
        silver_cut: the newest cut of silver that this process made or found.
        gold_cut: likewise of gold.
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
        wrong: Mapping[str, SmeltError] | None = None,
    ) -> None:
        self._spark = spark = lazily(spark)
        self._lake = pipeline.lake_address()
        self._control = ControlTables(self._lake)
        self._position = PositionWatch(self._lake)
        self._relations = RelationsWatch(self._lake)
        self._poll_seconds = POLL_SECONDS_IN_STORES if self._lake.is_remote else _POLL_SECONDS
        self._settings = clustered(pipeline.silver, documents)
        self._observe = observe
        self._after_cycle = after_cycle
        self._seen = -1
        self._begun = -math.inf
        self._folded = ZERO
        self._built = ZERO
        self._given: Cut | None = None
        self._silver = (
            Silver(spark, self._lake, self._settings, self._control, changes=self._position.changes)
            if "silver" in layers
            else None
        )
        wanted = "gold" in layers and documents
        self._gold = Gold(spark, self._lake, list(documents), self.catalog, self._control) if wanted else None
        self._wrong = wrong
        self._defined = [one.name for one in documents] if "gold" in layers else None
        self._catalog = pipeline.lake.catalog
        self._names: CatalogNames | None = None
        self._keys: CatalogKeys | None = None
        self._looked = False
        self._lease: ExitStack | None = None
        self._building: tuple[Cut, Future[Cut | None]] | None = None
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="gold")
        self.silver_cut: Cut | None = None
        self.gold_cut: Cut | None = None
        self._maintenance = maintenance(spark.get(), pipeline, self._control, layers) if maintain else None

    def catalog(self) -> dict[TableName, SilverTable]:
        """Silver's tables as bronze's newest relations describe them."""
        return silver_catalog(self._relations.read(), self._settings)

    def carry(
        self, target: Callable[[], Lsn | None], stop: threading.Event, *, patience: float = math.inf
    ) -> None:
        """Run cycles until told to stop, or until both layers reached the target.

        Args:
            target: the LSN that ends the loop, once it is known; None until then, or for ever.
            stop: ends the loop.
            patience: seconds for which temporary failures are retried.

        Raises:
            SmeltError: a failure that no retry helps, or that lasted longer than `patience`.
        """
        backoff, failing_since = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE), math.inf
        while not stop.is_set():
            try:
                goal = target()
                moved = self.cycle(at_once=goal is not None)
            except Exception as error:
                waits = self._waits_for(error)
                failing_since = min(failing_since, time.monotonic())
                if waits is None:
                    raise
                if time.monotonic() - failing_since >= patience:
                    raise waits from error
                pause = backoff.seconds()
                _LOGGER.warning("will try again in %.1f s: %s", pause, waits)
                stop.wait(pause)
                continue
            failing_since = math.inf
            if self._is_idle():
                self._maintain(stop)
                backoff.worked()
            if self._after_cycle is not None and self.silver_cut is not None and not stop.is_set():
                self._after_cycle(self._spark.get())
            if goal is not None and self.reached(goal):
                return
            if not moved:
                stop.wait(self._poll_seconds)

    def _is_idle(self) -> bool:
        """Check whether no long work is left to a later cycle."""
        return self._lease is None and self._building is None

    def _maintain(self, stop: threading.Event) -> None:
        if self._maintenance is not None and not stop.is_set():
            for done in self._maintenance.when_it_pays():
                _LOGGER.info("%s", maintenance_text(done))

    def _look(self) -> None:
        """Where the layers stand, once: a lake that does not answer at the start is waited for as later."""
        if self._looked:
            return
        if self._defined is not None:
            record_definitions(self._control, self._defined, self._wrong)
        self.silver_cut, self.gold_cut = self._control.latest_cut("silver"), self._control.latest_cut("gold")
        self._looked = True

    def _waits_for(self, error: Exception) -> TransientError | None:
        """A temporary failure as its error; None for any other, or if Spark no longer answers."""
        if isinstance(error, TransientError):
            return error
        said = None if isinstance(error, SmeltError) else outage(error)
        return (
            unreachable(self._lake, said) if said is not None and answers(self._spark, after=error) else None
        )

    def cycle(self, *, at_once: bool = True) -> bool:
        """Fold what is new into silver, then build gold from it; returns whether anything moved.

        Args:
            at_once: do not wait until silver's next cycle is due (``silver.every``).
        """
        self._look()
        moved = False
        if self._silver is not None and (at_once or self._is_due()):
            position = self._position.read()
            if position is None and self._seen >= 0:
                raise vanished(self._lake.place)
            if position is not None and (position.version != self._seen or self._may_take(at_once=at_once)):
                begun = time.monotonic()
                if self._catalog is not None and has_constraints():
                    self._keys = self._keys or CatalogKeys(self._spark.get(), self._catalog)
                release = None if self._keys is None else self._keys.release
                with self._writing(self._silver):
                    cut = self._silver.cycle(release=release, leaves=not at_once)
                self._seen, self._folded, self._begun = position.version, position.frontier, begun
                if cut is not None:
                    self.silver_cut, moved = cut, True
                    self._tell(cut, self._silver.runs)
        if self._gold is not None:
            # Silver may record the cut of one LSN again, with a table that joined it or was derived again.
            if self._silver is None and (found := self._control.latest_cut("silver")) != self.silver_cut:
                self.silver_cut = found
            moved |= self._build(self._gold, leaves=not at_once)
        return moved

    def reached(self, goal: Lsn) -> bool:
        """Whether every layer of this process has dealt with everything up to an LSN.

        Tables and documents that an error has stopped do not hold this up.
        """
        return (self._silver is None or (self._folded >= goal and self._lease is None)) and (
            self._gold is None
            or (self._built >= goal and self._given is self.silver_cut)
            or self._nothing_to_build()
        )

    def _build(self, gold: Gold, *, leaves: bool) -> bool:
        """Build gold from silver's newest cut; returns whether there is a new cut of gold.

        Args:
            gold: the documents.
            leaves: return after some seconds, and let a later call take the result; else build on until gold
                has dealt with silver's newest cut.
        """
        moved, seconds = False, 0.0
        while True:
            if self._building is None:
                if self.silver_cut is None or self.silver_cut is self._given:
                    return moved
                self._building = self.silver_cut, self._builder.submit(self._gold_cycle, gold)
                seconds = GRACE_SECONDS
            source, future = self._building
            if not wait([future], seconds if leaves else None).done:
                return moved
            self._building = None
            built = future.result()
            self._built, self._given = source.commit_lsn, source
            if built is not None:
                self.gold_cut, moved = built, True
                self._tell(built, gold.runs)
            if leaves:
                return moved  # between two builds maintenance has its turn

    def _gold_cycle(self, gold: Gold) -> Cut | None:
        with writing(self._lake, "gold"):
            return gold.cycle()

    @contextmanager
    def _writing(self, silver: Silver) -> Iterator[None]:
        """Hold silver's lease for a cycle, and on until the cycle's long work has ended."""
        if self._lease is not None and not self._holds():
            self._lease.close()
            self._lease = None
        lease = self._lease or ExitStack()
        try:
            if self._lease is None:
                lease.enter_context(writing(self._lake, "silver"))
            yield
        finally:
            self._lease = lease if silver.long_work.tables else None
            if self._lease is None:
                lease.close()

    def _holds(self) -> bool:
        """Check whether silver's lease still holds; of one that was lost nothing is to be hoped for."""
        try:
            still_writing(self._lake, "silver")
        except TransientError:
            return False
        return True

    def _may_take(self, *, at_once: bool) -> bool:
        """Check whether silver has the result of long work to take, or must wait for it."""
        long = None if self._silver is None else self._silver.long_work
        return long is not None and bool(long.has_ended or (at_once and long.tables))

    def end(self) -> None:
        """Wait for long work and give its leases back; a stop of Spark's session ends such work."""
        self._builder.shutdown(wait=True, cancel_futures=True)
        if self._silver is not None and self._lease is not None:
            self._silver.long_work.close()
            self._lease.close()
            self._lease = None

    def _is_due(self) -> bool:
        every = self._settings.every
        return every is None or time.monotonic() - self._begun >= every

    def _nothing_to_build(self) -> bool:
        """Silver has no cut at all: not one table could be folded."""
        return self._silver is not None and self.silver_cut is None

    def _tell(self, cut: Cut, runs: Sequence[Run]) -> None:
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
    """The maintenance of a pipeline's tables.

    Args:
        spark: a session.
        pipeline: whose.
        control: its control tables.
        layers: whose tables.
        documents: cluster silver's tables by what they join by; None: as they are.
    """
    from deltasmelt.pipelines.runtime.maintenance import Maintenance  # noqa: PLC0415 - loads Spark

    lake = pipeline.lake_address()
    shapes = None
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
    )
