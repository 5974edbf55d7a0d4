"""Record the shapes of tables without writes, in the state of a catalog poll.

A poll reads the catalog first and the end of the log afterwards, so an ALTER TABLE may lie between both
reads. The stream may bring rows of the new shape from before the end of the log. A version of the old shape
at the end of the log would then describe the rows that follow. A second poll does not help: while a standby
does not confirm a commit, the commit is in the log and no query sees its effect.

So the function locks the tables, in the mode of any query, while it reads shapes and the end of the log:

* ALTER TABLE waits for the lock. The lock waits for the end of an ALTER TABLE, and queries see the commit of
  an ALTER TABLE before its lock ends.
* Rows of a former shape were committed before the ALTER TABLE that ended the shape. Rows that commit after
  the version's place have the recorded shape, until an ALTER TABLE that commits later still.

**The application waits for seconds at most.** Under the lock, the function neither writes to a lake nor waits
for another lock. `Timing.shape_lock` bounds the block.

**Killed in between**: the message comes first. A message without a version is harmless, and the next poll
records the version. A failed call to the lake leaves the same state, or the version.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import psycopg

from deltasmelt.bronze.catalog.select import describe_relations
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.postgres.connection import (
    connect,
    lock_timeout,
    log_end,
    translated,
    until_stopped,
    within,
)
from deltasmelt.bronze.postgres.heartbeat import write_heartbeat
from deltasmelt.bronze.shapes import same_shape

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence
    from typing import Any

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.store.relations import ShapeLog

_GROUP: Final = 64
"""Tables per group; a server has room for 64 locks per connection by default."""

_UNREADABLE: Final = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.UndefinedTable,
)
"""Errors of LOCK TABLE for a table that differs from the poll's table."""


class Recorded(NamedTuple):
    """The shapes recorded by one poll."""

    # ids of the relations whose shape is recorded
    relations: frozenset[int] = frozenset()
    # LSN after the places of all recorded versions; zero without any
    lsn: Lsn = ZERO
    # whether time ran out before all tables were tried, and another poll gets further
    cut_short: bool = False


def record_shapes(
    source: SourceSettings, shapes: ShapeLog, relations: Sequence[Relation], stop: threading.Event
) -> Recorded:
    """Record the shapes that tables still have.

    A version begins at the byte before the end of the log, after the commit of the statement that made the
    shape.

    Raises:
        SmeltError: the server does not answer, or the lake cannot be written.
    """
    if not relations:
        return Recorded()
    timing = source.timing
    # A group costs one query of the catalog, one message and one commit to the lake. The locks of a group are
    # taken only if free. So the reader never waits while holding a lock, and never takes part in a deadlock.
    # A table that was not free is tried alone afterwards.
    tries = deque(relations[at : at + _GROUP] for at in range(0, len(relations), _GROUP))
    busy: deque[Sequence[Relation]] = deque()
    recorded_ids: set[int] = set()
    lsn, waited, deadline = ZERO, 0.0, time.monotonic() + timing.poll_shapes
    with connect(source) as connection, translated(source), until_stopped(stop, connection):
        recorder = _Recorder(connection, source, shapes, stop)
        while tries or busy:
            alone, started = not tries, time.monotonic()
            group = busy.popleft() if alone else tries.popleft()
            # The application must not wait long behind these locks, so the limits hold for one lock and for
            # all locks of a poll together. The next poll retries.
            wait = max(min(timing.member_lock, timing.members_lock - waited), 0.0) if alone else None
            with within(timing.poll_answer, connection):
                ids, after, busy_relations = recorder.record(group, wait)
            recorded_ids |= ids
            lsn = max(lsn, after)
            if not alone:
                busy.extend([relation] for relation in busy_relations)
            elif busy_relations:
                waited += time.monotonic() - started
            if (tries or busy) and time.monotonic() >= deadline:
                return Recorded(frozenset(recorded_ids), lsn, cut_short=bool(recorded_ids))
    return Recorded(frozenset(recorded_ids), lsn)


@dataclass(frozen=True, slots=True)
class _Recorder:
    """A recorder of groups of shapes."""

    # a connection in autocommit mode
    connection: psycopg.Connection[Any]
    source: SourceSettings
    shapes: ShapeLog
    # makes the server cancel statements when set
    stop: threading.Event

    def record(self, group: Sequence[Relation], wait: float | None) -> tuple[set[int], Lsn, list[Relation]]:
        """Record a group; return the recorded tables, an LSN after their place, and the locked tables.

        `wait` is the longest wait, in seconds, for the lock of a single table; None: do not wait.
        """
        busy: list[Relation] = []
        seconds = self.source.timing.shape_lock + (wait or 0)
        milliseconds = int(seconds * 1000)
        # The stream compares an announced shape with the recorded versions. Holding the versions from before
        # the lock until they are durable prevents a message of a later shape from being compared too early,
        # although the tables' lock ends before the write to the lake.
        with self.shapes.held():
            try:
                with (
                    self.connection.transaction(),
                    within(seconds, self.connection, psycopg.Connection.cancel),
                ):
                    self.connection.execute(
                        # The server itself ends the transaction if the reader's host vanishes.
                        f"SET LOCAL idle_in_transaction_session_timeout = {milliseconds}; "
                        f"SET LOCAL statement_timeout = {milliseconds}; {lock_timeout(wait or 0)}".encode()
                    )
                    locked = [
                        relation for relation in group if self._is_locked(relation, busy, nowait=wait is None)
                    ]
                    ids = [relation.relation_id for relation in locked]
                    described = self._described(ids)
                    place = Lsn(log_end(self.connection) - 1)
            except psycopg.errors.QueryCanceled:
                if self.stop.is_set():
                    raise
                return set(), ZERO, list(group)
            unchanged = [
                replace(relation, from_lsn=place)
                for relation in locked
                if relation.relation_id in described and same_shape(described[relation.relation_id], relation)
            ]
            if not unchanged:
                return set(), ZERO, busy
            # A server whose files are restored to a state before the statement lacks this message. The reader
            # refuses such a server once the stream has read the message (`bronze.stream.same_log`). Earlier,
            # `bronze.reader.session_start` requests the table.
            after = write_heartbeat(self.connection, "shape")
            self.shapes.record(unchanged, ahead=True)
        return {relation.relation_id for relation in unchanged}, after, busy

    def _described(self, ids: Sequence[int]) -> dict[int, Relation]:
        relations = describe_relations(self.connection, ids, self.source.keys, self.source.publication)
        rules = self.source.rules
        return {oid: rules.table(relation.table).shape(relation) for oid, relation in relations.items()}

    def _is_locked(self, relation: Relation, busy: list[Relation], *, nowait: bool) -> bool:
        statement = f"LOCK TABLE ONLY {relation.table.quoted} IN ACCESS SHARE MODE"
        try:
            with self.connection.transaction():
                self.connection.execute(f"{statement}{' NOWAIT' if nowait else ''}".encode())
        except psycopg.errors.LockNotAvailable:
            busy.append(relation)
            return False
        except _UNREADABLE:
            return False
        return True
