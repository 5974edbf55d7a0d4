"""Looks at the source and says what would stop or degrade the pipeline, with its cure. Changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bronze.catalog.select import select_tables
from bronze.checks.failover import failover_findings
from bronze.checks.finding import Finding
from bronze.checks.publication import publication_findings
from bronze.checks.server import forgetting_findings, read_server, role_findings, server_findings
from bronze.checks.tables import table_findings
from bronze.postgres.connection import translated
from bronze.setup.failover import slot_statement
from bronze.setup.slot import read_slot, slot_problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from bronze.checks.server import Server
    from bronze.config.sections import SourceSettings
    from bronze.setup.slot import SlotState

_LOW_WAL_BYTES: Final = 1 << 30


def inspect(connection: psycopg.Connection[Any], source: SourceSettings) -> list[Finding]:
    """Everything worth knowing about the source, most general first.

    Args:
        connection: idle, in autocommit mode.
        source: whose server, tables, publication and slot.

    Raises:
        SmeltError: the server failed while being asked.
    """
    with translated(source):
        server = read_server(connection)
        slot = read_slot(connection, source.slot)
        tables = select_tables(connection, source, sizes=False)
        return [
            *server_findings(server, connection.info.server_version, slot),
            *forgetting_findings(connection.info.server_version),
            *role_findings(server, source),
            *table_findings(connection, source, tables),
            *publication_findings(connection, source, tables, may_create=server.may_create, role=server.role),
            *_slot(server, slot, source),
            *failover_findings(connection, source, slot, server.service),
        ]


def _slot(server: Server, slot: SlotState | None, source: SourceSettings) -> Iterator[Finding]:
    subject = f"slot {source.slot}"
    if slot is None:
        if source.manage:
            yield Finding(
                level="info",
                code="slot-missing",
                subject=subject,
                message="does not exist yet; the first start makes it",
            )
        else:
            yield Finding(
                level="error",
                code="slot-missing",
                subject=subject,
                message="does not exist, and source.manage is false",
                remedy=f"{slot_statement(source)};",
            )
        return
    problem = slot_problem(slot, source, server.database)
    if problem is not None:
        yield Finding.of(problem, subject)
        return
    if slot.active_pid is not None:
        yield Finding(
            level="info",
            code="slot-in-use",
            subject=subject,
            message=f"backend {slot.active_pid} reads it; a second start would be refused",
        )
    quarter = (server.wal_keep << 20) // 4
    low = slot.safe_wal_size is not None and slot.safe_wal_size < min(_LOW_WAL_BYTES, quarter)
    if slot.wal_status == "unreserved" or low:
        left = f"{max(0, slot.safe_wal_size or 0) / 1e6:,.0f} MB"
        yield Finding(
            level="warning",
            code="slot-at-risk",
            subject=subject,
            message=f"wal_status is {slot.wal_status}; {left} may be written until the server gives it up",
            remedy=f"start the pipeline; {server.service.setting('max_slot_wal_keep_size', '<more>')}",
        )
