"""Having bronze reach an LSN, whoever its reader is.

A running reader gets there by itself, at the latest with its next heartbeat. A message in the log lets it
commit at once. Where none runs, this process is the reader until then.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.postgres.connection import connect, translated
from deltasmelt.bronze.postgres.heartbeat import write_heartbeat
from deltasmelt.bronze.setup.slot import read_slot
from deltasmelt.bronze.store.position import PositionWatch
from deltasmelt.pipelines.runtime.progress_text import ProgressReporter
from deltasmelt.pipelines.runtime.supervisor import Supervisor

if TYPE_CHECKING:
    import threading

    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.terminal.output import Output

_LOOK_SECONDS: Final = 0.2
_SAY_SECONDS: Final = 10.0


def reach(pipeline: Pipeline, lsn: Lsn, output: Output, command: str, stop: threading.Event) -> None:
    """Return when bronze holds every transaction up to an LSN, or it is no longer wanted.

    Args:
        pipeline: the pipeline.
        lsn: where the source is.
        output: takes progress.
        command: who we are, for the lake's lock.
        stop: set where it is no longer wanted; a reader of ours then ends.

    Raises:
        SmeltError: what stops the reader, where this process is it.
    """
    said, pushed, watch = time.monotonic(), False, PositionWatch(pipeline.lake_address())
    while ((frontier := _frontier(watch)) is None or frontier < lsn) and not stop.is_set():
        if not reader_runs(pipeline) and read_until(pipeline, lsn, output, command, stop):
            continue
        if not pushed:
            pushed = True
            _push(pipeline)
        if time.monotonic() - said > _SAY_SECONDS:
            said = time.monotonic()
            output.say(f"{time.strftime('%H:%M:%S')} the running reader is at {frontier}, wanted is {lsn}")
        stop.wait(_LOOK_SECONDS)


def read_until(
    pipeline: Pipeline, lsn: Lsn, output: Output, command: str, stop: threading.Event | None = None
) -> bool:
    """Be the reader until bronze is caught up, or `stop` is set; False where another process was first.

    Raises:
        SmeltError: what stopped it.
    """
    try:
        with Supervisor(
            pipeline,
            [],
            command=command,
            layers=("bronze",),
            until=lsn,
            progress=ProgressReporter(output).reader,
            announce=output.say,
        ) as supervisor:
            while not supervisor.wait(_LOOK_SECONDS) and not (stop and stop.is_set()):
                pass
    except DefiniteError as error:
        if error.code != "already-running":
            raise
        return False
    return True


def reader_runs(pipeline: Pipeline) -> bool:
    """Whether somebody reads the slot; a reader that is between two connections holds the lake's lock."""
    source = pipeline.source
    with connect(source) as connection, translated(source):
        slot = read_slot(connection, source.slot)
    return slot is not None and slot.active_pid is not None


def _frontier(watch: PositionWatch) -> Lsn | None:
    position = watch.read()
    return None if position is None else position.frontier


def _push(pipeline: Pipeline) -> None:
    """A message of our own in the log; it leaves nothing at the server."""
    with connect(pipeline.source) as connection, translated(pipeline.source):
        write_heartbeat(connection, "verify")
