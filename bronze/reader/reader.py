"""Read PostgreSQL's write-ahead log into bronze, from bronze's end on, until stopped.

Order of a start, safe to repeat after a kill at any step:

1. An unfit server is refused before anything is created (`bronze.checks.server`). The reader compares the
   server's identity with the lake's and refuses a lake of another pipeline, cluster or database. The reader
   also refuses a server whose log is not bronze's log (`bronze.stream.same_log`).
2. The first catalog poll creates the publication, before the slot (`bronze.reader.carried_tables`). An
   earlier slot would decode changes with a catalog without the publication.
3. Slot, first place and stream follow, in the order of `bronze.reader.session_start`.
4. A separate thread copies tables without a snapshot (`bronze.reader.copies`), in parallel with the stream.

A transient fault ends the session, not the reader: a new session starts at bronze's mark after a growing
pause. `control.errors` shows the fault until a session has committed (`bronze.reader.pipeline_errors`).
Uncommitted rows of a failed session are discarded. Definite errors are recorded and raised. `Reader` lists
all waits with their limits.

Threads of one reader::

    server ──WAL──▶ receiver ──queue──▶ session, decodes ──rows──▶ writer ──commit──▶ bronze.changes
       ◀──feedback──────┘ ◀─────────────confirm, once durable──────────┘
    server ──COPY─▶ workers of a snapshot ──files, one commit for each table────────▶ bronze.changes
       ◀──queries── copies (polls for tables), watch (catalog, slot)

PostgreSQL docs: https://www.postgresql.org/docs/current/logicaldecoding-explanation.html.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from deltasmelt.bronze.checks.ownership import require_own
from deltasmelt.bronze.checks.server import require_fit
from deltasmelt.bronze.errors import DefiniteError, SmeltError, TransientError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.failures import lake_failures
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.memory import use_one_arena
from deltasmelt.bronze.postgres.connection import abandon, connect, identify, translated, until_stopped
from deltasmelt.bronze.postgres.conversion import server_encoding
from deltasmelt.bronze.postgres.error_rules import REFUSALS, UNCONVERTIBLE
from deltasmelt.bronze.postgres.liveness import Liveness, walsender_liveness
from deltasmelt.bronze.progress import Growth, Progress
from deltasmelt.bronze.reader.copies import SnapshotThread
from deltasmelt.bronze.reader.pipeline_errors import PipelineErrors, RetryGate
from deltasmelt.bronze.reader.recovery import is_starting_over, start_over
from deltasmelt.bronze.reader.session_decoder import session_decoder
from deltasmelt.bronze.reader.session_start import SessionStart
from deltasmelt.bronze.store.landing import Landing
from deltasmelt.bronze.store.relations import ShapeLog
from deltasmelt.bronze.store.sink import DeltaSink
from deltasmelt.bronze.stream.encodings import ConvertingDecoder
from deltasmelt.bronze.stream.receiver import Nudge
from deltasmelt.bronze.stream.session import StreamSession

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import psycopg

    from deltasmelt.bronze.config.sections import BronzeSettings, SnapshotSettings, SourceSettings
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.snapshot.executors import ExecutorsAtHand
    from deltasmelt.bronze.store.position import Position
    from deltasmelt.bronze.stream.receiver import Receiver

_LOGGER = logging.getLogger("deltasmelt.reader")


class _StoppedError(Exception):
    """The reader must stop and gives up the current wait."""


class Reader:
    """The reader of one pipeline: writes the source's changes into `bronze.*`.

    Waits and their limits (`bronze.config.timing` has the seconds):

    * A transient fault (a stopped server, a lock): no limit. Until the server has admitted this reader once,
      the limit is some seconds: a fault then probably means a wrong address.
    * A refusal that a person must lift (a password, a privilege, no free walsender): no wait at a start; the
      error is reported at once. After a successful stream the refusal may pass, so the limit is some minutes.
      If only copies are refused while the stream runs: no limit.
    * Foreign transactions that must end first (for the slot's creation, for copies): no limit; the reader
      names the transactions.
    * After a stop: no wait. Queries of a start are cancelled.
    * With a target no wait is unlimited. A job with a target gives up after some minutes of failures without
      progress of stream or copies, with the last error. The job also gives up if copies are refused, or wait
      for transactions without interruption, for some minutes.

    Args:
        pipeline: name of the pipeline, recorded in the lake.
        lake: a lake with a path.
        executors: prepares the executors that copy large tables; None: the reader's own workers copy.
        progress: called periodically with the counters as plain values (`Progress.read`).
        reached: called at named points; fault tests kill the process at these points.
    """

    def __init__(
        self,
        pipeline: str,
        source: SourceSettings,
        lake: Lake,
        bronze: BronzeSettings,
        snapshot: SnapshotSettings,
        *,
        executors: ExecutorsAtHand | None = None,
        progress: Callable[[dict[str, Any]], None] | None = None,
        reached: Callable[[str], None] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._source = source
        self._timing = source.timing
        self._lake = lake
        self._bronze = bronze
        self._snapshot = snapshot
        self._executors = executors
        self._report_to = progress
        self._reached = reached or (lambda _: None)
        self._reported = 0.0
        application_name = f"deltasmelt {pipeline} {socket.gethostname()}:{os.getpid()}"[:63]
        self._begin = SessionStart(pipeline, source, lake, application_name, self._note, self._reached)
        self._landing: Landing | None = None
        self._copies: SnapshotThread | None = None
        self._undecodable: SmeltError | None = None
        self._connected_at = 0.0
        self._admitted = self._streamed = False
        self._gave_up = False
        self._control = ControlTables(lake)
        self._errors = PipelineErrors(lake, pipeline, self._control)
        self._retry_gate = RetryGate(self._errors, source.timing, stream=True)
        self._unconverted = self._converting = False
        self._refused_at = ZERO
        self._stop = threading.Event()
        self._growth = Growth()
        self.progress = Progress()

    def run(self, *, until: Lsn | None = None, stop: threading.Event | None = None) -> None:
        """Read until stopped, or until bronze holds everything up to an LSN.

        Args:
            until: return once every transaction with a commit LSN up to this LSN is in bronze, and the
                tables' snapshots are complete (or failed, see `control.errors`). None: run without end.
            stop: set this event for an orderly end: complete transactions are committed and confirmed.

        Raises:
            DefiniteError: a person is needed; recorded in `control.errors`.
            TransientError: the server was unreachable since the start; with `until` also after failures for
                some minutes without progress.
        """
        use_one_arena()
        stop = self._stop = stop or threading.Event()
        self._connected_at = time.monotonic()
        try:
            while not stop.is_set():
                try:
                    with translated(self._source), lake_failures(self._lake.path or "the lake"):
                        done = self._session(until, stop)
                    if done:
                        return
                except _StoppedError:
                    return
                except SmeltError as error:
                    if stop.is_set() and isinstance(error, TransientError):
                        return  # the stop cancelled the wait
                    if not self._heals(error) or self._gave_up:
                        raise
                    if until is not None and self._growth.stuck(self.progress.read()) > self._timing.failing:
                        raise
                    self._retry_gate.failed(error)
                    _LOGGER.warning("the stream is restarted: %s", error)
                    self.progress.set(phase="waiting", said=error.in_a_line())
                    self._report(now=True)
                    self._retry_gate.pause(stop)
        except SmeltError as error:
            self._retry_gate.failed(error)
            self.progress.set(said=error.in_a_line())
            raise
        finally:
            if self._copies is not None:
                self._copies.stop()
            self.progress.set(phase="stopped")
            self._report(now=True)

    def _heals(self, error: SmeltError) -> bool:
        """Check whether to start a new session after an error."""
        if error.code == UNCONVERTIBLE.code and not self._converting and self._landing is not None:
            self._unconverted, self._refused_at = True, ZERO
            return True
        if error.code == "publication-missing" and self._source.manage:
            self._undecodable = error
            return True
        since = time.monotonic() - self._connected_at
        if isinstance(error, TransientError):
            return self._admitted or since <= self._timing.first_contact
        # A server that has streamed to this reader may refuse a connection now: a password change, a role, a
        # certificate. The reader retries for a while, and reads passwords again for each connection.
        return error.code in REFUSALS and self._streamed and since <= self._timing.refused

    def _converts(self, position: Position) -> bool:
        """Check whether the new session must convert texts itself (`bronze.stream.encodings`).

        The session must convert after the server failed to convert a text, until bronze is past the
        transaction.
        """
        # Only a converting session learns the transaction's LSN; a session that ends earlier leaves the LSN
        # unknown.
        if ZERO < self._refused_at <= position.frontier:
            self._unconverted = False
        return self._unconverted

    def _start_over(self, error: SmeltError) -> None:
        """Resnapshot every table, because the publication was dropped and the log since then is undecodable.

        PostgreSQL decodes each change with the catalog of the change's time. A recreated publication does not
        help earlier changes; a slot created afterwards has none of these.
        """
        _LOGGER.warning("every table is resnapshotted: %s", error)
        self._note(f"every table is resnapshotted: {error.message}")
        if self._copies is not None:
            self._copies.stop()
        self._landing = self._copies = None
        start_over(
            self._source,
            self._lake,
            self._pipeline,
            anew=True,
            stop=self._stop,
            progress=self._note,
            reached=self._reached,
        )
        self._undecodable = None

    def _session(self, until: Lsn | None, stop: threading.Event) -> bool:
        """Run one connection's stream from start to end; return whether all requested work is done."""
        if self._undecodable is not None:
            self._start_over(self._undecodable)
        self.progress.set(phase="starting", said="")
        name = self._begin.application_name
        with connect(self._source, application_name=name) as connection, until_stopped(stop, connection):
            # A start that finds an unfinished restart continues the restart.
            if self._landing is None and self._source.manage and is_starting_over(self._lake):
                self._undecodable = DefiniteError(
                    "the publication was dropped, and the reader stopped before its restart with new "
                    "snapshots was complete",
                    code="publication-missing",
                )
                return False
            with translated(self._source):
                landing, copies, position = self._open(connection)
                rejoining = copies.tables.rejoining
                if rejoining:
                    landing.sink.tables.open_gaps(sorted(rejoining), position.frontier, beyond=True)
                self._converting = self._converts(position)
                encoding = server_encoding(connection) if self._converting else None
                receiver = self._begin.stream(
                    connection, landing.sink, position, encoding, partial(self._line, connection)
                )
            try:
                # The reader holds the slot alone now, and so the lake. The claim may take as long as a
                # listing of the lake; meanwhile the receiver sends feedback to the server.
                landing.sink.claim(position)
                tables = copies.tables
                tables.new_stream(position.confirm, rejoining)
                decoder = session_decoder(
                    connection, self._source, landing, tables, position=position, encoding=encoding
                )
                stream = StreamSession(
                    receiver, decoder, position, landing, self._bronze, request_tables=tables.request
                )
                try:
                    self.progress.connected(position.confirm)
                    self._streamed = True
                    copies.start()
                    self._connected_at = time.monotonic()
                    reached = self._follow(stream, receiver, copies, until=until, stop=stop)
                    stream.finish()
                    if stream.durable.frontier > position.frontier:
                        self._retry_gate.worked()
                finally:
                    self._connected_at = time.monotonic()
                    if isinstance(decoder, ConvertingDecoder):
                        self._refused_at = max(self._refused_at, decoder.refused_at)
                    stream.close()
            finally:
                receiver.stop()
        return reached

    def _open(self, connection: psycopg.Connection[Any]) -> tuple[Landing, SnapshotThread, Position]:
        """Check the server, the lake's owner and the lake's end; poll the catalog on the first call."""
        require_fit(connection, self._source, log_findings=not self._admitted)
        # Check at each session: after a failover another server may answer at the same address.
        require_own(connection, self._source, self._lake, self._pipeline, again=self._admitted)
        sink = DeltaSink(self._lake, self._pipeline, identify(connection))
        self._errors.of_this_pipeline = True
        if self._landing is not None and self._landing.sink.is_claimed:
            sink = self._landing.sink
        else:
            self._landing = self._copies = None  # an earlier reader may have advanced meanwhile
        self._admitted |= (
            sink.position is not None
        )  # a comparison of logs may take longer than a first contact
        position = self._begin.known_place(connection, sink)
        if self._landing is None or self._copies is None:
            shapes = ShapeLog(sink.relations(), sink.add_relations)
            landing = Landing(
                sink, shapes, self.progress, self._reached, resnapshots=self._snapshot.mode != "never"
            )
            copies = SnapshotThread(
                self._source,
                self._snapshot,
                landing,
                self._control,
                self._errors,
                executors=self._executors,
            )
            copies.first_poll(self._stop)
            self._landing, self._copies, self._admitted = landing, copies, True
        if position is None:
            position = self._begin.first_place(connection, sink)
        return self._landing, self._copies, position

    def _line(self, connection: psycopg.Connection[Any], backend_pid: int) -> Liveness:
        """Return the walsender's state, on the receiver's thread; abort a decoder's query on a dead line."""
        liveness = walsender_liveness(self._source, backend_pid)
        if liveness is Liveness.OVER:
            abandon(connection)
        return liveness

    def _follow(
        self,
        stream: StreamSession,
        receiver: Receiver,
        copies: SnapshotThread,
        *,
        until: Lsn | None,
        stop: threading.Event,
    ) -> bool:
        """Step until stopped or done; return whether the target was reached. False requests a new session."""
        nudge, tables = Nudge(self._source, receiver), copies.tables
        start, works = stream.durable.frontier, False
        while not stop.is_set():
            copies.raise_failure()
            if not works and stream.durable.frontier > start:
                works = True
                self._retry_gate.worked()
            if tables.wants_new_stream:
                return False
            complete = copies.complete  # read before `lsn`: the last snapshot sets `lsn` first
            shapes_at = tables.newest.shapes_at
            target = None if until is None else max(until, copies.lsn, shapes_at)
            is_reached = target is not None and complete and stream.durable.frontier >= target
            if until is not None:
                self._give_up_copies(copies)
            if is_reached:
                self._retry_gate.worked()
                return True
            restart_at, ahead = tables.wants_stream_from, stream.durable.frontier < shapes_at
            if restart_at is not None and stream.durable.frontier >= restart_at:
                return False
            # After a failure, request something to commit from the server, because an idle server sends
            # nothing.
            proof = Lsn(start + 1) if self._retry_gate.is_open() else None
            goals = [target, restart_at, shapes_at if ahead else None, proof]
            target = max((goal for goal in goals if goal is not None), default=None)
            patience = self._timing.report if target is None else nudge.patience
            received = stream.step(target=target, patience=patience)
            if target is not None and not received and stream.newest.frontier < target:
                nudge.push()
            self._report()
        return True

    def _give_up_copies(self, copies: SnapshotThread) -> None:
        """Raise the error of copies refused or held up for too long; called for jobs with a target."""
        for failure in (copies.retry_gate.refused(), copies.held_up):
            if failure is not None and failure[1] > self._timing.refused:
                self._gave_up = True
                raise failure[0]

    def _note(self, message: str) -> None:
        """Report the current wait; give up the wait if the reader must stop."""
        if self._stop.is_set():
            raise _StoppedError
        _LOGGER.info("%s", message)
        self.progress.set(said=message)
        self._report(now=True)

    def _report(self, *, now: bool = False) -> None:
        if self._report_to is not None and (now or time.monotonic() - self._reported >= self._timing.report):
            self._reported = time.monotonic()
            self._report_to(self.progress.report())
