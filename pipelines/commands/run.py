"""`smelt run` and the single stages: their end, and their progress reports.

With ``--until-caught-up`` the goal is a position at the start: the source's log head, bronze's frontier or
silver's cut. The run ends after every layer has reached this position. A table or document stopped by an
error delays no other. The end of the run names the stopped tables and documents, and those waiting for a
snapshot (exit code 3, `pipelines.health.stalled`). Without the option, stages run until an interruption.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.store.position import read_position
from deltasmelt.bronze.store.relations import read_relations
from deltasmelt.pipelines.commands.context import load_documents_of
from deltasmelt.pipelines.runtime.progress_text import ProgressReporter
from deltasmelt.pipelines.runtime.supervisor import Supervisor
from deltasmelt.pipelines.terminal.failures import Failure, tables_stopped
from deltasmelt.pipelines.terminal.interrupts import terminable
from deltasmelt.pipelines.terminal.output import moving_line

if TYPE_CHECKING:
    import subprocess
    import threading
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from deltasmelt.bronze.errors import ConfigurationError
    from deltasmelt.bronze.lake.control import Cut, Run
    from deltasmelt.bronze.lake.location import Layer
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.gold.language.document import Document
    from deltasmelt.pipelines.monitor.access import ViewOptions
    from deltasmelt.pipelines.monitor.watch import Watched
    from deltasmelt.pipelines.quality.schedule import ParallelQuality
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.terminal.output import Output


class ProgressReceiver(Protocol):
    """Receives the progress of a run; its methods are called from the run's threads."""

    def cut(self, cut: Cut, runs: list[Run]) -> None:
        """Receive a new cut of silver or gold, with the runs of its tables or documents."""

    def reader(self, event: dict[str, Any]) -> None:
        """Receive an event of the reader."""

    def folding(self, done: int, total: int) -> None:
        """Receive how many tables silver's present cycle has folded; `total` is 0 between two cycles."""


def head_of_source(pipeline: Pipeline) -> Lsn:
    """Return the server's present WAL position.

    Raises:
        SmeltError: the server refuses the connection or the query.
    """
    from deltasmelt.bronze.postgres.connection import (  # noqa: PLC0415 - silver and gold need no server
        connect,
        standby_without_slot,
        translated,
        written_end,
    )
    from deltasmelt.bronze.postgres.conninfo import address_of  # noqa: PLC0415

    source = pipeline.source
    with connect(source) as connection, translated(source):
        row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
        if row is not None and row[0]:
            raise standby_without_slot(address_of(source))
        return written_end(connection)


def stage_goal(pipeline: Pipeline, layer: Layer) -> Lsn:
    """Return the goal of a single stage: bronze's present position for silver, silver's for gold.

    Raises:
        DefiniteError: the layer before has no data yet.
    """
    lake = pipeline.lake_address()
    if layer == "silver":
        position = read_position(lake)
        reached = None if position is None else position.frontier
    else:
        cut = ControlTables(lake).latest_cut("silver")
        reached = None if cut is None else cut.commit_lsn
    if reached is None:
        before = "bronze" if layer == "silver" else "silver"
        raise DefiniteError(
            f"{layer} has nothing to read: {before} is empty",
            code="layer-empty",
            where=str(pipeline.path),
            remedy=f"run `smelt {before} {pipeline.path.name} --until-caught-up` first, or `smelt run`",
        )
    return reached


_POLL_SECONDS: Final = {True: 0.05, False: 0.2}
"""Seconds between two polls of the stages; the key is whether the stages end by themselves."""


def run_layers(
    pipeline: Pipeline,
    output: Output,
    *,
    layers: Sequence[Layer],
    until_caught_up: bool,
    command: str,
    loaded_reader: subprocess.Popen[bytes] | None = None,
    views: ViewOptions | None = None,
    progress: ProgressReceiver | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Run stages of a pipeline until they are caught up, or until an interruption.

    Args:
        pipeline: the pipeline.
        output: takes messages.
        layers: the stages to run.
        until_caught_up: end when all stages are caught up.
        command: name of the command for the lake's lock.
        loaded_reader: an already loaded process of the reader.
        views: addresses of the status page and the metrics.
        progress: receives cuts and the reader's events; None writes them to the output.
        stop: ends the run in order, from another thread.

    Raises:
        SmeltError: the reason for the end of the run.
        Failure: caught up with stopped tables or documents; or without any table or document.
    """
    if "bronze" in layers:
        from deltasmelt.bronze.checks.ownership import refuse_others  # noqa: PLC0415 - silver and gold need no server

        with output.waiting("reading the source's slot"):
            refuse_others(pipeline.source, pipeline.lake_address(), pipeline.pipeline)
    # Read before the start, so a mistake in the pipeline file costs no snapshot.
    document_errors: dict[str, ConfigurationError] = {}
    documents = _documents(pipeline, layers, document_errors, output, until_caught_up=until_caught_up)
    every = None if until_caught_up or not {"silver", "gold"} <= {*layers} else pipeline.quality.every
    quality_checks = None if every is None else _quality(pipeline, every, output)
    with terminable(), _watched(pipeline, layers, views, output) as watching:
        until = None
        if until_caught_up:
            with output.waiting("reading the position to reach"):
                until = head_of_source(pipeline) if "bronze" in layers else stage_goal(pipeline, layers[0])
            output.report(f"running {', '.join(layers)} until {until} is reached")
        elif "bronze" not in layers:
            _report_wait(pipeline, layers[0], output)
        with (
            moving_line(f"running {', '.join(layers)}" if progress is None else None) as move,
            Supervisor(
                pipeline,
                documents,
                unreadable=document_errors,
                command=command,
                layers=layers,
                until=until,
                observe=(reporter := progress or ProgressReporter(output, move)).cut,
                progress=reporter.reader,
                announce=output.report,
                loaded_reader=loaded_reader,
                after_cycle=None if quality_checks is None else quality_checks.after_cycle,
                patient=stop is not None,
            ) as supervisor,
            quality_checks or nullcontext(),
        ):
            from deltasmelt.pipelines.health.stalled import standing_still  # noqa: PLC0415 - while the reader starts

            if watching is not None:
                watching.runs(supervisor.alive, supervisor.restarts)

            if not _ended(supervisor, _POLL_SECONDS[until_caught_up], stop, reporter):
                return
        if until_caught_up:
            stalled = standing_still(
                pipeline.lake_address(),
                pipeline.silver,
                layers,
                [*document_errors, *(document.name for document in documents)],
            )
            if stalled:  # inside the watched block, so that alerts report this end, too
                raise tables_stopped(stalled.stopped, waiting=stalled.waiting, errors=stalled.errors)
    if until_caught_up:
        if set(layers) != {"gold"} and not read_relations(pipeline.lake_address()):
            raise Failure(
                "caught up, but no table is replicated: source.tables is "
                f"{', '.join(pipeline.source.tables)}\nremedy: `smelt check` reports the reason"
            )
        output.report("caught up")


def _ended(
    supervisor: Supervisor, seconds: float, stop: threading.Event | None, progress: ProgressReceiver
) -> bool:
    """Wait for the end of the stages, and report a long cycle; return False if `stop` is set before."""
    while not supervisor.wait(seconds):
        if supervisor.stages is not None:
            progress.folding(*supervisor.stages.folding)
        if stop is not None and stop.is_set():
            return False
    return True


def _documents(
    pipeline: Pipeline,
    layers: Sequence[Layer],
    errors: dict[str, ConfigurationError],
    output: Output,
    *,
    until_caught_up: bool,
) -> list[Document]:
    """Return the document definitions to build; `errors` collects the errors of the other documents.

    Raises:
        ConfigurationError: a pattern selects no file, or gold alone is to run and all documents are wrong.
        Failure: gold alone is to catch up and has no document.
    """
    documents = load_documents_of(pipeline, errors) if "gold" in layers else []
    if errors and not documents and set(layers) == {"gold"}:
        raise next(iter(errors.values()))
    # An unreadable document is an error of this document alone: the run builds the other documents.
    for name, error in errors.items():
        output.report(f"document {name} is not built: {error}")
    if until_caught_up and not documents and set(layers) == {"gold"}:
        raise Failure(
            "no document to build: gold.documents is empty\nremedy: name the document files in "
            "gold.documents, or do not run `smelt gold`"
        )
    return documents


def _watched(
    pipeline: Pipeline, layers: Sequence[Layer], views: ViewOptions | None, output: Output
) -> AbstractContextManager[Watched | None]:
    """Return the run's observers; without observers, load none of their modules."""
    if views is None and pipeline.alerts.webhook is None:
        return nullcontext()
    from deltasmelt.pipelines.monitor.watch import watched  # noqa: PLC0415

    return watched(pipeline, layers, views, output)


def _quality(pipeline: Pipeline, interval: float, output: Output) -> ParallelQuality:
    """Return the data quality runs in parallel with the run; refuse impossible runs at once."""
    from deltasmelt.pipelines.quality.engine import require_installed  # noqa: PLC0415 - only where it is asked for
    from deltasmelt.pipelines.quality.schedule import ParallelQuality  # noqa: PLC0415

    require_installed()
    pipeline.suite_files()
    return ParallelQuality(pipeline, interval, output.report)


def _report_wait(pipeline: Pipeline, layer: Layer, output: Output) -> None:
    """Report a stage waiting for the first data of the stage before."""
    try:
        stage_goal(pipeline, layer)
    except DefiniteError as error:
        output.report(f"{error.message}; waiting for data")
