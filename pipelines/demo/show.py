"""The live part of the demo: preparation, the shop at work, two followed acts, and the end.

One loop in the main thread draws, makes no slow call, and ends at Ctrl-C at once. The shop works in a thread,
silver and gold in the supervisor's threads. Queries of the lake through Spark (`_Lake`) have a thread and a
session of their own.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any, Final

import psycopg

from deltasmelt.bronze.figures import seconds_text
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.position import read_position
from deltasmelt.pipelines.commands.context import load_documents_of
from deltasmelt.pipelines.demo.live import LiveView, Preparation
from deltasmelt.pipelines.demo.story import LAYERS, Story
from deltasmelt.pipelines.demo.summary import Summary, summarize
from deltasmelt.pipelines.demo.workload import Spared, run_workload
from deltasmelt.pipelines.proof.against_source import prove
from deltasmelt.pipelines.quality.engine import load_in_background
from deltasmelt.pipelines.runtime.supervisor import Supervisor
from deltasmelt.pipelines.spark.lake_sql import LakeSql
from deltasmelt.pipelines.terminal.output import Output
from deltasmelt.silver.sql import as_json, quote

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from deltasmelt.bronze.lake.control import Cut, Run
    from deltasmelt.bronze.lake.location import Layer
    from deltasmelt.pipelines.settings import Pipeline

_POLL_SECONDS: Final = 0.25

_SHOP: Final = "PostgreSQL with a shop"
_BRONZE: Final = "bronze: snapshot of the tables"
_SPARK: Final = "Spark"
_SILVER: Final = "silver: first merge"
_GOLD: Final = "gold: first build of the documents"
STEPS: Final = (_SHOP, _BRONZE, _SPARK, _SILVER, _GOLD)
"""Steps before the shop opens."""

_PREPARING: Final = "preparing; the shop opens when all layers run"
_OPEN: Final = "the shop is open: {rate:,.0f} transactions a second"
_CLOSED: Final = "the shop is closed; the layers catch up"
_COMPARING: Final = "caught up; now comparing every row with PostgreSQL"
PHASES: Final = (_PREPARING, _OPEN, _CLOSED)
"""Titles of the parts that take some seconds, in order."""


def show(pipeline: Pipeline, dsn: str, output: Output, *, seconds: float, rate: float) -> Summary:
    """Run the live part, then examine the result.

    Raises:
        SmeltError: the reason for an early end.
    """
    view = LiveView(output, Preparation(STEPS))
    observer = _Observer(view)
    with (
        psycopg.connect(dsn, autocommit=True) as watch,
        psycopg.connect(dsn, autocommit=True, application_name="smelt-demo-story") as story,
        view,
        Supervisor(
            pipeline,
            load_documents_of(pipeline),
            command="smelt demo",
            observe=observer.cut,
            progress=observer.reader,
        ) as run,
        ExitStack() as cleanups,
    ):
        look_pool = ThreadPoolExecutor(1, thread_name_prefix="demo-look")
        # Spark's stop ends the queries that still run.
        cleanups.callback(look_pool.shutdown, wait=False, cancel_futures=True)
        return _Show(pipeline, run, view, watch=watch, story=Story(story), queries=look_pool).play(
            dsn, seconds=seconds, rate=rate
        )


class _Show:
    """One live part."""

    def __init__(
        self,
        pipeline: Pipeline,
        run: Supervisor,
        view: LiveView,
        *,
        watch: psycopg.Connection[Any],
        story: Story,
        queries: ThreadPoolExecutor,
    ) -> None:
        self._pipeline = pipeline
        self._run = run
        self._view = view
        self._watch = watch
        self._story = story
        self._queries = queries
        self._shop: _Shop | None = None
        self._order: dict[Layer, str] = {}

    def play(self, dsn: str, *, seconds: float, rate: float) -> Summary:
        view, story = self._view, self._story
        view.enter(_PREPARING)
        self._prepare()
        view.open(_OPEN.format(rate=rate))
        shop = self._shop = _Shop(dsn, rate, story.spared)
        try:
            story.first_act()  # before the shop's workload, so that the first window contains the order
            view.followed = story.followed
            shop.start()
            opened = time.monotonic()
            self._until(lambda: "silver" in story.followed[0].seconds)
            story.second_act(self._kill_reader)  # while gold builds the document of the first act
            self._until(lambda: story.followed[0].through)
            self._order = self._queried(story.find_order)
            self._until(lambda: time.monotonic() - opened > seconds)
        finally:
            shop.close()
        load_in_background()
        view.enter(_CLOSED)
        end = self._head()
        view.heads.note(end)
        self._until(lambda: self._caught_up(end))
        for layer in LAYERS:  # the last commit lies a little before the server's position
            story.reached(layer, end)
        self._queried(story.find_rest)
        view.settled(_COMPARING)
        spark = self._run.spark
        if spark is None:
            raise RuntimeError("caught up without a Spark session")
        # The pipeline still runs, as in production.
        proving = self._queries.submit(prove, self._pipeline, lambda: nullcontext(spark), _InView(view))
        self._until(proving.done)
        proof = proving.result()
        self._run.finish()
        return summarize(
            spark,
            self._pipeline,
            proof,
            transactions=shop.committed,
            changes=view.bronze.meter.total,
            followed=story.followed,
            order=self._order,
            report=view.enter,
        )

    def _prepare(self) -> None:
        """Wait until every layer has its first state."""
        tables = self._number("SELECT count(*) FROM pg_stat_user_tables")
        rows = self._number("SELECT sum(n_live_tup) FROM pg_stat_user_tables")
        view, run = self._view, self._run
        view.prepared(_SHOP, f"{tables} tables, {rows:,} rows")

        def ready() -> bool:
            stages, position = run.stages, read_position(self._pipeline.lake_address())
            if view.bronze.meter.total >= rows:
                view.prepared(_BRONZE, f"{view.bronze.meter.total:,} rows")
            if stages is None:
                return False
            view.prepared(_SPARK)
            if stages.silver_cut is not None and len(stages.silver_cut.tables) >= tables:
                view.prepared(_BRONZE)
                view.prepared(_SILVER, f"{len(stages.silver_cut.tables)} tables")
            # Also if an error stops a document: the summary reports the error.
            if stages.gold_cut is not None and position is not None and stages.reached(position.frontier):
                view.prepared(_SILVER)
                view.prepared(_GOLD, f"{view.gold.meter.total:,} documents")
            return view.preparation.complete

        self._until(ready)

    def _until(self, done: Callable[[], bool]) -> None:
        """Draw until a condition is true."""
        while not done():
            view, run = self._view, self._run
            view.heads.note(self._head())
            if self._shop is not None:
                view.source.meter.set(self._shop.committed)
                self._shop.check()
            for layer in LAYERS:
                self._story.reached(layer, view.layer(layer).lsn)
            if (
                view.crash
                and len(self._story.followed) > 1
                and "bronze" in (last := self._story.followed[-1]).seconds
            ):
                view.crash = killed(last.seconds["bronze"])
            view.refresh()
            run.wait(_POLL_SECONDS)

    def _queried(self, query: Callable[[Callable[[str], list[str]]], Any]) -> Any:
        """Return the lake's answer, and draw meanwhile."""
        spark = self._run.spark
        if spark is None:
            raise RuntimeError("the layers run without a Spark session")

        def rows(statement: str) -> list[str]:
            frame = LakeSql(spark.newSession(), self._pipeline).query(statement)
            text = frame.selectExpr(as_json(map(quote, frame.columns)))
            return [row[0] for row in text.collect()]

        answer: Future[Any] = self._queries.submit(query, rows)
        self._until(answer.done)
        return answer.result()

    def _kill_reader(self) -> None:
        reader = self._run.reader
        if reader is not None:
            reader.kill()
            self._view.crash = killed()

    def _caught_up(self, end: Lsn) -> bool:
        position = read_position(self._pipeline.lake_address())
        if position is None or position.confirm < end or self._run.stages is None:
            return False
        return self._run.stages.reached(position.frontier)

    def _head(self) -> Lsn:
        row = self._watch.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        return Lsn.parse(row[0]) if row else Lsn(0)

    def _number(self, query: str) -> int:
        row = self._watch.execute(query.encode()).fetchone()
        return int(row[0] or 0) if row else 0


def killed(seconds: float | None = None) -> str:
    """Return what became of the killed reader; `seconds` passed until bronze had the last change."""
    later = "" if seconds is None else f" and continued where bronze ends, {seconds_text(seconds)} later"
    return f"the reader was killed (kill -9){later}"


class _InView(Output):
    """Output of a comparison, shown by the live view."""

    def __init__(self, view: LiveView) -> None:
        super().__init__()
        self._view = view

    def report(self, text: str, *, style: str | None = None) -> None:  # noqa: ARG002 - its interface
        """Show a message."""
        self._view.enter(text)

    def waiting(self, text: str) -> AbstractContextManager[None]:
        """Show the reason of a wait."""
        self._view.enter(text)
        return nullcontext()


class _Shop:
    """The workload in a thread."""

    def __init__(self, dsn: str, rate: float, spared: Spared) -> None:
        self.committed = 0
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(dsn, rate, spared), daemon=True)

    def start(self) -> None:
        """Open the shop."""
        self._thread.start()

    def check(self) -> None:
        """Raise the error that ended the shop too early.

        Raises:
            BaseException: the error in the shop's thread.
        """
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Close the shop; nothing changes afterwards."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self, dsn: str, rate: float, spared: Spared) -> None:
        try:
            run_workload(
                dsn, seconds=float("inf"), rate=rate, stop=self._stop, committed=self._count, spared=spared
            )
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            self._failure = error

    def _count(self, committed: int) -> None:
        self.committed = committed


class _Observer:
    """Updates the view from the layers' reports."""

    def __init__(self, view: LiveView) -> None:
        self._view = view
        self._earlier = 0
        self._last = 0

    def cut(self, cut: Cut, runs: list[Run]) -> None:
        layer = self._view.layer(cut.layer)
        layer.lsn = cut.commit_lsn
        if cut.layer == "silver":
            layer.meter.add(sum(run.changes for run in runs))
        else:
            layer.meter.add(sum(run.inserts + run.updates + run.deletes for run in runs))

    def reader(self, event: dict[str, Any]) -> None:
        rows = event["changes"] + event["copied"]
        if rows < self._last:  # of a reader that was started again
            self._earlier += self._last
        self._last = rows
        self._view.bronze.meter.set(self._earlier + rows)
        if event["durable"]:
            self._view.bronze.lsn = Lsn(event["durable"] - 1)
