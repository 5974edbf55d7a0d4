"""How a session of the stream begins, and why each step is safe to die after.

1. **The slot is made only where bronze has no place yet.** Its first point P becomes bronze's first place
   (P - 1, P). Dying in between leaves a slot at P and no place, and the next start takes the slot's point
   again: nothing was confirmed in between.
2. **The stream is started at bronze's own mark**, never at the slot's. Then the slot is read again, while
   nobody else can move it, and compared (`bronze.stream.continuity`).
3. **The lake is taken last**: who has the slot is its only reader. What is written before says only what any
   reader of this slot would find: the first look's errors, gaps and resnapshot marks, and the first place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bronze.lake.delta import location
from bronze.lsn import Lsn
from bronze.postgres.connection import identify, log_end
from bronze.postgres.conninfo import address_of
from bronze.setup.create_slot import ensure_slot
from bronze.setup.slot import read_slot
from bronze.store.contract import CHANGES
from bronze.store.position import Position
from bronze.stream.continuity import check_start, slot_gone
from bronze.stream.replication import ReplicationStream
from bronze.stream.timeline import follow_timeline

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import psycopg

    from bronze.config.sections import SourceSettings
    from bronze.config.timing import Timing
    from bronze.lake.location import Lake
    from bronze.store.landing import Landing


@dataclass(frozen=True, slots=True)
class SessionStart:
    """How each session of one reader begins.

    Attributes:
        pipeline: its name.
        source: server, slot, publication.
        lake: bronze's lake.
        application_name: of the stream's connection, as pg_stat_activity shows it.
        say: is told what is waited for; may raise, to give up.
        reached: called at named points of the way; fault tests kill the process there.
    """

    pipeline: str
    source: SourceSettings
    lake: Lake
    application_name: str
    say: Callable[[str], None]
    reached: Callable[[str], None]

    def place(self, connection: psycopg.Connection[Any], landing: Landing) -> Position:
        """Bronze's place in the stream; for an empty bronze the slot's first point, made durable at once.

        Args:
            connection: idle.
            landing: where bronze keeps its place.

        Raises:
            DefiniteError: ``slot-lost`` and the like: no stream goes on from bronze's place.
            SmeltError: the server cannot be asked, the lake not be written.
        """
        landing.sink.discard()  # of a session that failed before it had a stream
        position = landing.sink.position
        if position is not None and read_slot(connection, self.source.slot) is None:
            raise slot_gone(position, name=self.source.slot, where=address_of(self.source))
        slot = ensure_slot(
            connection,
            self.source,
            ours=f"deltasmelt {self.pipeline} ",
            progress=self.say,
        )
        self.reached("slot-ready")
        if position is None:
            first = Position(Lsn(slot.confirmed_flush - 1), slot.confirmed_flush, 0, None)
            position = landing.sink.commit(first)
            self.reached("first-place-committed")
        identity = identify(connection)
        follow_timeline(
            self.source,
            location(self.lake, "bronze", CHANGES),
            identity.timeline,
            position,
            application_name=self.application_name,
        )
        return position

    def stream(
        self, connection: psycopg.Connection[Any], landing: Landing, position: Position, encoding: str | None
    ) -> ReplicationStream:
        """Start the stream at bronze's mark, make sure that it really begins there, and take the lake.

        Args:
            connection: idle.
            landing: whose lake is taken.
            position: bronze's mark.
            encoding: of texts that the server is not to convert; None where it is.

        Raises:
            DefiniteError: ``slot-gap``: the slot begins after bronze's mark.
            SmeltError: the server cannot be asked, the lake not be written.
        """
        replication = ReplicationStream(self.source, application_name=self.application_name)
        try:
            self.reached("stream-starting")
            replication.start(position.confirm, encoding=encoding)
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
            # The slot is ours and nobody else's now, so the lake is.
            landing.sink.claim()
        except BaseException:
            replication.close()
            raise
        return replication


def feedback_seconds(connection: psycopg.Connection[Any], timing: Timing) -> float:
    """How often to answer: well within the server's patience."""
    row = connection.execute(
        "SELECT setting::int FROM pg_settings WHERE name = 'wal_sender_timeout'"
    ).fetchone()
    patience = row[0] / 1000 if row and row[0] else 0.0
    return min(timing.feedback, patience / 4) if patience else timing.feedback
