"""Start over on the same lake after changes were lost for good: one request, one commit.

A slot that was dropped, recreated, advanced or invalidated leaves a hole that no stream fills. So does a
server whose history parted from bronze's history. A snapshot of every table after the hole fills the hole:
the snapshot replaces all rows of silver, including rows deleted in between. So:

1. A missing publication is created first: a slot decodes with the catalog at the slot's time.
2. A useless slot is dropped and recreated. Its consistent point is C.
3. **One commit** on `bronze.changes` moves bronze's place to (C - 1, C). This commit also marks every table
   of bronze that still exists in the source with a gap and a request at C - 1 (`bronze.store.gaps`).

**Killed before the commit**: bronze keeps its old place, and the slot is missing or begins later. The next
start stops with the former error (``slot-lost``, ``slot-gap``). A repeated request uses a slot created
meanwhile unchanged.

**A reader that starts over by itself** (the publication was dropped) gets no repeated request. Before
dropping the slot, the reader commits `STARTING_OVER_APP` with bronze's frontier. Until the commit of step 3
moves the frontier, each start finds the mark (`is_starting_over`) and repeats the recovery. Afterwards the
mark names a past frontier, so nothing must remove the mark. A manual request ends the mark, too.

**An undecodable slot** (``stream-undecodable`` or ``stream-out-of-memory``, open in `control.errors`) is also
given up on request. The history between bronze's end and C is lost, and a snapshot of each table replaces the
history.

**Killed after the commit**: the request is complete; any reader streams from C and takes a snapshot of each
table after C. Until then silver shows the newest cut from before. A table joins the next cuts when its
snapshot is in bronze.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.catalog.queries import tables_of
from deltasmelt.bronze.checks.ownership import require_own
from deltasmelt.bronze.checks.recorded_rules import select_recorded
from deltasmelt.bronze.errors import DefiniteError, TransientError
from deltasmelt.bronze.identifiers import quote_literal
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import CommitFailedError, Transaction
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.failures import lake_failures
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.postgres.connection import connect, identify, log_end, translated, until_stopped
from deltasmelt.bronze.postgres.conninfo import address_of
from deltasmelt.bronze.postgres.error_rules import TOO_LARGE, UNDECODABLE
from deltasmelt.bronze.reader.session_start import SessionStart
from deltasmelt.bronze.setup.create_slot import STARTING_OVER, ensure_slot, is_comparing
from deltasmelt.bronze.setup.publication import ensure_publication
from deltasmelt.bronze.setup.slot import read_slot, slot_problem
from deltasmelt.bronze.store.changes_table import commit_marks, lake_in_use
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.gaps import gap_marks
from deltasmelt.bronze.store.marks import STARTING_OVER_APP, TIMELINE_APP
from deltasmelt.bronze.store.position import Position, position_of
from deltasmelt.bronze.store.sink import DeltaSink
from deltasmelt.bronze.stream.continuity import refuse_behind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import psycopg

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.setup.slot import SlotState

_STOP_READER: Final = "stop the reader of this pipeline first"

_HEALED: Final = ("server-behind", "server-history-differs", "slot-gap", "slot-lost")
"""Errors of a stream from bronze's place that a new slot and snapshots of all tables heal."""

_RELEASE_POLLS: Final = 4
"""Number of reads of an occupied slot before the slot counts as a streaming reader's slot."""


@dataclass(frozen=True, slots=True)
class StartedOver:
    """The effect of a request."""

    # bronze's place before the request
    before: Lsn
    # changes up to this LSN are lost to the stream; later snapshots replace the changes
    lsn: Lsn
    # the tables to be resnapshotted
    tables: tuple[TableName, ...]


def start_over(
    source: SourceSettings,
    lake: Lake,
    pipeline: str,
    *,
    anew: bool = False,
    stop: threading.Event | None = None,
    progress: Callable[[str], None] | None = None,
    reached: Callable[[str], None] = lambda _: None,
) -> StartedOver | None:
    """Give up the changes between bronze and the stream, and request snapshots of all tables instead.

    Existing rows stay.

    Args:
        anew: give up the slot even if its position is right, because the slot cannot be decoded (the
            publication was missing for a while).
        progress: called with a text about the current wait.
        reached: called at named points; fault tests kill the process at these points.

    Returns:
        The effect; None if nothing must be given up: bronze is empty, or its slot continues at bronze's end.

    Raises:
        DefiniteError: ``server-behind``: the server's log ends before bronze's newest LSN; ``slot-missing``:
            with ``manage: false``, with the SQL to run first; a foreign slot; ``lake-in-use``.
        SmeltError: the server does not answer, the lake cannot be written, or the request is cancelled.
    """
    uri = lake.uri("bronze", CHANGES)
    stop = stop or threading.Event()
    control = ControlTables(lake)
    codes = {UNDECODABLE.code, TOO_LARGE.code}
    undecodable = [error for error in control.open_errors() if error.code in codes]
    # A recorded undecodable change has the effect of `anew`.
    anew = anew or bool(undecodable)
    report = partial(_report, stop, progress)
    with connect(source) as connection, translated(source), until_stopped(stop, connection):
        require_own(connection, source, lake, pipeline)
        identity = identify(connection)
        sink = DeltaSink(lake, pipeline, identity)
        relations = sink.relations()
        changes = delta.open_existing(uri)
        position = position_of(changes)
        if position is None:
            return None
        slot = read_slot(connection, source.slot)
        problem = None if slot is None else slot_problem(slot, source, identity.database)
        if problem is not None and problem.code != "slot-lost":
            raise problem
        if slot is not None and slot.confirmed_flush > position.confirm and _is_given_up(changes, position):
            anew = False  # a new slot: bronze confirms none beyond its place
        begin = SessionStart(pipeline, source, lake, STARTING_OVER, report, reached)
        if not anew and _goes_on(connection, begin, position, identity.timeline):
            return None
        slot = read_slot(connection, source.slot)
        # A dropped table cannot be copied and stays in silver in its last state, like any dropped table. A
        # later table of the same name is another relation with a separate snapshot.
        tables = tuple(sorted({relation.table for relation in relations} & tables_of(connection)))
        newest = max([position.frontier, *sink.tables.newest(relations).values()])
        refuse_behind(log_end(connection), newest, where=address_of(source))
        selected = select_recorded(connection, source, lake)
        healthy = [table.table for table in selected if table.problem is None]
        blocked = [table.table for table in selected if table.blocked]
        # A table that is locked now joins at a later poll.
        wanted = {table.table: table.wanted for table in selected if table.wanted is not None}
        ensure_publication(connection, source, healthy, [], without=blocked, wanted=wanted)
        if anew:
            # The decision must be durable before the slot is dropped.
            _give_up(changes, uri, position)
        reached("given-up")
        if slot is not None and (anew or problem is not None or slot.confirmed_flush <= newest):
            _drop(connection, slot, source)
        reached("slot-dropped")
        slot = ensure_slot(connection, source, progress=report)
        reached("slot-made")
        lsn = Lsn(slot.confirmed_flush - 1)
        # C must exceed all LSNs in bronze (`bronze.stream.continuity.refuse_behind`).
        refuse_behind(lsn, newest, where=address_of(source))
        place = Position.first(slot.confirmed_flush, position.version, position.commit_ts)
        marks = [*place.marks(), Transaction(TIMELINE_APP, identity.timeline), *gap_marks(tables, lsn)]
        _commit(changes, uri, marks)
        # If a kill prevents this close, a second request costs another round of snapshots.
        control.close_all(undecodable)
        reached("started-over")
    return StartedOver(position.confirm, lsn, tables)


def _goes_on(
    connection: psycopg.Connection[Any], begin: SessionStart, position: Position, timeline: int
) -> bool:
    """Check whether the stream continues at bronze's place; a streaming reader has proved this."""
    # A slot of a reader just refused becomes free within moments. Wait for a foreign comparison, too.
    for _ in range(_RELEASE_POLLS):
        slot = read_slot(connection, begin.source.slot)
        if slot is None or slot.active_pid is None or is_comparing(connection, slot.active_pid):
            break
        connection.execute("SELECT pg_sleep(%s)", [begin.source.timing.slot_poll])  # ends with a stop, too
    else:
        return True
    try:
        begin.require_history(connection, position, begin.known_slot(connection, position), timeline)
    except DefiniteError as error:
        if error.code not in _HEALED:
            raise
        return False
    return True


def is_starting_over(lake: Lake) -> bool:
    """Check whether a start-over began and did not finish.

    Raises:
        OSError, DeltaError: the lake cannot be read.
    """
    changes = delta.open_table(lake.uri("bronze", CHANGES))
    position = None if changes is None else position_of(changes)
    return changes is not None and position is not None and _is_given_up(changes, position)


def _is_given_up(changes: Table, position: Position) -> bool:
    return bool(changes.transaction_version(STARTING_OVER_APP) == int(position.frontier))


def _give_up(changes: Table, uri: str, position: Position) -> None:
    """Record durably that the log after a position is given up; the handle moves to the newest version.

    Raises:
        DefiniteError: ``lake-in-use``: a reader moved the position meanwhile.
    """
    if _is_given_up(changes, position):
        return
    _commit(changes, uri, [Transaction(STARTING_OVER_APP, int(position.frontier))])
    # Delta accepts a commit of the stream in parallel with the mark, so compare the position again.
    now = position_of(changes)
    if now is None or now.frontier != position.frontier:
        raise lake_in_use(uri, _STOP_READER)


def _commit(changes: Table, uri: str, marks: Sequence[Transaction]) -> None:
    with lake_failures(uri, "bronze"):
        try:
            commit_marks(changes, marks)
        except CommitFailedError as error:
            raise lake_in_use(uri, _STOP_READER) from error


def _report(stop: threading.Event, progress: Callable[[str], None] | None, message: str) -> None:
    """Report the current wait; raise if the request is cancelled."""
    if stop.is_set():
        raise TransientError(
            f"stopped while {message}",
            code="statement-cancelled",
            where="the replication slot",
            remedy="nothing to do if a person stopped the command; otherwise run the command again",
        )
    if progress is not None:
        progress(message)


def _drop(connection: psycopg.Connection[Any], slot: SlotState, source: SourceSettings) -> None:
    statement = f"SELECT pg_drop_replication_slot({quote_literal(slot.name)})"
    if not source.manage:
        raise DefiniteError(
            f"replication slot {slot.name} must be recreated",
            code="slot-missing",
            where=address_of(source),
            remedy=f"run: {statement}; SELECT pg_create_logical_replication_slot({quote_literal(slot.name)}, "
            "'pgoutput'); and this command again (or set source.manage: true)",
        )
    deadline = time.monotonic() + source.timing.slot_release
    while slot.active_pid is not None and time.monotonic() < deadline:  # a walsender is about to end
        connection.execute("SELECT pg_sleep(%s)", [source.timing.slot_poll])  # ends with a stop, too
        slot = read_slot(connection, slot.name) or replace(slot, active_pid=None)
    connection.execute(statement.encode())
