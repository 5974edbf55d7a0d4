"""`smelt run` and the single stages: what they promise, and how they say what they do.

``--until-caught-up`` notes the server's WAL position once, at the start, and ends when every layer holds
everything up to it. Tables or documents that stand still by an error of their own do not hold up the others;
they, and what waits for a copy, are named at the end (exit code 3, `pipelines.health.standing`).
Without it, stages run until they are interrupted.

Documents and settings are read before anything starts, so that a mistake in a file costs no snapshot.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from bronze.errors import DefiniteError
from bronze.lsn import Lsn
from bronze.postgres.connection import connect, describe, translated
from bronze.progress import SnapshotView, snapshot_view
from bronze.store.relations import read_relations
from pipelines.health.standing import standing_still
from pipelines.terminal.failures import Terminated, tables_stopped
from pipelines.terminal.output import bytes_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bronze.lake.control import Cut, Run
    from bronze.lake.location import Layer
    from gold.language.model import Document
    from pipelines.settings import Pipeline
    from pipelines.terminal.output import Output

ALL_LAYERS: Final[tuple[Layer, ...]] = ("bronze", "silver", "gold")
_SAY_EVERY: Final = 5.0


def run_layers(
    pipeline: Pipeline, output: Output, *, layers: Sequence[Layer], until_caught_up: bool, command: str
) -> None:
    """Run stages of a pipeline until they are caught up, or for ever.

    Raises:
        SmeltError: what stopped it.
        Failure: caught up, but tables or documents stand still.
    """
    from pipelines.runtime.stages import stage_goal  # noqa: PLC0415
    from pipelines.runtime.supervisor import Supervisor  # noqa: PLC0415 - keeps the start of other commands quick

    documents = load_documents_of(pipeline) if "gold" in layers else []
    until = None
    if until_caught_up:
        until = head_of_source(pipeline) if "bronze" in layers else stage_goal(pipeline, layers[0])
        output.say(f"carrying {', '.join(layers)} past {until}")
    elif "bronze" not in layers:
        _say_if_it_waits(pipeline, layers[0], output)
    said = Progress(output)
    with (
        terminable(),
        Supervisor(
            pipeline,
            documents,
            command=command,
            layers=layers,
            until=until,
            observe=said.cut,
            progress=said.reader,
            announce=output.say,
        ) as supervisor,
    ):
        while not supervisor.wait(0.2):
            pass
    if until_caught_up:
        found = standing_still(
            pipeline.lake_address(), pipeline.silver, layers, [document.name for document in documents]
        )
        if found:
            raise tables_stopped(found.stopped, waiting=found.waiting)
        empty = "bronze" in layers and not read_relations(pipeline.lake_address())
        output.say("caught up" + (": there is no table to carry; `smelt check` says why" if empty else ""))


def _say_if_it_waits(pipeline: Pipeline, layer: Layer, output: Output) -> None:
    """A stage that is started before the one in front of it has brought anything waits for that."""
    from pipelines.runtime.stages import stage_goal  # noqa: PLC0415 - as above

    try:
        stage_goal(pipeline, layer)
    except DefiniteError as error:
        output.say(f"{error.message}; waiting for it")


def load_documents_of(pipeline: Pipeline) -> list[Document]:
    """The pipeline's document definitions.

    Raises:
        ConfigurationError: a file is wrong; file and line are named.
    """
    from gold.language.model import load_documents  # noqa: PLC0415 - only commands that build documents need it

    return list(load_documents(pipeline.document_files()))


def head_of_source(pipeline: Pipeline) -> Lsn:
    """The server's present WAL position.

    Raises:
        SmeltError: the server cannot be asked.
    """
    source = pipeline.source
    with connect(source) as connection, translated(source):
        row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
        if row is not None and row[0]:
            raise DefiniteError(
                "the server is a standby, which has no slot of ours",
                code="server-in-recovery",
                where=describe(source),
                remedy="give the primary's address",
            )
        found = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    return Lsn.parse(found[0]) if found else Lsn(0)


class Progress:
    """Says on standard error what happens: each cut in a line, the reader's snapshot now and then."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._last = 0.0
        self._said = ""

    def cut(self, cut: Cut, runs: list[Run]) -> None:
        """A layer has a new cut."""
        changes = sum(run.changes for run in runs)
        seconds = max((run.seconds for run in runs), default=0.0)
        if not changes and not any(run.mode == "full" for run in runs):
            return
        moved = sum(1 for run in runs if run.changes)
        noun = ("table" if cut.layer == "silver" else "document") + ("" if moved == 1 else "s")
        self._output.say(
            f"{time.strftime('%H:%M:%S')} {cut.layer:6} as of {cut.commit_lsn}: "
            f"{changes:,} changes in {moved} {noun}, {seconds:.1f} s"
        )
        for run in runs:
            if run.mode == "full" and run.reason:
                self._output.say(f"         {run.name}: built in full, because {run.reason}")

    def reader(self, event: dict[str, Any]) -> None:
        """The reader says how far it is; passed on at most every few seconds, and only what is new."""
        if time.monotonic() - self._last < _SAY_EVERY:
            return
        text = reader_text(event)
        if text and text != self._said:
            self._last, self._said = time.monotonic(), text
            self._output.say(f"{time.strftime('%H:%M:%S')} bronze {text}")


def reader_text(event: dict[str, Any]) -> str:
    """The reader's progress in a few words."""
    if event["phase"] == "waiting":
        return f"waits: {event['said']}"
    view = snapshot_view(event["snapshots"], time.time())
    changes = f"{event['changes']:,} changes so far" if event["changes"] else ""
    if event["copies_wait"]:
        return "; ".join(filter(None, (changes, event["copies_wait"])))
    if view is not None:
        return snapshot_text(view) if view.rows else ""
    return changes


def snapshot_text(view: SnapshotView) -> str:
    """How far the snapshots are, in a few words."""
    left = "" if view.seconds_left is None else f", about {seconds_text(view.seconds_left)} left"
    return (
        f"snapshot: {view.rows:,} rows, {bytes_text(view.bytes)}, {view.fraction:.0%}{left}; "
        f"{', '.join(view.tables)} to go"
    )


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that is closed, end the block in order, as Ctrl-C does.

    Only where signals may be handled; a SIGHUP that is ignored (`nohup`) stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        raise Terminated(signal.Signals(number))

    handled = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handled.append(signal.SIGHUP)
    before = {number: signal.signal(number, end) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
