"""The reader: PostgreSQL's write-ahead log into bronze, from where bronze ends, for as long as it is wanted.

Order of a start, and why each step is safe to die after:

1. A server that cannot serve is refused before anything is made (`bronze.checks.server`). Its identity is
   compared with the lake's; a lake of another pipeline, cluster or database is refused. So is a server whose
   log is not the one that bronze followed (`bronze.stream.same_log`).
2. The publication is made before the slot, by the first look (`bronze.reader.carried_tables`). A slot that
   began earlier would decode changes with a catalog that has no such publication.
3. Slot, first place and stream follow, in an order of their own (`bronze.reader.session_start`).
4. Tables without a snapshot are copied on a thread of their own (`bronze.reader.copies`) while the stream
   goes on.

Faults that heal end the session, not the reader: it starts again at bronze's mark, after a growing pause.
`control.errors` shows what it waits for, until a session has made a commit (`bronze.reader.trouble`). A
session after a failure asks the server for something to commit: an idle server has nothing. What a failed
session has not committed is given up. Definite errors are recorded and raised. `Reader` says what is waited
for, and for how long.

Threads of one reader::

    server ──WAL──▶ receiver ──queue──▶ session, decodes ──rows──▶ writer ──commit──▶ bronze.changes
       ◀──feedback──────┘ ◀─────────────confirm, once durable──────────┘
    server ──COPY─▶ workers of a snapshot ──files, one commit for each table────────▶ bronze.changes
       ◀──queries── copies (looks for tables), watch (catalog, slot)

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
from deltasmelt.bronze.postgres.connection import abandon, connect, identify, translated, until_stopped
from deltasmelt.bronze.postgres.conversion import server_encoding
from deltasmelt.bronze.postgres.error_rules import REFUSALS, UNCONVERTIBLE
from deltasmelt.bronze.postgres.liveness import Liveness, walsender_liveness
from deltasmelt.bronze.progress import Growth, Progress
from deltasmelt.bronze.reader.copies import SnapshotThread
from deltasmelt.bronze.reader.recovery import is_starting_over, start_over
from deltasmelt.bronze.reader.session_decoder import session_decoder
from deltasmelt.bronze.reader.session_start import SessionStart
from deltasmelt.bronze.reader.trouble import PipelineErrors, Trouble
from deltasmelt.bronze.store.landing import Landing
from deltasmelt.bronze.store.relations import ShapeLog
from deltasmelt.bronze.store.sink import DeltaSink
from deltasmelt.bronze.stream.encodings import ConvertingDecoder
from deltasmelt.bronze.stream.memory import configure_allocators
from deltasmelt.bronze.stream.receiver import Nudge
from deltasmelt.bronze.stream.session import Stream

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
    """The reader is to stop, and what it waits for is given up."""


class Reader:
    """Carries one pipeline's changes into `bronze.*`.

    What is waited for, and for how long (`bronze.config.timing` has the seconds):

    * A fault that heals by itself (a server that is down, a lock): for ever. Until the server has let
      this reader in once, only for some seconds: then it is most likely a wrong address.
    * A refusal that a person must lift (a password, a privilege, no free walsender): not at a start, where it
      is told at once. To a reader that has streamed it may pass, so it is waited for some minutes; while the
      stream goes on and only copies are refused, for ever.
    * Transactions of others that must end first (the making of the slot, copies): for ever, and they are
      named.
    * Whoever is told to stop waits for nothing: what the server is asked at a start is cancelled then.
    * With a target, nothing for ever: a job that must end gives up when neither stream nor copies got on for
      some minutes of failures, with the error of the last one. It does so, too, when copies are refused, or
      wait for one and the same thing, for as long.

    Args:
        pipeline: its name; the lake remembers it.
        source: server, slot, publication, tables.
        lake: a lake with a path.
        bronze: pace of commits.
        snapshot: how tables are copied.
        executors: makes those ready that copy large tables; None: the reader's own workers do.
        progress: called now and then with the counters as plain values (`Progress.read`).
        reached: called at named points of the way; fault tests kill the process there.
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
        self._begin = SessionStart(pipeline, source, lake, application_name, self._say, self._reached)
        self._landing: Landing | None = None
        self._copies: SnapshotThread | None = None
        self._undecodable: SmeltError | None = None
        self._met = 0.0
        self._let_in = self._streamed = False
        self._gave_up = False
        self._control = ControlTables(lake)
        self._errors = PipelineErrors(lake, pipeline, self._control)
        self._trouble = Trouble(self._errors, source.timing, stream=True)
        self._unconverted = self._converting = False
        self._refused_at = ZERO
        self._stop = threading.Event()
        self._growth = Growth()
        self.progress = Progress()

    def run(self, *, until: Lsn | None = None, stop: threading.Event | None = None) -> None:
        """Read until told to stop, or until bronze holds everything up to an LSN.

        Args:
            until: return once every transaction with a commit LSN up to this one is in bronze and the tables'
                snapshots are complete (or failed, see `control.errors`). None: go on for ever.
            stop: set it to end in order: what is complete is committed and confirmed.

        Raises:
            DefiniteError: a person is needed; recorded in `control.errors`.
            TransientError: the server could not be reached at all since the start.
        """
        configure_allocators()
        stop = self._stop = stop or threading.Event()
        self._met = time.monotonic()
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
                        return  # what was waited for was given up
                    if not self._heals(error) or self._gave_up:
                        raise
                    if until is not None and self._growth.stuck(self.progress.read()) > self._timing.failing:
                        raise
                    self._trouble.failed(error)
                    _LOGGER.warning("the stream is started again: %s", error)
                    self.progress.set(phase="waiting", said=error.in_a_line())
                    self._report(now=True)
                    self._trouble.pause(stop)
        except SmeltError as error:
            self._trouble.failed(error)
            self.progress.set(said=error.in_a_line())
            raise
        finally:
            if self._copies is not None:
                self._copies.stop()
            self.progress.set(phase="stopped")
            self._report(now=True)

    def _heals(self, error: SmeltError) -> bool:
        """Whether to start again after an error.

        A server that gave us a stream before may refuse us now: a password that is being changed, a role, a
        certificate. It is asked again for a while; passwords are read again for each connection.
        """
        if error.code == UNCONVERTIBLE.code and not self._converting and self._landing is not None:
            self._unconverted, self._refused_at = True, ZERO
            return True
        if error.code == "publication-missing" and self._source.manage:
            self._undecodable = error
            return True
        since = time.monotonic() - self._met
        if isinstance(error, TransientError):
            return self._let_in or since <= self._timing.first_contact
        return error.code in REFUSALS and self._streamed and since <= self._timing.refused

    def _converts(self, position: Position) -> bool:
        """Whether the session that begins here converts texts itself (`bronze.stream.encodings`).

        So after the server met one that it cannot convert, until bronze is past the transaction. Which that
        is, a session that converts has seen; one that ends before it has, leaves it open.
        """
        if ZERO < self._refused_at <= position.frontier:
            self._unconverted = False
        return self._unconverted

    def _start_over(self, error: SmeltError) -> None:
        """The publication was dropped: the log since then cannot be decoded, so every table is resnapshotted.

        PostgreSQL decodes each change with the catalog of its time; making the publication again does not
        help changes from before. A slot that is made after it has none of them. A start that finds this
        begun and not done goes on with it (`is_starting_over`).
        """
        _LOGGER.warning("every table is resnapshotted: %s", error)
        self._say(f"every table is resnapshotted: {error.message}")
        if self._copies is not None:
            self._copies.stop()
        self._landing = self._copies = None
        start_over(
            self._source,
            self._lake,
            self._pipeline,
            anew=True,
            stop=self._stop,
            progress=self._say,
            reached=self._reached,
        )
        self._undecodable = None

    def _session(self, until: Lsn | None, stop: threading.Event) -> bool:
        """One connection's stream, from its start to its end; whether all that was wanted is done."""
        if self._undecodable is not None:
            self._start_over(self._undecodable)
        self.progress.set(phase="starting", said="")
        name = self._begin.application_name
        with connect(self._source, application_name=name) as connection, until_stopped(stop, connection):
            if self._landing is None and self._source.manage and is_starting_over(self._lake):
                self._undecodable = DefiniteError(
                    "the publication was dropped, and the reader was stopped before it had started over",
                    code="publication-missing",
                )
                return False
            with translated(self._source):
                landing, copies, position = self._open(connection)
                again = copies.tables.rejoining
                if again:
                    landing.sink.tables.open_gaps(sorted(again), position.frontier, beyond=True)
                self._converting = self._converts(position)
                encoding = server_encoding(connection) if self._converting else None
                receiver = self._begin.stream(
                    connection, landing.sink, position, encoding, partial(self._line, connection)
                )
            try:
                # The slot is ours and nobody else's now, so the lake is.
                landing.sink.claim(position)
                tables = copies.tables
                tables.new_stream(position.confirm, again)
                decoder = session_decoder(
                    connection, self._source, landing, tables, position=position, encoding=encoding
                )
                stream = Stream(receiver, decoder, position, landing, self._bronze, ask=tables.ask)
                try:
                    self.progress.connected(position.confirm)
                    self._streamed = True
                    copies.start()
                    self._met = time.monotonic()
                    done = self._follow(stream, receiver, copies, until=until, stop=stop)
                    stream.finish()
                    if stream.durable.frontier > position.frontier:
                        self._trouble.worked()
                finally:
                    self._met = time.monotonic()
                    if isinstance(decoder, ConvertingDecoder):
                        self._refused_at = max(self._refused_at, decoder.refused_at)
                    stream.close()
            finally:
                receiver.stop()
        return done

    def _open(self, connection: psycopg.Connection[Any]) -> tuple[Landing, SnapshotThread, Position]:
        """Check what the server is, whose the lake is and where it ends; select tables at the first time."""
        require_fit(connection, self._source, say=not self._let_in)
        # Each time, for another server may answer at the same address after a failover.
        require_own(connection, self._source, self._lake, self._pipeline, again=self._let_in)
        sink = DeltaSink(self._lake, self._pipeline, identify(connection))
        self._errors.of_this_pipeline = True
        if self._landing is not None and self._landing.sink.is_claimed:
            sink = self._landing.sink
        else:
            self._landing = self._copies = None  # an earlier reader may have come further meanwhile
        self._let_in |= sink.position is not None  # a comparison of logs may take longer than a first contact
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
            copies.first_look(self._stop)
            self._landing, self._copies, self._let_in = landing, copies, True
        if position is None:
            position = self._begin.first_place(connection, sink)
        return self._landing, self._copies, position

    def _line(self, connection: psycopg.Connection[Any], backend_pid: int) -> Liveness:
        """Told to the receiver's thread; a query of the decoder that shares the fate of the line is ended."""
        found = walsender_liveness(self._source, backend_pid)
        if found is Liveness.OVER:
            abandon(connection)
        return found

    def _follow(
        self,
        stream: Stream,
        receiver: Receiver,
        copies: SnapshotThread,
        *,
        until: Lsn | None,
        stop: threading.Event,
    ) -> bool:
        """Step until stopped or done; whether the target was reached. Not done: a new session is wanted."""
        nudge, tables = Nudge(self._source, receiver), copies.tables
        begun, works = stream.durable.frontier, False
        while not stop.is_set():
            copies.raise_failure()
            if not works and stream.durable.frontier > begun:
                works = True
                self._trouble.worked()
            if tables.wants_new_stream:
                return False
            complete = copies.complete  # before `lsn`: a snapshot that completes them has set that
            shapes_at = tables.newest.shapes_at
            target = None if until is None else max(until, copies.lsn, shapes_at)
            done = target is not None and complete and stream.durable.frontier >= target
            if until is not None:
                self._give_up_copies(copies)
            if done:
                self._trouble.worked()
                return True
            wanted, ahead = tables.wants_stream_from, stream.durable.frontier < shapes_at
            if wanted is not None and stream.durable.frontier >= wanted:
                return False
            proof = Lsn(begun + 1) if self._trouble.is_open() else None
            goals = [target, wanted, shapes_at if ahead else None, proof]
            target = max((goal for goal in goals if goal is not None), default=None)
            patience = self._timing.report if target is None else nudge.patience
            came = stream.step(target=target, patience=patience)
            if target is not None and not came and stream.newest.frontier < target:
                nudge.push()
            self._report()
        return True

    def _give_up_copies(self, copies: SnapshotThread) -> None:
        """A job that must end does not wait for ever for copies that are refused, or held up by others."""
        for found in (copies.trouble.refused(), copies.held_up):
            if found is not None and found[1] > self._timing.refused:
                self._gave_up = True
                raise found[0]

    def _say(self, said: str) -> None:
        """Tell what is waited for; nothing is, once this is to stop."""
        if self._stop.is_set():
            raise _StoppedError
        _LOGGER.info("%s", said)
        self.progress.set(said=said)
        self._report(now=True)

    def _report(self, *, now: bool = False) -> None:
        if self._report_to is not None and (now or time.monotonic() - self._reported >= self._timing.report):
            self._reported = time.monotonic()
            self._report_to(self.progress.report())
