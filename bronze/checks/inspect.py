"""Check the source for everything that would stop or degrade the pipeline, with remedies. Changes nothing."""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.checks.failover import failover_findings
from deltasmelt.bronze.checks.finding import Finding
from deltasmelt.bronze.checks.inheritance import inheritance_findings
from deltasmelt.bronze.checks.publication import publication_findings
from deltasmelt.bronze.checks.server import forgetting_findings, read_server, role_findings, server_findings
from deltasmelt.bronze.checks.slot_risk import RiskLevel, slot_risk
from deltasmelt.bronze.checks.tables import table_findings
from deltasmelt.bronze.checks.wal_budget import rate_of, read_budget
from deltasmelt.bronze.postgres.connection import log_end, primary_log_end, translated
from deltasmelt.bronze.setup.failover import slot_statement
from deltasmelt.bronze.setup.slot import read_slot, slot_problem

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import psycopg

    from deltasmelt.bronze.checks.server import Server
    from deltasmelt.bronze.checks.wal_budget import WalBudget
    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.setup.slot import SlotState

_LOW_WAL_BYTES: Final = 1 << 30
_RATE_SECONDS: Final = 0.3
"""Shortest time over which the rate of WAL is measured; the time of the other queries counts."""


def inspect(
    connection: psycopg.Connection[Any],
    source: SourceSettings,
    recorded: Mapping[TableName, int] = MappingProxyType({}),
    known: Collection[TableName] = (),
) -> list[Finding]:
    """Return all findings about the source, most general first.

    Args:
        connection: idle, in autocommit mode.
        recorded: numbers of the rules by which the lake carries tables (`bronze.store.rule_marks`).
        known: all names in `bronze.relations`, as the reader knows them.

    Raises:
        SmeltError: the server failed during a check.
    """
    with translated(source):
        head, started = primary_log_end(connection), time.monotonic()
        server = read_server(connection)
        slot = read_slot(connection, source.slot)
        tables = select_tables(connection, source, sizes=False, recorded=recorded)
        findings = [
            *server_findings(server, connection.info.server_version, slot),
            *forgetting_findings(connection.info.server_version),
            *role_findings(server, source),
            *table_findings(connection, source, tables, known),
            *inheritance_findings(connection, tables),
            *publication_findings(connection, source, tables, may_create=server.may_create, role=server.role),
            *failover_findings(connection, source, slot, server.service),
        ]
        budget = None
        if slot is not None and slot.restart and head is not None:
            time.sleep(max(0.0, started + _RATE_SECONDS - time.monotonic()))
            rate = rate_of(head, log_end(connection), time.monotonic() - started)
            budget = read_budget(connection, slot, rate=rate)
        return [*findings, *_slot(server, slot, source, budget)]


def _slot(
    server: Server, slot: SlotState | None, source: SourceSettings, budget: WalBudget | None
) -> Iterator[Finding]:
    subject = f"slot {source.slot}"
    if slot is None:
        if source.manage:
            yield Finding(
                level="info",
                code="slot-missing",
                subject=subject,
                message="does not exist yet; the first start creates the slot",
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
            message=f"backend {slot.active_pid} reads the slot; a second start would be refused",
        )
    if budget is None:
        return
    quarter = (server.wal_keep << 20) // 4
    low = slot.safe_wal_size is not None and slot.safe_wal_size < min(_LOW_WAL_BYTES, quarter)
    danger = slot_risk(slot, budget.seconds_left, None, budget)
    if slot.wal_status == "unreserved" or low or danger.level > RiskLevel.NONE:
        start = "" if budget.reads else "start the pipeline; "
        size = "<more>" if budget.limit is not None else "<well above the WAL held back>"
        yield Finding(
            level="warning",
            code="slot-at-risk",
            subject=subject,
            message=f"wal_status is {slot.wal_status}; {budget.message}",
            remedy=f"{start}{server.service.setting('max_slot_wal_keep_size', size)}",
        )
    else:
        yield Finding(level="info", code="wal-held", subject=subject, message=budget.message)
