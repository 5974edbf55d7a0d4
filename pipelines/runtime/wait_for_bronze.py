"""Waiting until bronze reaches an LSN, with any reader.

A running reader reaches the LSN by itself, at the latest with its next heartbeat. Without a running reader,
this process is the reader until then.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.figures import clock_text
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

_POLL_SECONDS: Final = 0.2
_REPORT_SECONDS: Final = 10.0


def reach(pipeline: Pipeline, lsn: Lsn, output: Output, command: str, stop: threading.Event) -> None:
    """Wait until bronze holds every transaction up to an LSN, or until `stop`, which also ends an own reader.

    Raises:
        SmeltError: the error of this process's own reader.
    """
    reported_at, pushed, watch = time.monotonic(), False, PositionWatch(pipeline.lake_address())
    while ((frontier := _frontier(watch)) is None or frontier < lsn) and not stop.is_set():
        if not reader_runs(pipeline) and read_until(pipeline, lsn, output, command, stop):
            continue
        if not pushed:
            pushed = True
            # A message in the log makes the reader commit at once.
            _push(pipeline)
        if time.monotonic() - reported_at > _REPORT_SECONDS:
            reported_at = time.monotonic()
            output.report(f"{clock_text()} the running reader is at {frontier}, waiting for {lsn}")
        stop.wait(_POLL_SECONDS)


def read_until(
    pipeline: Pipeline, lsn: Lsn, output: Output, command: str, stop: threading.Event | None = None
) -> bool:
    """Be the reader until bronze is caught up, or until `stop`; return False if another process was first.

    Raises:
        SmeltError: the error of the reader.
    """
    try:
        with Supervisor(
            pipeline,
            [],
            command=command,
            layers=("bronze",),
            until=lsn,
            progress=ProgressReporter(output).reader,
            announce=output.report,
        ) as supervisor:
            while not supervisor.wait(_POLL_SECONDS) and not (stop and stop.is_set()):
                pass
    except DefiniteError as error:
        if error.code != "already-running":
            raise
        return False
    return True


def reader_runs(pipeline: Pipeline) -> bool:
    """Check whether a process reads the slot; a reader between two connections holds the lake's lock."""
    source = pipeline.source
    with connect(source) as connection, translated(source):
        slot = read_slot(connection, source.slot)
    return slot is not None and slot.active_pid is not None


def _frontier(watch: PositionWatch) -> Lsn | None:
    position = watch.read()
    return None if position is None else position.frontier


def _push(pipeline: Pipeline) -> None:
    """Write a message of deltasmelt to the log; nothing stays at the server."""
    with connect(pipeline.source) as connection, translated(pipeline.source):
        write_heartbeat(connection, "verify")
