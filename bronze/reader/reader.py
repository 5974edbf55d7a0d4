"""The reader: PostgreSQL's write-ahead log into bronze, from where bronze ends, for as long as it is wanted.

Order of a start, and why each step is safe to die after:

1. A server that cannot serve is refused before anything is made (`bronze.checks.server`). Its identity is
    compared with the lake's; a lake of another pipeline, cluster or database is refused.
2. The publication is made before the slot: a slot that began earlier would decode changes with a catalog that
    has no such
   publication.
3. The slot is made only where bronze has no place yet; its first point P becomes bronze's first place (P - 1,
    P). Dying in between
   leaves a slot at P and no place, and the next start takes the slot's point again: nothing was confirmed in
   between.
4. The stream is started at bronze's own mark, never at the slot's. Then the slot is read again, while nobody
    else can move it, and
   compared (`bronze.stream.continuity`).
5. Tables without a snapshot are copied on a thread of their own (`bronze.reader.copies`) while the stream
    goes on.

Faults that heal end the session, not the reader: it starts again at bronze's mark, after a growing pause, and
`control.errors` shows what it waits for. Nothing of a failed session is kept but what was committed. Definite
errors are recorded and raised.

What is waited for, and for how long:

* A fault that heals by itself (a server that is down, a lock): for ever. Before the first contact only for
  some seconds: there it is most likely a wrong address.
* A refusal that a person must lift (a password, a privilege, no free walsender): not at a start, where it is
  told at once. To a reader that has streamed it may pass, so it is waited for some minutes; while the stream
  goes on and only copies are refused, for ever.
* Transactions of others that must end first (the making of the slot, copies): for ever, and they are named.
* Whoever is told to stop waits for nothing: what the server is asked at a start is cancelled then.
* With a target, nothing for ever: a job that must end gives up when neither stream nor copies got on for some
  minutes of failures, with the error of the last one; when copies are refused, or wait for one and the same
  thing, for as long.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from bronze.backoff import Backoff
from bronze.catalog.select import describe_relation
from bronze.checks.server import require_fit
from bronze.errors import SmeltError, TransientError
from bronze.lake.control_tables import ControlTables
from bronze.lake.delta import location
from bronze.lake.failures import lake_failures
from bronze.lsn import ZERO, Lsn
from bronze.pgoutput.decoder import HEARTBEAT_PREFIX, StreamDecoder
from bronze.postgres.connection import (
    abandon,
    connect,
    describe,
    identify,
    log_end,
    translated,
    until_stopped,
)
from bronze.postgres.conversion import server_encoding, to_utf8
from bronze.postgres.error_rules import REFUSALS, UNCONVERTIBLE
from bronze.postgres.liveness import walsender_is_idle
from bronze.progress import Growth, Progress
from bronze.reader.copies import InitialCopies
from bronze.reader.copy_trouble import CopyTrouble, record
from bronze.reader.recovery import start_over
from bronze.setup.create_slot import ensure_slot
from bronze.setup.slot import read_slot
from bronze.store.contract import CHANGES
from bronze.store.landing import Landing
from bronze.store.position import Position
from bronze.store.relations import ShapeLog
from bronze.store.sink import DeltaSink
from bronze.stream.continuity import check_start, slot_gone
from bronze.stream.encodings import ConvertingDecoder
from bronze.stream.memory import settle
from bronze.stream.receiver import FEEDBACK_SECONDS, SILENCE_SECONDS, Receiver
from bronze.stream.replication import ReplicationStream
from bronze.stream.session import Stream
from bronze.stream.timeline import follow_timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    import psycopg

    from bronze.config.sections import BronzeSettings, SnapshotSettings, SourceSettings
    from bronze.identifiers import TableName
    from bronze.lake.location import Lake
    from bronze.shapes import Relation

_QUEUE_BYTES: Final = 8 * 1024 * 1024
_REPORT_SECONDS: Final = 0.5
_ASK_SECONDS: Final = 0.1
_FIRST_CONTACT_SECONDS: Final = 20.0
_REFUSED_SECONDS: Final = 600.0
"""How long a server that let us in before may refuse us; also how long the copies of a run with a target may
be refused, or wait for transactions of others."""

_FAILING_SECONDS: Final = 600.0
"""How long a run with a target may fail again and again without getting on."""

_SILENCE_SECONDS: Final = SILENCE_SECONDS
_LAST_WORDS_SECONDS: Final = 5.0
_SLOT_PATIENCE_SECONDS: Final = 15.0
"""How long a walsender of a reader that was killed may hold the slot."""

_LOGGER = logging.getLogger("deltasmelt.reader")


class _StoppedError(Exception):
    """The reader is to stop, and what it waits for is given up."""


class Reader:
    """Carries one pipeline's changes into `bronze.*`.

    Args:
        pipeline: its name; the lake remembers it.
        source: server, slot, publication, tables.
        lake: a lake with a path.
        bronze: pace of commits.
        snapshot: first copies.
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
        progress: Callable[[dict[str, Any]], None] | None = None,
        reached: Callable[[str], None] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._source = source
        self._lake = lake
        self._bronze = bronze
        self._snapshot = snapshot
        self._report_to = progress
        self._reached = reached or (lambda _: None)
        self._reported = 0.0
        self._application_name = f"deltasmelt {pipeline} {socket.gethostname()}:{os.getpid()}"[:63]
        self._landing: Landing | None = None
        self._copies: InitialCopies | None = None
        self._undecodable: SmeltError | None = None
        self._met = 0.0
        self._streamed = False
        self._gave_up = False
        self._trouble = CopyTrouble(ControlTables(lake), pipeline)
        self._unconverted = self._converting = False
        self._refused_at = ZERO
        self._stop = threading.Event()
        self._growth = Growth()
        self._failing_since: float | None = None
        self.progress = Progress()

    def run(self, *, until: Lsn | None = None, stop: threading.Event | None = None) -> None:
        """Read until told to stop, or until bronze holds everything up to an LSN.

        Args:
            until: return once every transaction with a commit LSN up to this one is in bronze and the tables'
                first copies are complete (or failed, see `control.errors`). None: go on for ever.
            stop: set it to end in order: what is complete is committed and confirmed.

        Raises:
            DefiniteError: a person is needed; recorded in `control.errors`.
            TransientError: the server could not be reached at all since the start.
        """
        settle()
        stop = self._stop = stop or threading.Event()
        control = ControlTables(self._lake)
        backoff = Backoff()
        self._met = time.monotonic()
        try:
            while not stop.is_set():
                try:
                    with translated(self._source), lake_failures(self._lake.path or "the lake"):
                        done = self._session(until, stop, control, backoff)
                    if done:
                        return
                except _StoppedError:
                    return
                except SmeltError as error:
                    if stop.is_set() and isinstance(error, TransientError):
                        return  # what was waited for was given up
                    if not self._heals(error) or self._gave_up:
                        raise
                    if until is not None and self._fails_for_long():
                        raise
                    record(control, self._pipeline, error)
                    _LOGGER.warning("the stream is started again: %s", error)
                    self.progress.set(phase="waiting", said=error.in_a_line())
                    self._report(now=True)
                    backoff.pause(stop)
        except SmeltError as error:
            record(control, self._pipeline, error)
            self.progress.set(said=error.in_a_line())
            raise
        finally:
            if self._copies is not None:
                self._copies.stop()
            self.progress.set(phase="stopped")
            self._report(now=True)

    def _heals(self, error: SmeltError) -> bool:
        """Whether to start again after an error.

        A server that gave us a stream before and now refuses us (a password that is being changed, a role, a
        certificate) is asked again for a while: passwords are read anew for each connection.
        """
        if error.code == UNCONVERTIBLE.code and not self._converting and self._landing is not None:
            self._unconverted, self._refused_at = True, ZERO
            return True
        if error.code == "publication-missing" and self._source.manage:
            self._undecodable = error
            return True
        since = time.monotonic() - self._met
        if isinstance(error, TransientError):
            return self._landing is not None or since <= _FIRST_CONTACT_SECONDS
        return error.code in REFUSALS and self._streamed and since <= _REFUSED_SECONDS

    def _converts(self, position: Position) -> bool:
        """Whether the session that begins here converts texts itself (`bronze.stream.encodings`).

        So after the server met one that it cannot convert, until bronze is past the transaction. Which that
        is, a session that converts has seen; one that ends before it has, leaves it open.
        """
        if ZERO < self._refused_at <= position.frontier:
            self._unconverted = False
        return self._unconverted

    def _fails_for_long(self) -> bool:
        """Whether nothing got on since the first of the failures that follow each other."""
        counters = self.progress.read()
        grown = [self._growth.streamed(counters), self._growth.copied(counters)]
        if any(grown) or self._failing_since is None:
            self._failing_since = time.monotonic()
        return time.monotonic() - self._failing_since > _FAILING_SECONDS

    def _start_over(self, error: SmeltError) -> None:
        """The publication was dropped: the log since then cannot be decoded, so every table is taken again.

        PostgreSQL decodes each change with the catalog of its time; making the publication again does not
        help changes from before. A slot that is made after it has none of them.
        """
        _LOGGER.warning("every table is taken again: %s", error)
        self._say(f"every table is taken again: {error.message}")
        if self._copies is not None:
            self._copies.stop()
        self._landing = self._copies = None
        start_over(
            self._source, self._lake, self._pipeline, anew=True, progress=self._say, reached=self._reached
        )
        self._undecodable = None

    def _session(
        self, until: Lsn | None, stop: threading.Event, control: ControlTables, backoff: Backoff
    ) -> bool:
        """One connection's stream, from its start to its end; whether all that was wanted is done."""
        if self._undecodable is not None:
            self._start_over(self._undecodable)
        self.progress.set(phase="starting", said="")
        with connect(self._source, application_name=self._application_name) as connection:
            with translated(self._source), until_stopped(stop, connection):
                landing, copies = self._open(connection, control)
                position = self._place(connection, landing)
                self._converting = self._converts(position)
                encoding = server_encoding(connection) if self._converting else None
                feedback_seconds = _feedback_seconds(connection)
                replication = self._start_stream(connection, landing, position, encoding)
            # From here on nothing may fail until the receiver, who closes it, has begun.
            receiver = Receiver(
                replication,
                capacity=_QUEUE_BYTES,
                durable=position.confirm,
                feedback_seconds=feedback_seconds,
                silence_seconds=_SILENCE_SECONDS,
                line_is_dead=lambda: self._line_is_dead(connection, replication.backend_pid),
            )
            copies.new_stream(position.confirm)
            decoder = self._decoder(connection, landing, copies, position, encoding)
            receiver.start()
            stream = Stream(receiver, decoder, position, landing, self._bronze, ask=copies.ask)
            try:
                self.progress.connected(position.confirm)
                control.close_errors("pipeline", self._pipeline)
                self._streamed = True
                copies.start()
                backoff.reset()
                self._met = time.monotonic()
                done = self._follow(stream, receiver, copies, until=until, stop=stop)
                stream.finish()
            finally:
                self._met = time.monotonic()
                if isinstance(decoder, ConvertingDecoder):
                    self._refused_at = max(self._refused_at, decoder.refused_at)
                try:
                    stream.close()
                finally:
                    receiver.stop()
        return done

    def _open(
        self, connection: psycopg.Connection[Any], control: ControlTables
    ) -> tuple[Landing, InitialCopies]:
        """Check what the server is and whose the lake is; select tables at the first time."""
        require_fit(connection, self._source, say=self._landing is None)
        identity = identify(connection)
        if self._landing is None or self._copies is None:
            sink = DeltaSink(self._lake, self._pipeline, identity)
            shapes = ShapeLog(sink.relations(), sink.add_relations)
            landing = Landing(
                sink, shapes, self.progress, self._reached, resnapshots=self._snapshot.mode != "never"
            )
            copies = InitialCopies(self._source, self._snapshot, landing, control, self._trouble)
            copies.first_look(self._stop)
            self._landing, self._copies = landing, copies
        else:
            # Another server may answer at the same address after a failover.
            DeltaSink(self._lake, self._pipeline, identity)
        return self._landing, self._copies

    def _place(self, connection: psycopg.Connection[Any], landing: Landing) -> Position:
        """Bronze's place in the stream; for an empty bronze the slot's first point, made durable at once."""
        landing.sink.discard()  # of a session that failed before it had a stream
        position = landing.sink.position
        if position is not None and read_slot(connection, self._source.slot) is None:
            raise slot_gone(position, name=self._source.slot, where=describe(self._source))
        slot = ensure_slot(
            connection,
            self._source,
            patience=_SLOT_PATIENCE_SECONDS,
            ours=f"deltasmelt {self._pipeline} ",
            progress=self._say,
        )
        self._reached("slot-ready")
        if position is None:
            first = Position(Lsn(slot.confirmed_flush - 1), slot.confirmed_flush, 0, None)
            position = landing.sink.commit(first)
            self._reached("first-place-committed")
        identity = identify(connection)
        follow_timeline(
            self._source,
            location(self._lake, "bronze", CHANGES),
            identity.timeline,
            position,
            application_name=self._application_name,
        )
        return position

    def _start_stream(
        self, connection: psycopg.Connection[Any], landing: Landing, position: Position, encoding: str | None
    ) -> ReplicationStream:
        """Start the stream at bronze's mark, make sure that it really begins there, and take the lake."""
        replication = ReplicationStream(self._source, application_name=self._application_name)
        try:
            self._reached("stream-starting")
            replication.start(position.confirm, encoding=encoding)
            slot = read_slot(connection, self._source.slot)
            if slot is not None and slot.active_pid is None:
                replication.wait_for_end(_LAST_WORDS_SECONDS)
            check_start(
                position,
                slot,
                replication.backend_pid,
                log_end(connection),
                name=self._source.slot,
                where=describe(self._source),
            )
            # The slot is ours and nobody else's now, so the lake is.
            landing.sink.claim()
        except BaseException:
            replication.close()
            raise
        return replication

    def _decoder(
        self,
        connection: psycopg.Connection[Any],
        landing: Landing,
        copies: InitialCopies,
        position: Position,
        encoding: str | None,
    ) -> StreamDecoder:
        """The session's decoder; with an encoding, of texts that the server did not convert."""

        def describe(relation_id: int, _: Lsn) -> Relation | None:
            return self._describe(connection, relation_id)

        def convert(texts: Sequence[bytes]) -> list[bytes | None]:
            with translated(self._source):
                return to_utf8(connection, encoding or "UTF8", texts)

        def left_out(tables: Mapping[TableName, Lsn]) -> None:
            for table, lsn in tables.items():
                _LOGGER.warning("%s is taken again: a text of %s cannot be converted to UTF-8", table, lsn)
                landing.sink.tables.open_gaps([table], lsn, beyond=True)
            copies.ask(tables)

        def unreadable(table: TableName, lsn: Lsn, error: Exception) -> None:
            if copies.carries(table):  # else a look has seen to it
                if copies.leave_out(table, lsn, error):
                    _LOGGER.error("changes of %s are left out from %s on", table, lsn, exc_info=error)
                landing.sink.tables.open_gaps([table], lsn, beyond=True)

        shapes = landing.shapes
        known = shapes.until(position.frontier)
        if encoding is None:
            return StreamDecoder(
                describe,
                copies.carries,
                known,
                knows=shapes.knows,
                recorded=shapes.at,
                unreadable=unreadable,
            )
        return ConvertingDecoder(
            describe,
            copies.carries,
            known,
            knows=shapes.knows,
            recorded=shapes.at,
            unreadable=unreadable,
            convert=convert,
            left_out=left_out,
        )

    def _line_is_dead(self, connection: psycopg.Connection[Any], backend_pid: int) -> bool:
        """Told to the receiver's thread; a query of the decoder that shares the fate of the line is ended."""
        idle = walsender_is_idle(self._source, backend_pid)
        if idle:
            abandon(connection)
        return idle

    def _follow(
        self,
        stream: Stream,
        receiver: Receiver,
        copies: InitialCopies,
        *,
        until: Lsn | None,
        stop: threading.Event,
    ) -> bool:
        """Step until stopped or done; whether the target was reached. Not done: a new session is wanted."""
        nudge = _Nudge(self._source, receiver)
        while not stop.is_set():
            copies.raise_failure()
            if copies.wants_new_stream:
                return False
            target = None if until is None else max(until, copies.lsn)
            done = target is not None and copies.complete and stream.durable.frontier >= target
            if until is not None:
                self._give_up_copies(copies)
            if done:
                return True
            wanted = copies.wants_stream_from
            if wanted is not None:
                if stream.durable.frontier >= wanted:
                    return False
                target = wanted if target is None else max(target, wanted)
            came = stream.step(target=target, patience=_REPORT_SECONDS if target is None else _ASK_SECONDS)
            if target is not None and not came and stream.newest.frontier < target:
                nudge.push()
            self._report()
        return True

    def _give_up_copies(self, copies: InitialCopies) -> None:
        """A job that must end does not wait for ever for copies that are refused, or held up by others."""
        for found in (self._trouble.refused(), copies.held_up):
            if found is not None and found[1] > _REFUSED_SECONDS:
                self._gave_up = True
                raise found[0]

    def _describe(self, connection: psycopg.Connection[Any], relation_id: int) -> Relation | None:
        with translated(self._source):
            return describe_relation(connection, relation_id, self._source.keys, self._source.publication)

    def _say(self, said: str) -> None:
        """Tell what is waited for; nothing is, once this is to stop."""
        if self._stop.is_set():
            raise _StoppedError
        _LOGGER.info("%s", said)
        self.progress.set(said=said)
        self._report(now=True)

    def _report(self, *, now: bool = False) -> None:
        if self._report_to is not None and (now or time.monotonic() - self._reported >= _REPORT_SECONDS):
            self._reported = time.monotonic()
            self._report_to(self.progress.read())


class _Nudge:
    """Makes an idle stream reach a wanted position: by asking, then by a message of our own in the log.

    The server says how far it has read only now and then, and on an idle server its log may end exactly where
    it is wanted to pass.
    """

    def __init__(self, source: SourceSettings, receiver: Receiver) -> None:
        self._source = source
        self._receiver = receiver
        self._pushes = 0

    def push(self) -> None:
        """Ask for a keepalive; at the third time write a message, once."""
        self._pushes += 1
        if self._pushes == 3:  # asked twice in vain
            with connect(self._source) as connection, translated(self._source):
                connection.execute("SELECT pg_logical_emit_message(true, %s, 'until')", [HEARTBEAT_PREFIX])
        self._receiver.ask()


def _feedback_seconds(connection: psycopg.Connection[Any]) -> float:
    """How often to answer: well within the server's patience."""
    row = connection.execute(
        "SELECT setting::int FROM pg_settings WHERE name = 'wal_sender_timeout'"
    ).fetchone()
    patience = row[0] / 1000 if row and row[0] else 0.0
    return min(FEEDBACK_SECONDS, patience / 4) if patience else FEEDBACK_SECONDS
