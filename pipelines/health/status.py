"""The state of every layer: the lag ladder, the slot's health, each table and document, open errors.

The status needs no Spark and takes well under a second: delta-rs reads the lake, and a few queries read the
server. Each half is read in parallel with the other and shown without the other, with the reason: a source
without an answer, a lake with an absent store, a lake before the first commit (`pipelines.health.half`).

Each rung of the ladder is as exact as its source allows:

* bytes: the server's WAL head minus the rung's position; unknown without an answer of the server;
* commits: transactions in bronze and not yet in the rung's layer. Bronze cannot count transactions before
  their arrival;
* seconds: age of the oldest such transaction; for the reader, the flush lag measured by the server.

`slot_text` and `slot_warnings` word the slot for `smelt status`, the page and alerts alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from deltasmelt.bronze.checks.ownership import refuse_claims
from deltasmelt.bronze.checks.slot_risk import RiskLevel, SlotRisk, slot_risk
from deltasmelt.bronze.errors import SmeltError
from deltasmelt.bronze.postgres.conninfo import address_of
from deltasmelt.pipelines.health.half import PATIENCE, Half, words
from deltasmelt.pipelines.health.lake_half import LakeReader
from deltasmelt.pipelines.health.server_half import read_server

if TYPE_CHECKING:
    from deltasmelt.bronze.checks.wal_budget import WalBudget
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.control import OpenError
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.bronze.progress import SnapshotView
    from deltasmelt.bronze.setup.slot import SlotState
    from deltasmelt.bronze.store.retention import Boundary
    from deltasmelt.pipelines.health.clustering import ClusteringHint
    from deltasmelt.pipelines.health.lake_half import LakeHalf, TableStatus
    from deltasmelt.pipelines.health.server_half import ServerHalf
    from deltasmelt.pipelines.settings import Pipeline


def slot_text(status: Status) -> str:
    """Return the slot's state in one line."""
    slot = status.slot
    if slot is None:
        return "unknown" if status.source_error else "not created yet"
    read = f"read by backend {slot.active_pid}" if slot.active_pid is not None else "no reader"
    text = f"{slot.name}: wal_status {slot.wal_status}, {read}"
    if slot.invalidation:
        text += f", invalidated ({slot.invalidation})"
    return text


def slot_warnings(status: Status) -> list[str]:
    """Return warnings about the slot, before the server gives the slot up."""
    danger = slot_danger(status)
    return [danger.message] if danger.message else []


def hidden_reader(status: Status) -> str | None:
    """Return why a connected reader's own position is unknown; None if it is known, or no reader reads."""
    reads = status.slot is not None and status.slot.active_pid is not None
    if not reads or any(rung.name == "received" for rung in status.ladder):
        return None
    return (
        "the role cannot see the LSN that the reader has received; as an administrator: "
        "GRANT pg_read_all_stats TO …;"
    )


def slot_danger(status: Status) -> SlotRisk:
    """Return the danger to the slot; `RiskLevel.NONE` for a lost slot and for an unknown state."""
    if status.slot is None or status.slot.wal_status == "lost":
        return SlotRisk(RiskLevel.NONE)
    copies_left = None if status.snapshot is None else status.snapshot.seconds_left
    return slot_risk(status.slot, status.slot_seconds_left, copies_left, status.wal)


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of the lag ladder; unknown figures are None."""

    name: str
    lsn: Lsn | None
    # WAL between the rung's position and the server's head
    bytes: int | None
    seconds: float | None
    # transactions in the steps before and not in this step
    commits: int | None
    # True where `seconds` is only a bound: without a reader nobody knows whether a transaction waits
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class Status:
    """Everything on display in `smelt status`."""

    pipeline: str
    source: str
    source_error: str | None
    lake: str
    # reason for a status without the lake
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
    # the boundary of bronze; None without `bronze.retention`
    retention: Boundary | None = None
    # True after a complete read of the lake; otherwise every fact of the lake is unknown and empty
    lake_read: bool = True

    @property
    def unseen(self) -> dict[str, str]:
        """Halves without an answer, with the reason."""
        errors = {"source": self.source_error, "lake": None if self.lake_read else self.lake_error}
        return {half: reason for half, reason in errors.items() if reason is not None}


class StatusReader:
    """Reads the status of one pipeline repeatedly; one thread at a time.

    Args:
        rate: measure the rate of writing WAL for a moment; a reader of many statuses computes the rate from
            them.
        patience: seconds to wait for the answer of either half.
    """

    def __init__(self, pipeline: Pipeline, *, rate: bool = True, patience: float = PATIENCE) -> None:
        self._pipeline = pipeline
        self._server = Half(
            "the server",
            lambda: read_server(pipeline.source, rate=rate),
            code="server-unreachable",
            patience=patience,
        )
        # A catalog's tables are read by the session of Spark that the calling thread has.
        self._lake = Half(
            "the lake",
            LakeReader(pipeline).read,
            code="lake-unreachable",
            patience=patience,
            threaded=pipeline.lake_address().place.any_thread_reads,
        )
        # reason for the newest status without the lake; None after a complete read
        self.lake_failure: Exception | None = None

    def read(self) -> Status:
        """Read the server and the lake; report a half without an answer, and do not raise."""
        self._server.begin()
        self._lake.begin()
        lake, self.lake_failure = self._lake.answer()
        server, source_failure = self._server.answer()
        if server is not None and lake is not None:
            try:
                refuse_claims(server.claims, self._pipeline.source, lake.changes, self._pipeline.pipeline)
            except SmeltError as error:
                server, source_failure = None, error
        return _status(self._pipeline, server, source_failure, lake, self.lake_failure)


def read_status(pipeline: Pipeline, *, rate: bool = True) -> Status:
    """Read the status once, as `StatusReader` does.

    Raises:
        Exception: the lake cannot be read. A status without the lake would look like a lake without errors.
    """
    reader = StatusReader(pipeline, rate=rate)
    status = reader.read()
    if reader.lake_failure is not None:
        raise reader.lake_failure
    return status


def _status(
    pipeline: Pipeline,
    server: ServerHalf | None,
    source_failure: Exception | None,
    lake: LakeHalf | None,
    lake_failure: Exception | None,
) -> Status:
    lake_error = None if lake_failure is None else words(lake_failure)
    if lake is not None and lake.changes is None:
        lake_error = "the lake is still empty"
    tables = () if lake is None else lake.tables
    place, wal = pipeline.lake_address(), None if server is None else server.wal
    return Status(
        pipeline=pipeline.pipeline,
        source=address_of(pipeline.source),
        source_error=None if source_failure is None else words(source_failure),
        lake=str(place.path or f"catalog {place.catalog}"),
        lake_error=lake_error,
        ladder=_ladder(server, lake, with_gold=bool(pipeline.gold.documents)),
        slot=None if server is None else server.slot,
        slot_seconds_left=None if wal is None else wal.seconds_left,
        snapshot=None if lake is None else lake.snapshot,
        tables=tables if server is None else _with_dropped(tables, server.tables),
        documents=() if lake is None else lake.documents,
        errors=() if lake is None else lake.errors,
        clustering=() if lake is None else lake.clustering,
        wal=wal,
        retention=None if lake is None else lake.retention,
        lake_read=lake is not None,
    )


def _ladder(server: ServerHalf | None, lake: LakeHalf | None, *, with_gold: bool) -> tuple[Rung, ...]:
    position = None if lake is None else lake.position
    frontier = None if position is None else position.frontier
    head = None if server is None else server.head

    def rung(
        name: str,
        lsn: Lsn | None,
        seconds: float | None = None,
        commits: int | None = None,
        *,
        inclusive: bool = False,
    ) -> Rung:
        # A layer contains its LSN; the server's positions are exclusive ends.
        behind = None if lsn is None or head is None else max(0, head - lsn - int(inclusive))
        seconds, commits = (0.0, 0) if behind == 0 else (seconds, commits)
        return Rung(name, lsn, behind, seconds, commits, at_most=bool(seconds) and seconds == unread)

    bronze_seconds: float | None = None
    unread: float | None = None
    if server is not None and server.keeps_up:
        bronze_seconds = server.flush_lag
    # The server measures from the moment of sending. So where much was never sent, or without a connected
    # reader, the rung shows the age of bronze's newest commit: nothing missing is older.
    elif server is not None and position is not None and position.commit_ts is not None:
        bronze_seconds = max(0.0, (datetime.now(UTC) - position.commit_ts).total_seconds())
        if server.slot is None or server.slot.active_pid is None:
            unread = bronze_seconds
    rungs = []
    if server is not None:
        slot = server.slot
        rungs = [
            rung("head", server.head),
            rung("slot confirmed", None if slot is None else slot.confirmed_flush, bronze_seconds),
        ]
        if server.received is not None:
            rungs.append(rung("received", server.received, 0.0 if server.keeps_up else bronze_seconds))
    rungs.append(rung("bronze", frontier, bronze_seconds if lake is not None else None, inclusive=True))
    for name in ("silver", "gold") if with_gold else ("silver",):
        cut = None if lake is None else lake.cuts[name]
        if lake is None or cut is None:
            rungs.append(rung(name, None))
            continue
        commits, oldest = lake.pending[name]
        # Without an answer of the server the lack of bronze is unknown. Silver and gold then show the age of
        # the oldest commit in bronze and not yet in silver or gold.
        age = bronze_seconds if oldest is None else (datetime.now(UTC) - oldest).total_seconds()
        rungs.append(rung(name, cut.commit_lsn, age, commits, inclusive=True))
    return tuple(rungs)


def _with_dropped(tables: tuple[TableStatus, ...], present: set[TableName]) -> tuple[TableStatus, ...]:
    """Mark tables dropped at the source; a table with an open error keeps its state."""
    names = {str(table) for table in present}
    return tuple(
        table if table.name in names or table.error is not None else replace(table, state="dropped")
        for table in tables
    )
