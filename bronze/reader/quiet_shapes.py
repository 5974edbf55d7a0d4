"""Records the shape of a table that nobody writes to, as a look at the catalog saw the table.

A look reads the catalog first and the end of the log afterwards, so an ALTER TABLE may lie between the two
readings. The stream may bring rows of the new shape from before the end of the log. A version of the old
shape at the end of the log would then describe the rows that follow. A second look does not help: while a
standby does not confirm a commit, the commit is in the log and no query sees its effect.

The function therefore locks the table, in the mode of any query, until the shape is recorded:

* ALTER TABLE waits for the lock. The lock waits for the end of an ALTER TABLE, and queries see the commit of
  an ALTER TABLE before its lock ends.
* Rows of a former shape were committed before the ALTER TABLE that ended the shape, and rows that commit
  after the version's place have the recorded shape, until an ALTER TABLE that commits later still.
* The stream compares a shape that a message announces with the versions that are recorded. During the lock
  no other shape can begin, so no message is compared with too old a version.

The server gives up the wait for one lock after `Timing.member_lock`, and for all locks of a look together
after `Timing.members_lock`. The next look then asks again.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg

from bronze.catalog.select import describe_relation
from bronze.lsn import Lsn
from bronze.postgres.connection import connect, lock_timeout, log_end, translated, until_stopped, within
from bronze.postgres.heartbeat import write_heartbeat
from bronze.shapes import same_shape

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from typing import Any

    from bronze.config.sections import SourceSettings
    from bronze.shapes import Relation
    from bronze.store.relations import ShapeLog

_GONE = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.UndefinedTable,
)
"""Answers of a server where the table is not what the look saw, or where an ALTER TABLE is under way."""


@contextmanager
def quiet_shapes(
    source: SourceSettings, shapes: ShapeLog, stop: threading.Event
) -> Iterator[Callable[[Relation], Lsn | None]]:
    """Give a function that records a shape if the table still has it, and returns an LSN after its place.

    The version begins at the byte before the end of the log, which is after the commit of the statement that
    made the shape. A message in the log follows. A server whose files are put back to before the statement
    lacks the message and is refused (`bronze.stream.same_log`). The connection is made for the first shape.

    Args:
        source: server, keys and publication.
        shapes: where shapes are recorded.
        stop: gives it up.

    Raises:
        SmeltError: the server cannot be asked, the lake cannot be written.
    """
    timing = source.timing
    with ExitStack() as stack:
        connections: list[psycopg.Connection[Any]] = []
        waited = 0.0

        def record(relation: Relation) -> Lsn | None:
            nonlocal waited
            if not connections:
                connections.append(stack.enter_context(connect(source)))
                stack.enter_context(until_stopped(stop, connections[0]))
            seconds, asked = min(timing.member_lock, timing.members_lock - waited), time.monotonic()
            with translated(source), within(timing.look_answer, connections[0]):
                place = _recorded(connections[0], source, shapes, relation, seconds)
            waited += time.monotonic() - asked if place is None else 0.0
            return place

        yield record


def _recorded(
    connection: psycopg.Connection[Any],
    source: SourceSettings,
    shapes: ShapeLog,
    relation: Relation,
    seconds: float,
) -> Lsn | None:
    try:
        with connection.transaction():
            connection.execute(lock_timeout(seconds).encode())
            connection.execute(f"LOCK TABLE ONLY {relation.table.quoted} IN ACCESS SHARE MODE".encode())
            now = describe_relation(connection, relation.relation_id, source.keys, source.publication)
            if now is None or not same_shape(now, relation):
                return None
            place = Lsn(log_end(connection) - 1)
            shapes.record([replace(relation, from_lsn=place)], ahead=True)
            return write_heartbeat(connection, "shape")
    except _GONE:
        return None
