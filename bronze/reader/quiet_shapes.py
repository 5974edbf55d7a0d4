"""Records the shapes of tables that nobody writes to, as a look at the catalog saw these tables.

A look reads the catalog first and the end of the log afterwards, so an ALTER TABLE may lie between the two
readings. The stream may bring rows of the new shape from before the end of the log. A version of the old
shape at the end of the log would then describe the rows that follow. A second look does not help: while a
standby does not confirm a commit, the commit is in the log and no query sees its effect.

The function therefore locks the tables, in the mode of any query, while it reads shapes and the end of the
log:

* ALTER TABLE waits for the lock. The lock waits for the end of an ALTER TABLE, and queries see the commit of
  an ALTER TABLE before its lock ends.
* Rows of a former shape were committed before the ALTER TABLE that ended the shape, and rows that commit
  after the version's place have the recorded shape, until an ALTER TABLE that commits later still.

The stream compares a shape that a message announces with the versions that are recorded. The function holds
the shapes (`ShapeLog.held`) from before the lock until the versions are durable. So no message of a later
shape is compared too early, although the tables' lock ends before the lake is written to.

**The application waits for seconds at most.** No lake is written to and no other lock is waited for under the
lock. `Timing.shape_lock` bounds the block. The server ends the transaction by itself where the reader's host
is gone (`idle_in_transaction_session_timeout`, `statement_timeout`).

**Tables go in groups.** A group costs one reading of the catalog, one message and one commit to the lake. The
locks of a group are taken only where they are free, so the reader never waits while it holds a lock, and
never has a part in a deadlock. A table that was not free is tried alone afterwards. The server gives up the
wait for one lock after `Timing.member_lock`, and for all locks of a look together after
`Timing.members_lock`. The next look then asks again.

**Killed in between**: the message comes first. A message without a version is harmless, and the next look
records the version. A call to the lake that fails leaves the same, or the version.
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
"""Tables; a server has room for 64 locks a connection by default."""

_GONE: Final = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.UndefinedTable,
)
"""Answers to LOCK TABLE where the table is not what the look saw."""


class Recorded(NamedTuple):
    """What became of the shapes of one look.

    Attributes:
        relations: by relation id, those that are recorded.
        lsn: after the places of all of them; zero where none is recorded.
        cut_short: the time was over before all were tried, and another look will come further.
    """

    relations: frozenset[int] = frozenset()
    lsn: Lsn = ZERO
    cut_short: bool = False


def record_shapes(
    source: SourceSettings, shapes: ShapeLog, relations: Sequence[Relation], stop: threading.Event
) -> Recorded:
    """Record the shapes that tables still have.

    A version begins at the byte before the end of the log, which is after the commit of the statement that
    made the shape. A message in the log follows. A server whose files are put back to before the statement
    lacks the message and is refused once the stream has read the message (`bronze.stream.same_log`); before
    that, `bronze.reader.session_start` requests the table.

    Args:
        source: server, keys and publication.
        shapes: where shapes are recorded.
        relations: as a look saw them, each of another table.
        stop: gives it up.

    Raises:
        SmeltError: the server cannot be asked, the lake cannot be written.
    """
    if not relations:
        return Recorded()
    timing = source.timing
    tries = deque(relations[at : at + _GROUP] for at in range(0, len(relations), _GROUP))
    busy: deque[Sequence[Relation]] = deque()
    done: set[int] = set()
    lsn, waited, until = ZERO, 0.0, time.monotonic() + timing.look_shapes
    with connect(source) as connection, translated(source), until_stopped(stop, connection):
        recorder = _Recorder(connection, source, shapes, stop)
        while tries or busy:
            alone, started = not tries, time.monotonic()
            group = busy.popleft() if alone else tries.popleft()
            wait = max(min(timing.member_lock, timing.members_lock - waited), 0.0) if alone else None
            with within(timing.look_answer, connection):
                ids, after, refused = recorder.record(group, wait)
            done |= ids
            lsn = max(lsn, after)
            if not alone:
                busy.extend([relation] for relation in refused)
            elif refused:
                waited += time.monotonic() - started
            if (tries or busy) and time.monotonic() >= until:
                return Recorded(frozenset(done), lsn, cut_short=bool(done))
    return Recorded(frozenset(done), lsn)


@dataclass(frozen=True, slots=True)
class _Recorder:
    """Records groups.

    Attributes:
        connection: in autocommit mode.
        source: server, keys and publication.
        shapes: where shapes are recorded.
        stop: has the server cancel statements.
    """

    connection: psycopg.Connection[Any]
    source: SourceSettings
    shapes: ShapeLog
    stop: threading.Event

    def record(self, group: Sequence[Relation], wait: float | None) -> tuple[set[int], Lsn, list[Relation]]:
        """Record a group: which tables, an LSN after their place, and which tables were not free.

        Args:
            group: tables.
            wait: seconds for the lock of a single table; None: a lock that is not free is not waited for.
        """
        busy: list[Relation] = []
        seconds = self.source.timing.shape_lock + (wait or 0)
        milliseconds = int(seconds * 1000)
        with self.shapes.held():
            try:
                with (
                    self.connection.transaction(),
                    within(seconds, self.connection, psycopg.Connection.cancel),
                ):
                    self.connection.execute(
                        f"SET LOCAL idle_in_transaction_session_timeout = {milliseconds}; "
                        f"SET LOCAL statement_timeout = {milliseconds}; {lock_timeout(wait or 0)}".encode()
                    )
                    locked = [one for one in group if self._is_locked(one, busy, nowait=wait is None)]
                    ids = [one.relation_id for one in locked]
                    now = self._described(ids)
                    place = Lsn(log_end(self.connection) - 1)
            except psycopg.errors.QueryCanceled:
                if self.stop.is_set():
                    raise
                return set(), ZERO, list(group)
            same = [
                replace(one, from_lsn=place)
                for one in locked
                if one.relation_id in now and same_shape(now[one.relation_id], one)
            ]
            if not same:
                return set(), ZERO, busy
            after = write_heartbeat(self.connection, "shape")
            self.shapes.record(same, ahead=True)
        return {one.relation_id for one in same}, after, busy

    def _described(self, ids: Sequence[int]) -> dict[int, Relation]:
        return describe_relations(self.connection, ids, self.source.keys, self.source.publication)

    def _is_locked(self, relation: Relation, busy: list[Relation], *, nowait: bool) -> bool:
        statement = f"LOCK TABLE ONLY {relation.table.quoted} IN ACCESS SHARE MODE"
        try:
            with self.connection.transaction():
                self.connection.execute(f"{statement}{' NOWAIT' if nowait else ''}".encode())
        except psycopg.errors.LockNotAvailable:
            busy.append(relation)
            return False
        except _GONE:
            return False
        return True
