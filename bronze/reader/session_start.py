"""Start a session of the stream, with steps that are each safe to die after.

1. **A server with another log is refused first**, before the catalog poll and before any write
   (`bronze.stream.timeline`, `bronze.stream.same_log`).
2. **The slot is created only while bronze has no place.** The slot's first point P becomes bronze's first
   place (P - 1, P). A kill in between leaves a slot at P and no place. The next start takes the slot's point
   again, because nothing was confirmed in between.
3. **Bronze's place is read once the slot is free.** The former reader may have been killed while its child
   process ends in order. The child commits and confirms until its walsender ends. So until step 5 a moved
   place is accepted, and a session that began at the former place restarts.
4. **The stream starts at bronze's own mark**, never at the slot's position. Then the reader reads the slot
   again, while no other client can move the slot, and compares (`bronze.stream.continuity`).
5. **The lake is claimed last**: the reader that holds the slot is the lake's only reader. All earlier writes
   are valid for any reader of this slot: errors, gaps and resnapshot marks of the first poll, the first
   place, and the followed server.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.checks.ownership import require_own
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.postgres.connection import SourceConnection, identify, log_end
from deltasmelt.bronze.postgres.conninfo import address_of
from deltasmelt.bronze.postgres.conversion import server_encoding
from deltasmelt.bronze.postgres.liveness import walsender_liveness
from deltasmelt.bronze.setup.create_slot import ensure_slot
from deltasmelt.bronze.setup.slot import read_slot
from deltasmelt.bronze.setup.slot_mark import mark_slot
from deltasmelt.bronze.store.changes_table import moved_meanwhile
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.gaps import request_snapshots
from deltasmelt.bronze.store.position import Position, same_position
from deltasmelt.bronze.store.relations import read_relations
from deltasmelt.bronze.stream.continuity import check_start, refuse_behind, slot_gone
from deltasmelt.bronze.stream.evidence import counting_relations, newest_counting
from deltasmelt.bronze.stream.receiver import Receiver
from deltasmelt.bronze.stream.replication import ReplicationStream
from deltasmelt.bronze.stream.same_log import LogComparison
from deltasmelt.bronze.stream.timeline import check_timeline, is_followed, record_server

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import psycopg

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.config.timing import Timing
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.postgres.liveness import Liveness
    from deltasmelt.bronze.setup.slot import SlotState
    from deltasmelt.bronze.store.position import SentTransaction
    from deltasmelt.bronze.store.sink import DeltaSink

QUEUE_BYTES: Final = 8 * 1024 * 1024
"""Bytes of messages that a session keeps queued."""

_RELEASE_POLL: Final = 0.005


@dataclass(frozen=True, slots=True)
class SessionStart:
    """The start of each session of one reader."""

    pipeline: str
    source: SourceSettings
    lake: Lake
    # name of the stream's connection in pg_stat_activity
    application_name: str
    # called with a text about the current wait; may raise to give up the wait
    report: Callable[[str], None]
    # called at named points; fault tests kill the process at these points
    reached: Callable[[str], None]

    def known_place(self, connection: psycopg.Connection[Any], sink: DeltaSink) -> Position | None:
        """Return bronze's place in the stream, for a server with all of bronze's changes; None if new.

        Raises:
            DefiniteError: ``slot-lost``, ``server-behind``, ``server-history-differs`` and others: no stream
                continues at bronze's place. Nothing was written.
            SmeltError: the server does not answer, or the lake cannot be written.
        """
        sink.discard()  # rows of a session that failed before its stream
        sink.adopt()
        position = sink.position
        if position is None:
            return None
        server = identify(connection)
        slot = self.known_slot(connection, position)
        position = sink.position or position  # the slot's last holder may have advanced
        self.require_history(connection, position, slot, server.timeline)
        self.reached("slot-ready")
        if not is_followed(self._changes, server):
            self._doubt_snapshots(connection, sink, position)
            record_server(self._changes, server)
        mark_slot(connection, self.source, self._lake_id)
        return position

    def first_place(self, connection: psycopg.Connection[Any], sink: DeltaSink) -> Position:
        """Commit and return the slot's first point as an empty bronze's place; raise as `known_place`."""
        # The lake's name must be at the server before the slot is created. The owner is checked again before
        # the place is committed (`bronze.setup.slot_mark`).
        if read_slot(connection, self.source.slot) is None:
            mark_slot(connection, self.source, self._lake_id)
        slot = self._slot(connection)
        require_own(connection, self.source, self.lake, self.pipeline)
        mark_slot(connection, self.source, self._lake_id)
        self.reached("slot-ready")
        position = sink.commit(Position.first(slot.confirmed_flush))
        self.reached("first-place-committed")
        record_server(self._changes, identify(connection))
        return position

    def known_slot(self, connection: psycopg.Connection[Any], position: Position) -> SlotState:
        """Return the slot that bronze was read from, once no other reader holds the slot.

        Raises:
            DefiniteError: ``slot-lost`` and others.
            SmeltError: the server does not answer.
        """
        if read_slot(connection, self.source.slot) is None:
            raise slot_gone(position, name=self.source.slot, where=address_of(self.source))
        return self._slot(connection)

    def require_history(
        self,
        connection: psycopg.Connection[Any],
        position: Position,
        slot: SlotState,
        timeline: int,
        *,
        confirm: bool = True,
    ) -> None:
        """Refuse a server whose log up to bronze's position differs from the log that bronze followed.

        Args:
            connection: an idle connection that outlives the comparison.
            slot: the slot, free of readers.
            confirm: whether to move the slot to bronze's position afterwards; the next stream then decodes
                less.

        Raises:
            DefiniteError, SmeltError: as `known_place`.
        """
        address = address_of(self.source)
        check_timeline(self.source, self._changes, timeline, position, application_name=self.application_name)
        check_start(
            position, replace(slot, active_pid=0), 0, log_end(connection), name=slot.name, where=address
        )
        if position.sent is None or slot.confirmed_flush == position.confirm:
            return
        comparison = LogComparison(position, position.sent, slot.confirmed_flush, where=address)
        try:
            self._compare(connection, comparison, slot, position, confirm=confirm)
        except DefiniteError as error:
            if error.code != "server-history-differs":
                raise
            comparison = self._by_evidence(connection, position, position.sent, slot.confirmed_flush)
            self._compare(connection, comparison, slot, position, confirm=confirm)
        self.reached("log-compared")

    def stream(
        self,
        connection: psycopg.Connection[Any],
        sink: DeltaSink,
        position: Position,
        encoding: str | None,
        line: Callable[[int], Liveness],
    ) -> Receiver:
        """Start the stream at bronze's mark, and check that the stream really begins there.

        Args:
            encoding: encoding of the unconverted texts; None if the server converts.
            line: returns the state of a silent walsender.

        Returns:
            The started receiver, which answers the server from now on; the caller must stop the receiver.

        Raises:
            DefiniteError: ``slot-gap``: the slot begins after bronze's mark.
            SmeltError: the server does not answer, or bronze's mark has moved.
        """
        self.reached("stream-starting")
        seconds = feedback_seconds(connection, self.source.timing)
        try:
            replication = self._started(connection, position, position.confirm, encoding)
        except DefiniteError as error:
            if not sink.is_claimed and not same_position(sink.position, position):
                raise moved_meanwhile(sink.uri) from error
            raise
        try:
            receiver = Receiver(
                replication,
                capacity=QUEUE_BYTES,
                durable=position.confirm,
                feedback_seconds=seconds,
                silence_seconds=self.source.timing.line_silence,
                line=lambda: line(replication.backend_pid),
                unknown_seconds=self.source.timing.refused,
            )
            receiver.start()
        except BaseException:
            replication.close()
            raise
        return receiver

    @property
    def _changes(self) -> str:
        return self.lake.uri("bronze", CHANGES)

    @property
    def _lake_id(self) -> str:
        return str(delta.open_existing(self._changes).metadata().id)

    def _doubt_snapshots(
        self, connection: psycopg.Connection[Any], sink: DeltaSink, position: Position
    ) -> None:
        """Request new snapshots of tables with state beyond the stream, after a restart of the server.

        The comparison of logs covers a snapshot, or the shape of a quiet table, once the stream has received
        the message that follows in the log. Before, nothing proves that this server's log includes the LSN of
        the snapshot, the shape or the poll. The server's files may be of an older state.
        """
        newest = sink.tables.newest(sink.relations())
        proved = position.frontier if position.sent is None else position.sent.lsn
        snapshots = sink.tables.bases(list(newest))
        ahead = {
            table: lsn
            for table, lsn in newest.items()
            if lsn > position.frontier or snapshots.get(table, ZERO) > proved
        }
        if ahead:
            end = log_end(connection)
            refuse_behind(end, max(ahead.values()), where=address_of(self.source))
            # A dropped or unselected table gets no request, because no snapshot would meet the request. The
            # reader copies a returning table (`bronze.store.gaps`).
            selected = {table.table for table in select_tables(connection, self.source)}
            request_snapshots(self._changes, sorted(ahead.keys() & selected), end)

    def _slot(self, connection: psycopg.Connection[Any]) -> SlotState:
        return ensure_slot(connection, self.source, ours=f"deltasmelt {self.pipeline} ", progress=self.report)

    def _started(
        self, connection: psycopg.Connection[Any], position: Position, start: Lsn, encoding: str | None
    ) -> ReplicationStream:
        """Start a stream, and check the slot while no other client can move the slot."""
        stop = connection.stop if isinstance(connection, SourceConnection) else None
        replication = ReplicationStream(self.source, application_name=self.application_name, stop=stop)
        try:
            replication.start(start, encoding=encoding)
            slot = read_slot(connection, self.source.slot)
            if slot is not None and slot.active_pid is None:
                replication.wait_for_end(self.source.timing.last_words)
            check_start(
                position,
                slot,
                replication.backend_pid,
                log_end(connection),
                name=self.source.slot,
                where=address_of(self.source),
            )
        except BaseException:
            replication.close()
            raise
        return replication

    def _by_evidence(
        self, connection: psycopg.Connection[Any], position: Position, sent: SentTransaction, confirmed: Lsn
    ) -> LogComparison:
        """Return the comparison by the transactions that the server sends at every decoding."""
        changes, relations = delta.open_existing(self._changes), read_relations(self.lake)
        counts = counting_relations(connection, self.source.publication, changes, relations, sent)
        newest = newest_counting(changes, counts, sent, confirmed)
        address = address_of(self.source)
        return LogComparison(position, newest, confirmed, where=address, counts=frozenset(counts))

    def _compare(
        self,
        connection: psycopg.Connection[Any],
        comparison: LogComparison,
        slot: SlotState,
        position: Position,
        *,
        confirm: bool,
    ) -> None:
        """Receive the server's log from the slot's place on until the comparison is complete."""
        # Request unconverted texts: then no text of the resent transaction can fail.
        encoding = server_encoding(connection)
        replication = self._started(connection, position, comparison.start, encoding)
        walsender = replication.backend_pid
        try:
            self._receive(connection, replication, comparison, slot, position if confirm else None)
        finally:
            replication.close()
            self._wait_for_release(connection, walsender)

    def _receive(
        self,
        connection: psycopg.Connection[Any],
        replication: ReplicationStream,
        comparison: LogComparison,
        slot: SlotState,
        confirm: Position | None,
    ) -> None:
        """Receive until the comparison is complete; the receiver closes the stream."""
        timing = self.source.timing
        receiver = Receiver(
            replication,
            capacity=QUEUE_BYTES,
            durable=slot.confirmed_flush,  # the slot's position is the evidence, so it must not move
            feedback_seconds=feedback_seconds(connection, timing),
            silence_seconds=timing.line_silence,
            line=lambda: walsender_liveness(self.source, replication.backend_pid),
            unknown_seconds=timing.refused,
        )
        receiver.start()
        try:
            notice = time.monotonic() + timing.wait_notice
            while not comparison.complete:
                batch = receiver.take(most=QUEUE_BYTES, timeout=timing.target_poll)
                if batch is not None:
                    comparison.take(batch)
                else:
                    receiver.request_reply()
                if time.monotonic() >= notice:
                    notice = time.monotonic() + timing.wait_notice
                    self.report(
                        f"comparing the server's log with bronze: {comparison.reached} of {comparison.end} "
                        f"(the slot is at {slot.confirmed_flush})"
                    )
            if confirm is not None:
                receiver.confirm(confirm.confirm)
        finally:
            receiver.stop()

    def _wait_for_release(self, connection: psycopg.Connection[Any], backend_pid: int) -> None:
        """Wait some milliseconds until the walsender of a closed stream has released the slot."""
        deadline = time.monotonic() + self.source.timing.slot_release
        while time.monotonic() < deadline:
            slot = read_slot(connection, self.source.slot)
            if slot is None or slot.active_pid != backend_pid:
                return
            time.sleep(_RELEASE_POLL)


def feedback_seconds(connection: psycopg.Connection[Any], timing: Timing) -> float:
    """Return the interval of feedback, well within the server's timeout."""
    row = connection.execute(
        "SELECT setting::int FROM pg_settings WHERE name = 'wal_sender_timeout'"
    ).fetchone()
    patience = row[0] / 1000 if row and row[0] else 0.0
    return min(timing.feedback, patience / 4) if patience else timing.feedback
