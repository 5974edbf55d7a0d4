"""The server's half of a status: the log's head, the slot, the reader's connection, the tables.

This module reads nothing from the lake: an absent or silent lake hides no fact of the server.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.catalog.queries import tables_of
from deltasmelt.bronze.checks.ownership import read_claims
from deltasmelt.bronze.checks.wal_budget import rate_of, read_budget
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.postgres.connection import connect, translated, written_end
from deltasmelt.bronze.setup.slot import read_slot

if TYPE_CHECKING:
    from deltasmelt.bronze.checks.ownership import ServerClaims
    from deltasmelt.bronze.checks.wal_budget import WalBudget
    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.setup.slot import SlotState

_CONNECT_SECONDS: Final = "4"
_RATE_SECONDS: Final = 0.3
_UNDER_WAY: Final = 1 << 20
"""Bytes of WAL without acknowledgement that are normal for a reader without a backlog. At 48 bytes before a
commit record, the walsender may still have to send all of a large transaction."""


@dataclass(frozen=True, slots=True)
class ServerHalf:
    """Answers of the server, read at nearly the same moment."""

    # the server's identity, for the comparison with the lake
    claims: ServerClaims
    head: Lsn
    slot: SlotState | None
    # None without a connected reader, and for a role that may not see the reader's connection
    received: Lsn | None
    # a reader is connected and has acknowledged nearly everything
    keeps_up: bool
    # seconds, as measured by the server for this reader
    flush_lag: float
    wal: WalBudget | None
    tables: set[TableName]


def read_server(source: SourceSettings, *, rate: bool) -> ServerHalf:
    """Query the server.

    Args:
        rate: measure the rate of writing WAL for a moment; needless for a series of statuses.

    Raises:
        SmeltError: the server refuses the connection or a query.
    """
    with (
        connect(source, application_name="deltasmelt status", connect_timeout=_CONNECT_SECONDS) as connection,
        translated(source),
    ):
        claims = read_claims(connection, source)
        head, start = written_end(connection), time.monotonic()
        slot = read_slot(connection, source.slot)
        row = connection.execute(
            "SELECT coalesce(write_lsn, sent_lsn)::text, write_lsn::text, extract(epoch FROM flush_lag) "
            "FROM pg_stat_replication WHERE pid = %s",
            [None if slot is None else slot.active_pid],
        ).fetchone()
        tables = tables_of(connection)
        wal = None
        if slot is not None and slot.restart:
            rate_written = None
            if rate:
                time.sleep(_RATE_SECONDS)
                rate_written = rate_of(head, written_end(connection), time.monotonic() - start)
            wal = read_budget(connection, slot, rate=rate_written)
    received, acknowledged, flush_lag = row or (None, None, None)
    if row is not None and acknowledged is None:
        # Only a member of pg_read_all_stats sees more of a walsender than its process. The slot shows the
        # position that the reader has confirmed.
        acknowledged = None if slot is None else str(slot.confirmed_flush)
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
