"""Where every layer stands: the lag ladder, the slot's health, each table and document, open errors.

Works without Spark, in well under a second: the lake is read through delta-rs, the server is asked by three
queries. Each half is shown without the other, with the reason: a source that is down, a lake that does not
exist yet.

How the ladder is measured, at each rung as exactly as its source allows:

* bytes: the server's WAL head minus the rung's position; where the server is down, what bronze holds is the
  head;
* commits: transactions in bronze that the rung lacks. Bronze itself cannot know what it has not received;
* seconds: age of the oldest such transaction; for the reader what the server says (flush lag). That is
  measured from when something was sent. So where much was not even received yet, or no reader is connected,
  it is the age of what bronze holds: what it lacks is no older.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from bronze.catalog.queries import tables_of
from bronze.checks.ownership import require_own
from bronze.checks.wal_budget import rate_of, read_budget
from bronze.errors import SmeltError
from bronze.lake import delta
from bronze.lake.control_tables import ControlTables
from bronze.lsn import Lsn
from bronze.postgres.connection import connect, translated, written_end
from bronze.postgres.conninfo import address_of
from bronze.setup.slot import read_slot
from bronze.store.contract import CHANGES
from bronze.store.marks import snapshot_of
from bronze.store.position import position_of
from bronze.store.relations import read_relations
from pipelines.health.clustering import clustering_hints
from pipelines.runtime.maintenance_errors import stops
from pipelines.runtime.reader_progress import read_progress
from silver.schema.decimals import UNREPRESENTABLE_ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalake import DeltaTable

    from bronze.checks.wal_budget import WalBudget
    from bronze.identifiers import TableName
    from bronze.lake.control import Cut, OpenError, Run
    from bronze.lake.location import Layer
    from bronze.progress import SnapshotView
    from bronze.setup.slot import SlotState
    from bronze.shapes import Relation
    from bronze.store.position import Position
    from pipelines.health.clustering import ClusteringHint
    from pipelines.settings import Pipeline

_CONNECT_SECONDS: Final = "4"
_RATE_SECONDS: Final = 0.3
_UNDER_WAY: Final = 1 << 20
"""Bytes of WAL that a reader which keeps up may not have acknowledged; 48 bytes before a commit record, the
walsender may have all of a large transaction still to send."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of the lag ladder; None where it is not known.

    Attributes:
        bytes: of WAL behind the server's head.
        commits: transactions that the steps before it have and this one lacks.
    """

    name: str
    lsn: Lsn | None
    bytes: int | None
    seconds: float | None
    commits: int | None


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One table or document.

    Attributes:
        state: ``streaming``, ``waiting`` (in bronze, not yet in its layer; or lacking changes until it is
            resnapshotted), ``snapshot``, ``stopped`` or ``dropped`` (at the source; its layer keeps what it
            was last).
        changes: in its newest cycle.
        unrepresentable: rows, at most, with values that their types do not hold; None where nobody counts.
    """

    name: str
    state: str
    commit_lsn: Lsn | None
    delta_version: int | None
    changes: int | None
    seconds: float | None
    error: str | None
    unrepresentable: int | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """Everything that `smelt status` shows."""

    pipeline: str
    source: str
    source_error: str | None
    lake: str
    lake_error: str | None
    ladder: tuple[Rung, ...]
    slot: SlotState | None
    slot_seconds_left: float | None
    snapshot: SnapshotView | None
    tables: tuple[TableStatus, ...]
    documents: tuple[TableStatus, ...]
    errors: tuple[OpenError, ...]
    clustering: tuple[ClusteringHint, ...] = ()
    wal: WalBudget | None = None


@dataclass(frozen=True, slots=True)
class _Server:
    """What the server says."""

    head: Lsn
    slot: SlotState | None
    received: Lsn | None
    keeps_up: bool
    flush_lag: float
    wal: WalBudget | None
    tables: set[TableName]


def read_status(pipeline: Pipeline, *, rate: bool = True) -> Status:
    """Ask server and lake. A half that cannot be asked is reported, not raised.

    Args:
        pipeline: the pipeline.
        rate: measure for a moment how fast WAL is written; who looks again and again sees that by itself.
    """
    server, source_error = None, None
    try:
        server = _ask_server(pipeline, rate=rate)
    except SmeltError as error:
        source_error = str(error)
    lake = pipeline.lake_address()
    changes = delta.open_table(delta.location(lake, "bronze", CHANGES))
    position = None if changes is None else position_of(changes)
    control = ControlTables(lake)
    silver, gold = control.latest_cut("silver"), control.latest_cut("gold")
    errors = tuple(control.open_errors())
    slot = None if server is None else server.slot
    relations = read_relations(lake)
    tables = _tables(relations, changes, control, silver, errors)
    wal = None if server is None else server.wal
    return Status(
        pipeline=pipeline.pipeline,
        source=address_of(pipeline.source),
        source_error=source_error,
        lake=lake.path or f"catalog {lake.catalog}",
        lake_error=None if changes is not None else "nothing has been written there yet",
        ladder=_ladder(server, changes, position, silver, gold, with_gold=bool(pipeline.gold.documents)),
        slot=slot,
        slot_seconds_left=None if wal is None else wal.seconds_left,
        snapshot=read_progress(lake),
        tables=tables if server is None else _with_dropped(tables, server.tables),
        documents=_documents(control, gold, errors),
        errors=errors,
        clustering=clustering_hints(pipeline, relations, {} if silver is None else silver.tables),
        wal=wal,
    )


def _ask_server(pipeline: Pipeline, *, rate: bool) -> _Server:
    source = pipeline.source
    with (
        connect(source, application_name="deltasmelt status", connect_timeout=_CONNECT_SECONDS) as connection,
        translated(source),
    ):
        require_own(connection, source, pipeline.lake_address(), pipeline.pipeline)
        head, begun = written_end(connection), time.monotonic()
        slot = read_slot(connection, source.slot)
        row = connection.execute(
            "SELECT coalesce(write_lsn, sent_lsn)::text, write_lsn::text, extract(epoch FROM flush_lag) "
            "FROM pg_stat_replication WHERE pid = %s",
            [None if slot is None else slot.active_pid],
        ).fetchone()
        tables = tables_of(connection)
        wal = None
        if slot is not None and slot.restart:
            written = None
            if rate:
                time.sleep(_RATE_SECONDS)
                written = rate_of(head, written_end(connection), time.monotonic() - begun)
            wal = read_budget(connection, slot, rate=written)
    received, told, flush_lag = row or (None, None, None)
    return _Server(
        head=head,
        slot=slot,
        received=None if received is None else Lsn.parse(received),
        keeps_up=told is not None and head - Lsn.parse(told) < _UNDER_WAY,
        flush_lag=float(flush_lag or 0),
        wal=wal,
        tables=tables,
    )


def _ladder(
    server: _Server | None,
    changes: DeltaTable | None,
    position: Position | None,
    silver: Cut | None,
    gold: Cut | None,
    *,
    with_gold: bool,
) -> tuple[Rung, ...]:
    frontier = None if position is None else position.frontier
    head = server.head if server is not None else None if frontier is None else Lsn(frontier + 1)

    def rung(
        name: str,
        lsn: Lsn | None,
        seconds: float | None = None,
        commits: int | None = None,
        *,
        inclusive: bool = False,
    ) -> Rung:
        # A layer holds its LSN; the server's positions are the ends of what was reached.
        behind = None if lsn is None or head is None else max(0, head - lsn - int(inclusive))
        return Rung(name, lsn, behind, 0.0 if behind == 0 else seconds, 0 if behind == 0 else commits)

    bronze_seconds: float | None = None
    if server is not None and server.keeps_up:
        bronze_seconds = server.flush_lag
    elif position is not None and position.commit_ts is not None:
        bronze_seconds = max(0.0, (datetime.now(UTC) - position.commit_ts).total_seconds())
    layers = [("silver", silver)] + ([("gold", gold)] if with_gold else [])
    pending = _pending(changes, [None if cut is None else cut.commit_lsn for _, cut in layers])
    rungs = []
    if server is not None:
        slot = server.slot
        rungs = [
            rung("head", server.head),
            rung("slot confirmed", None if slot is None else slot.confirmed_flush, bronze_seconds),
            rung("received", server.received, 0.0 if server.keeps_up else bronze_seconds),
        ]
    rungs.append(rung("bronze", frontier, bronze_seconds, inclusive=True))
    for (name, cut), (commits, oldest) in zip(layers, pending, strict=True):
        age = bronze_seconds if oldest is None else (datetime.now(UTC) - oldest).total_seconds()
        age = None if cut is None else age
        rungs.append(rung(name, None if cut is None else cut.commit_lsn, age, commits, inclusive=True))
    return tuple(rungs)


def _pending(
    changes: DeltaTable | None, positions: list[Lsn | None]
) -> list[tuple[int | None, datetime | None]]:
    """For each position: transactions in bronze after it, and the commit time of the oldest of them.

    Each transaction has one row that ends it, so rows are counted, batch by batch, in files whose statistics
    reach that far.
    """
    known = [int(position) for position in positions if position is not None]
    if changes is None or not known:
        return [(None, None) for _ in positions]
    counts: dict[int, int] = dict.fromkeys(known, 0)
    oldest: dict[int, datetime] = {}
    for batch in delta.batches(
        changes, ["commit_lsn", "commit_ts"], after=("commit_lsn", min(known)), ending="end_of_tx"
    ):
        for position in counts:
            later = batch.filter(pc.field("commit_lsn") > position)
            if later.num_rows:
                counts[position] += later.num_rows
                first = pc.min(later["commit_ts"]).as_py()
                if first is not None:
                    oldest[position] = min(oldest.get(position, first), first)
    return [
        (None, None) if position is None else (counts[int(position)], oldest.get(int(position)))
        for position in positions
    ]


def _tables(
    relations: Sequence[Relation],
    changes: DeltaTable | None,
    control: ControlTables,
    silver: Cut | None,
    errors: tuple[OpenError, ...],
) -> tuple[TableStatus, ...]:
    newest = {relation.table: relation for relation in relations}
    stopped = {error.name: error for error in errors if error.scope == "table" and stops(error)}
    found = []
    for table in sorted(newest):
        names = (str(table), table.silver_name)  # the reader names the source's table, silver its own
        error = next((stopped.pop(name) for name in names if name in stopped), None)
        waiting = changes is not None and snapshot_of(changes, table) is not None
        before = "waiting" if waiting else "snapshot"
        found.append(_state(control, "silver", table.silver_name, str(table), silver, error, before=before))
    found += [
        TableStatus(name, "stopped", error.commit_lsn, None, None, None, error.message)
        for name, error in sorted(stopped.items())
    ]
    return tuple(found)


def _with_dropped(tables: tuple[TableStatus, ...], there: set[TableName]) -> tuple[TableStatus, ...]:
    """Those that the source no longer has; one with an error stays as it is."""
    names = {str(table) for table in there}
    return tuple(
        table if table.name in names or table.error is not None else replace(table, state="dropped")
        for table in tables
    )


def _documents(
    control: ControlTables, gold: Cut | None, errors: tuple[OpenError, ...]
) -> tuple[TableStatus, ...]:
    stopped = {error.name: error for error in errors if error.scope == "document"}
    names = sorted(stopped.keys() | (gold.tables.keys() if gold is not None else set()))
    return tuple(_state(control, "gold", name, name, gold, stopped.get(name)) for name in names)


def _state(  # noqa: PLR0917 - each is one column of what is shown
    control: ControlTables,
    layer: Layer,
    name: str,
    shown: str,
    cut: Cut | None,
    error: OpenError | None,
    *,
    before: str = "waiting",
) -> TableStatus:
    """One table of a layer; `before` is its state while no cut names it."""
    version = None if cut is None else cut.tables.get(name)
    runs = control.runs(layer, name, limit=1)
    return TableStatus(
        name=shown,
        state="stopped" if error is not None else before if version is None else "streaming",
        commit_lsn=None if cut is None or version is None else cut.commit_lsn,
        delta_version=version,
        changes=runs[0].changes if runs else None,
        seconds=runs[0].seconds if runs else None,
        error=None if error is None else error.message,
        unrepresentable=_lost(runs[0]) if runs else None,
    )


def _lost(run: Run) -> int | None:
    count = run.details.get(UNREPRESENTABLE_ROWS)
    return count if isinstance(count, int) else None
