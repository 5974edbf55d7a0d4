"""What the source's server says for a status: its log's head, the slot, the reader's connection, its tables.

Nothing of the lake is read here, so a lake that is away or silent hides none of it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bronze.catalog.queries import tables_of
from bronze.checks.ownership import read_claims
from bronze.checks.wal_budget import rate_of, read_budget
from bronze.lsn import Lsn
from bronze.postgres.connection import connect, translated, written_end
from bronze.setup.slot import read_slot

if TYPE_CHECKING:
    from bronze.checks.ownership import ServerClaims
    from bronze.checks.wal_budget import WalBudget
    from bronze.config.sections import SourceSettings
    from bronze.identifiers import TableName
    from bronze.setup.slot import SlotState

_CONNECT_SECONDS: Final = "4"
_RATE_SECONDS: Final = 0.3
_UNDER_WAY: Final = 1 << 20
"""Bytes of WAL that a reader which keeps up may not have acknowledged; 48 bytes before a commit record, the
walsender may have all of a large transaction still to send."""


@dataclass(frozen=True, slots=True)
class ServerHalf:
    """What the server says.

    Attributes:
        claims: what a lake is compared with.
        keeps_up: a reader is connected and has acknowledged nearly everything.
        flush_lag: seconds, as the server measures them for this reader.
    """

    claims: ServerClaims
    head: Lsn
    slot: SlotState | None
    received: Lsn | None
    keeps_up: bool
    flush_lag: float
    wal: WalBudget | None
    tables: set[TableName]


def read_server(source: SourceSettings, *, rate: bool) -> ServerHalf:
    """Ask the server.

    Args:
        source: the pipeline's.
        rate: measure for a moment how fast WAL is written; a reader of many statuses sees that by itself.

    Raises:
        SmeltError: the server cannot be asked.
    """
    with (
        connect(source, application_name="deltasmelt status", connect_timeout=_CONNECT_SECONDS) as connection,
        translated(source),
    ):
        claims = read_claims(connection, source)
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
    received, acknowledged, flush_lag = row or (None, None, None)
    return ServerHalf(
        claims=claims,
        head=head,
        slot=slot,
        received=None if received is None else Lsn.parse(received),
        keeps_up=acknowledged is not None and head - Lsn.parse(acknowledged) < _UNDER_WAY,
        flush_lag=float(flush_lag or 0),
        wal=wal,
        tables=tables,
    )
