"""A log with known contents, and its reader without a server: stream, sink, control tables.

`Server` plays PostgreSQL's part: the server sends whole transactions in order from the requested position,
but never from before the confirmed position. So a confirmed change that bronze lacks is lost, as with
PostgreSQL.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from deltasmelt.bronze.config.sections import BronzeSettings
from deltasmelt.bronze.drift.observed_storage import ObservedStorage
from deltasmelt.bronze.drift.storage import Storage
from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.failures import lake_failures
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.pgoutput.decoder import StreamDecoder
from deltasmelt.bronze.pgoutput.framing import Block
from deltasmelt.bronze.postgres.connection import ServerIdentity
from deltasmelt.bronze.shapes import Column, PgType, Relation
from deltasmelt.bronze.snapshot.rows import SnapshotRows
from deltasmelt.bronze.store.landing import Landing
from deltasmelt.bronze.store.position import Position
from deltasmelt.bronze.store.relations import ShapeLog
from deltasmelt.bronze.store.sink import DeltaSink
from deltasmelt.bronze.stream.receiver import Batch
from deltasmelt.bronze.stream.replication import Keepalive
from deltasmelt.bronze.stream.session import StreamSession
from tests.bronze import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deltasmelt.bronze.stream.receiver import Receiver

IDENTITY = ServerIdentity(system_identifier=7, timeline=1, version=160000, database="shop")
ITEMS, COPIED = TableName("public", "items"), TableName("public", "copied")
COPIED_SHAPE = Relation(
    9, COPIED, (Column("id", 1, PgType("base", "text", oid=25), "text"),), ("id",), "d", Lsn(150)
)
SNAPSHOT = Lsn(150)
BEGIN = Lsn(50)
MOMENT = datetime(2026, 11, 22, tzinfo=UTC)


@dataclass(frozen=True)
class Transaction:
    """The messages of one transaction, grouped into the parts in which they arrive."""

    commit_lsn: int
    parts: list[list[bytes]]

    @property
    def end(self) -> int:
        return self.commit_lsn + 16


def transaction(lsn: int, rows: int, *, columns: int = 1, parts: int = 1, size: int = 10) -> Transaction:
    """Return inserts into a table with `columns` columns, arriving in `parts` parts."""
    shape = wire.plain_relation(1, "items", [f"c{number}" for number in range(columns)])
    cells = [f"{lsn}-{row}".ljust(size, ".") for row in range(rows)]
    inserts = [wire.insert(1, [cell] * columns, lsn) for cell in cells]
    cut = -(-rows // parts)
    arriving = [inserts[at : at + cut] for at in range(0, rows, cut)]
    arriving[0] = [wire.begin(lsn), shape, *arriving[0]]
    arriving[-1] = [*arriving[-1], wire.commit(lsn)]
    return Transaction(lsn, arriving)


LOG = [
    transaction(100, 3),
    transaction(200, 40, parts=4, size=60),
    transaction(300, 2, columns=2),
    *(transaction(lsn, 2, columns=2) for lsn in range(400, 800, 100)),
]


@dataclass
class Server:
    """The source's end of the stream."""

    log: Sequence[Transaction]
    confirmed: Lsn = BEGIN
    confirmations: list[Lsn] = field(default_factory=list)
    on_confirm: Callable[[Lsn], None] | None = None

    def batches(self, start: Lsn) -> list[Batch]:
        """Return the batches that the server sends from `start` on, then a keepalive."""
        begin = max(start, self.confirmed)
        sent = [
            Batch([Block.of(part)], sum(map(len, part)))
            for entry in self.log
            if entry.end > begin
            for part in entry.parts
        ]
        end = Lsn(max(begin, self.log[-1].end + 10 if self.log else 0))
        return [*sent, Batch([], keepalive=Keepalive(end, MOMENT))]


class ScriptedReceiver:
    """A receiver that returns a server's messages batch by batch."""

    def __init__(self, server: Server, start: Lsn) -> None:
        self._server = server
        self._batches = server.batches(start)
        self.received = start

    def take(self, *, most: int, timeout: float) -> Batch | None:  # noqa: ARG002 - as the receiver's
        return self._batches.pop(0) if self._batches else None

    def confirm(self, durable: Lsn, *, at_once: bool = False) -> None:  # noqa: ARG002 - as the receiver's
        assert durable >= self._server.confirmed, "the slot would go backwards"
        if self._server.on_confirm is not None:
            self._server.on_confirm(durable)
        self._server.confirmed = durable
        self._server.confirmations.append(durable)


class Process:
    """One process of a reader: opens the lake once, and starts a new session after each retryable fault."""

    def __init__(self, server: Server, lake_path: str) -> None:
        self._server = server
        self._lake = Lake(lake_path)
        self._landing: Landing | None = None

    def run(self, *, sessions: int = 4) -> int:
        """Read to the log's end and return the number of sessions."""
        for number in range(1, sessions + 1):
            try:
                with lake_failures("lake"):
                    self._session()
            except TransientError:
                continue
            return number
        raise AssertionError("the faults do not heal")

    def _session(self) -> None:
        if self._landing is None:
            sink = DeltaSink(self._lake, "shop", IDENTITY)
            shapes = ShapeLog(sink.relations(), sink.add_relations)
            self._landing = Landing(sink, shapes, resnapshots=False)
        landing = self._landing
        landing.sink.discard()
        position = landing.sink.position
        if position is None:
            first = Position(Lsn(self._server.confirmed - 1), self._server.confirmed, 0, None)
            position = landing.sink.commit(first)
        landing.sink.claim()
        receiver = ScriptedReceiver(self._server, position.confirm)
        receiver.confirm(position.confirm)
        decoder = StreamDecoder(no_catalog, selected, landing.shapes.until(position.frontier))
        settings = BronzeSettings(flush_interval=1e-6, heartbeat=1e-6)
        stream = StreamSession(cast("Receiver", receiver), decoder, position, landing, settings)
        control = ControlTables(self._lake)
        try:
            control.open_error(OpenError("pipeline", "shop", "waits", "for nothing"))
            copy(landing)
            while stream.step(patience=0):
                pass
            control.close_errors("pipeline", "shop")
            stream.finish()
        finally:
            stream.close()


def no_catalog(_relation_id: int, _lsn: Lsn) -> Relation | None:
    return None


def selected(_table: TableName) -> bool:
    return True


def copy(landing: Landing) -> None:
    """Copy the second table unless its copy exists, in the order of `bronze.snapshot.workers`."""
    sink = landing.sink
    if not sink.tables.needing_copy([COPIED]):
        return
    rows = SnapshotRows(COPIED_SHAPE, SNAPSHOT, MOMENT)
    first, second = sink.parts("snapshot-9"), sink.parts("snapshot-9")
    first.write(rows.rows(pa.array(["1", "2"]), 0))
    second.write(rows.rows(pa.array(["3"]), 1 << 32))
    second.write(rows.end(2 << 32))
    parts = [*first.finish(), *second.finish()]
    landing.shapes.record([COPIED_SHAPE])
    sink.tables.record_storages({COPIED: ObservedStorage(Storage(9, {}, {}))})
    sink.tables.note_membership({COPIED: 1}, [], SNAPSHOT)
    sink.tables.commit_snapshot(COPIED, SNAPSHOT, parts)


def expected(log: Sequence[Transaction]) -> list[tuple[Any, ...]]:
    """Return the expected rows of `bronze.changes` for a log and for the copied table."""
    decoder = StreamDecoder(no_catalog, selected)
    rows = [row for entry in log for part in entry.parts for row in decoder.feed(part).changes.to_pylist()]
    snapshot = SnapshotRows(COPIED_SHAPE, SNAPSHOT, MOMENT)
    copied = [
        snapshot.rows(pa.array(["1", "2"]), 0),
        snapshot.rows(pa.array(["3"]), 1 << 32),
        snapshot.end(2 << 32),
    ]
    return plain([*rows, *(row for table in copied for row in table.to_pylist())])


def plain(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return rows without their arrival time, in a fixed order."""
    compared = [
        tuple((name, str(value)) for name, value in row.items() if name != "ingested_at") for row in rows
    ]
    return sorted(compared)
