"""Looks at the source and says what would stop or degrade the pipeline, with its cure. Changes nothing.

The server's settings, room and role are read in one query. Whether we may replicate is also *tried*: a
walsender is connected for a moment, because pg_hba.conf, a pooler, or a managed service's own rules show
nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg

from bronze.catalog import select_tables
from bronze.conninfo import replication_conninfo
from bronze.findings import Finding
from bronze.identifiers import quote_identifier, quote_literal
from bronze.publication_findings import publication_findings
from bronze.server import translated
from bronze.slots import read_slot, slot_problem
from bronze.source_errors import translate
from bronze.table_findings import table_findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bronze.settings import SourceSettings
    from bronze.slots import SlotState

_SHORT_TIMEOUT_MILLISECONDS: Final = 10_000
_LOW_WAL_BYTES: Final = 1 << 30

_SERVER_QUERY: Final = """
    SELECT current_database(),
           current_user,
           pg_is_in_recovery(),
           current_setting('wal_level'),
           current_setting('max_replication_slots')::int,
           (SELECT count(*) FROM pg_replication_slots),
           current_setting('max_wal_senders')::int,
           (SELECT count(*) FROM pg_stat_replication),
           (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
           (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'),
           r.rolsuper,
           r.rolsuper OR r.rolreplication,
           EXISTS (SELECT FROM pg_roles WHERE rolname = 'rds_replication'),
           (SELECT coalesce(bool_or(pg_has_role(m.oid, 'USAGE')), false)
            FROM pg_roles m WHERE m.rolname IN ('rds_replication', 'rds_superuser')),
           has_database_privilege(current_database(), 'CREATE')
    FROM pg_roles r
    WHERE r.rolname = current_user
"""


@dataclass(frozen=True, slots=True)
class _Server:
    """Settings, room and role; sizes in MB, times in milliseconds, -1 and 0 as PostgreSQL means them."""

    database: str
    role: str
    in_recovery: bool
    wal_level: str
    slots: int
    slots_used: int
    senders: int
    senders_used: int
    wal_keep: int
    sender_timeout: int
    superuser: bool
    replicates: bool
    has_rds_role: bool
    in_rds_role: bool
    may_create: bool


def inspect(connection: psycopg.Connection[Any], source: SourceSettings) -> list[Finding]:
    """Everything worth knowing about the source, most general first.

    Args:
        connection: idle, in autocommit mode.
        source: whose server, tables, publication and slot.

    Raises:
        SmeltError: the server failed while being asked.
    """
    with translated(source):
        row = connection.execute(_SERVER_QUERY).fetchone()
        assert row is not None  # noqa: S101 - the role we are connected as exists
        server = _Server(*row)
        slot = read_slot(connection, source.slot)
        tables = select_tables(connection, source, sizes=False)
        return [
            *_settings(server),
            *_room(server, slot),
            *_role(server, source),
            *table_findings(connection, source, tables),
            *publication_findings(connection, source, tables, may_create=server.may_create, role=server.role),
            *_slot(server, slot, source),
        ]


def _settings(server: _Server) -> Iterator[Finding]:
    if server.in_recovery:
        yield Finding(
            "error", "server-in-recovery", "server",
            "the server is a standby: neither publication nor heartbeat can be written there",
            "give the primary as the source",
        )  # fmt: skip
    if server.wal_level != "logical":
        yield Finding(
            "error", "wal-level", "wal_level",
            f"wal_level is {server.wal_level}; changes can only be decoded with logical",
            "ALTER SYSTEM SET wal_level = logical; then restart PostgreSQL (Amazon RDS: "
            "rds.logical_replication = 1 in the parameter group; Cloud SQL: flag cloudsql.logical_decoding; "
            "Azure: server parameter wal_level)",
        )  # fmt: skip
    if server.wal_keep == -1:
        yield Finding(
            "warning", "wal-keep-unlimited", "max_slot_wal_keep_size",
            "while the pipeline stands still, the server keeps its log until its disk is full",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();",
        )  # fmt: skip
    else:
        yield Finding(
            "info", "wal-keep-limited", "max_slot_wal_keep_size",
            f"the server gives the slot up once it lies {server.wal_keep} MB behind",
        )  # fmt: skip
    if 0 < server.sender_timeout < _SHORT_TIMEOUT_MILLISECONDS:
        yield Finding(
            "warning", "wal-sender-timeout-short", "wal_sender_timeout",
            f"wal_sender_timeout is {server.sender_timeout} ms; a short pause of the network cuts the stream",
            "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf();",
        )  # fmt: skip


def _room(server: _Server, slot: SlotState | None) -> Iterator[Finding]:
    """The stream needs a slot and a walsender; a snapshot one more of each for as long as it runs."""
    free = server.slots - server.slots_used
    own = 0 if slot is not None else 1
    if free <= own:
        stops = free < own
        yield Finding(
            "error" if stops else "warning", "slots-exhausted", "max_replication_slots",
            f"{server.slots_used} of {server.slots} replication slots are taken; "
            + ("none is left for the pipeline" if stops else "none would be left for a snapshot"),
            "SELECT slot_name, active, wal_status FROM pg_replication_slots; drop those nobody uses "
            "(SELECT pg_drop_replication_slot('…');), or "
            f"ALTER SYSTEM SET max_replication_slots = {server.slots + 10}; and restart PostgreSQL",
        )  # fmt: skip
    free = server.senders - server.senders_used
    own = 0 if slot is not None and slot.active_pid is not None else 1
    if free <= own:
        stops = free < own
        yield Finding(
            "error" if stops else "warning", "senders-exhausted", "max_wal_senders",
            f"{server.senders_used} of {server.senders} walsenders are taken; "
            + ("none is left for the stream" if stops else "none would be left for a snapshot"),
            f"ALTER SYSTEM SET max_wal_senders = {server.senders + 10}; and restart PostgreSQL",
        )  # fmt: skip


def _role(server: _Server, source: SourceSettings) -> Iterator[Finding]:
    role = quote_identifier(server.role)
    if not (server.replicates or server.in_rds_role):
        grant = (
            f"GRANT rds_replication TO {role};" if server.has_rds_role else f"ALTER ROLE {role} REPLICATION;"
        )
        yield Finding(
            "error", "replication-privilege", f"role {server.role}",
            "the role may not replicate: no stream, no slot",
            f"as an administrator: {grant}",
        )  # fmt: skip
    elif server.senders > server.senders_used:
        try:
            psycopg.connect(replication_conninfo(source, application_name="deltasmelt check")).close()
        except psycopg.Error as error:
            reason = translate(error, source)
            yield Finding(
                "error", reason.code, "replication connection",
                f"an ordinary connection is admitted, one for replication is not: {reason.message}",
                f"{reason.remedy}; a pooler in between must be passed by",
            )  # fmt: skip


def _slot(server: _Server, slot: SlotState | None, source: SourceSettings) -> Iterator[Finding]:
    subject = f"slot {source.slot}"
    name = quote_literal(source.slot)
    if slot is None:
        make = f"SELECT pg_create_logical_replication_slot({name}, 'pgoutput');"
        if source.manage:
            yield Finding("info", "slot-missing", subject, "does not exist yet; the first start makes it")
        else:
            yield Finding(
                "error", "slot-missing", subject, "does not exist, and source.manage is false", make
            )
        return
    problem = slot_problem(slot, source, server.database)
    if problem is not None:
        yield Finding.of(problem, subject)
        return
    if slot.active_pid is not None:
        yield Finding(
            "info", "slot-in-use", subject,
            f"backend {slot.active_pid} reads it; a second start would be refused",
        )  # fmt: skip
    quarter = (server.wal_keep << 20) // 4
    low = slot.safe_wal_size is not None and slot.safe_wal_size < min(_LOW_WAL_BYTES, quarter)
    if slot.wal_status == "unreserved" or low:
        left = f"{max(0, slot.safe_wal_size or 0) / 1e6:,.0f} MB"
        yield Finding(
            "warning", "slot-at-risk", subject,
            f"wal_status is {slot.wal_status}; {left} may be written until the server gives it up",
            "start the pipeline; ALTER SYSTEM SET max_slot_wal_keep_size = '…'; SELECT pg_reload_conf();",
        )  # fmt: skip
