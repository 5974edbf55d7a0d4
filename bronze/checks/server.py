"""Findings about the whole server: version, settings, room for slot and walsender, the role's privileges.

A single query reads the facts. `smelt check` prints all findings; a start of the reader stops at the first
error (`require_fit`), before the reader changes anything at the source.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg

from deltasmelt.bronze.checks.finding import Finding
from deltasmelt.bronze.drift.joining import MENDED, may_forget
from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.figures import setting_text
from deltasmelt.bronze.identifiers import quote_identifier
from deltasmelt.bronze.postgres.connection import in_recovery
from deltasmelt.bronze.postgres.conninfo import address_of, replication_conninfo
from deltasmelt.bronze.postgres.error_translation import translate
from deltasmelt.bronze.postgres.services import ROLES, Service, service_of
from deltasmelt.bronze.setup.failover import require_support
from deltasmelt.bronze.setup.slot import read_slot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.setup.slot import SlotState

NEWEST_VERSION: Final = 180000
"""The newest version that the tests run with."""

_CONNECTIONS: Final = 8
"""Number of the reader's connections at once. Four for the stream: session, walsender, watch, catalog poll.
Four for copies: the watch over locks, a worker, the walsender that exports the snapshot, and one spare.
"""

_SHORT_TIMEOUT_MILLISECONDS: Final = 10_000
_LOGGER = logging.getLogger("deltasmelt.reader")

_SERVER_QUERY: Final = """
    SELECT current_database(),
           current_user,
           split_part(current_setting('server_version'), ' ', 1),
           pg_is_in_recovery(),
           current_setting('wal_level'),
           current_setting('max_replication_slots')::int,
           (SELECT count(*) FROM pg_replication_slots),
           current_setting('max_wal_senders')::int,
           (SELECT count(*) FROM pg_stat_replication),
           (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
           (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'),
           r.rolsuper OR r.rolreplication,
           ARRAY(SELECT m.rolname::text FROM pg_roles m WHERE m.rolname = ANY (%(roles)s)),
           ARRAY(SELECT m.rolname::text FROM pg_roles m
                 WHERE m.rolname = ANY (%(roles)s) AND pg_has_role(m.oid, 'USAGE')),
           has_database_privilege(current_database(), 'CREATE'),
           current_setting('server_encoding'),
           (SELECT p.oid::regprocedure::text FROM pg_proc p
            WHERE p.proname = 'pg_logical_emit_message' AND p.pronamespace = 'pg_catalog'::regnamespace
              AND p.proargtypes[2] = 'text'::regtype AND NOT has_function_privilege(p.oid, 'EXECUTE')),
           CASE WHEN r.rolsuper THEN -1 ELSE r.rolconnlimit END,
           CASE WHEN r.rolsuper THEN -1 ELSE
                (SELECT d.datconnlimit FROM pg_database d WHERE d.datname = current_database()) END,
           ARRAY(SELECT m.rolname::text FROM pg_roles m
                 WHERE m.rolsuper AND NOT r.rolsuper AND pg_has_role(m.oid, 'MEMBER') ORDER BY 1)
    FROM pg_roles r
    WHERE r.rolname = current_user
"""


@dataclass(frozen=True, slots=True)
class Server:
    """Settings, room and role; sizes in MB, times in milliseconds, -1 and 0 with PostgreSQL's meaning."""

    database: str
    role: str
    version: str
    in_recovery: bool
    wal_level: str
    slots: int
    slots_used: int
    senders: int
    senders_used: int
    wal_keep: int
    sender_timeout: int
    replicates: bool
    service_roles: list[str]
    member_of: list[str]
    may_create: bool
    encoding: str = "UTF8"
    denied_messages: str | None = None
    role_limit: int = -1
    database_limit: int = -1
    # superusers whose rights the role can take; empty for a superuser itself
    superusers: list[str] = field(default_factory=list)

    @property
    def service(self) -> Service:
        """The service that hosts the server."""
        return service_of(self.service_roles)


def read_server(connection: psycopg.Connection[Any]) -> Server:
    """Read all facts of the server in one query."""
    row = connection.execute(_SERVER_QUERY, {"roles": list(ROLES)}).fetchone()
    assert row is not None  # noqa: S101 - the role we are connected as exists
    return Server(*row)


def server_findings(server: Server, version: int, slot: SlotState | None) -> list[Finding]:
    """Return the findings that need no further query; `slot` is None before the slot exists. Pure."""
    return [
        *_identity(server, version),
        *_settings(server),
        *_encoding(server),
        *_superusers(server),
        *_messages(server),
        *_room(server, slot),
        *_connections(server),
    ]


def role_findings(server: Server, source: SourceSettings) -> Iterator[Finding]:
    """Check whether the role may replicate, by a replication connection if a walsender is free."""
    claims = server.replicates or bool(set(server.member_of) & set(server.service.replicators))
    refusal = None
    if server.senders > server.senders_used:
        try:
            name = "deltasmelt check"
            string = replication_conninfo(source, application_name=name)
            # Only this trial shows the effect of pg_hba.conf, of a pooler, or of a managed service's own
            # rules.
            perform(Effect.CONNECT, name, lambda: psycopg.connect(string).close())
        except psycopg.Error as error:
            refusal = translate(error, source)
        else:
            return  # the trial counts, not the catalog
    if not claims:
        yield Finding(
            level="error",
            code="replication-privilege",
            subject=f"role {server.role}",
            message="the role lacks REPLICATION, so it can neither create nor read a slot",
            remedy=f"as an administrator: {server.service.replication(server.role)}",
        )
    if refusal is not None and (claims or refusal.code != "replication-privilege"):
        yield Finding(
            level="error",
            code=refusal.code,
            subject="replication connection",
            message=f"an ordinary connection is accepted, a replication connection is not: {refusal.message}",
            remedy=f"{refusal.remedy}; if a connection pooler is in between, connect to the server directly",
        )


def require_fit(connection: psycopg.Connection[Any], source: SourceSettings, *, log_findings: bool) -> None:
    """Stop a start that cannot succeed before the start changes anything.

    With `log_findings`, warnings are logged too. `connection` is in autocommit mode.

    Raises:
        DefiniteError: the first error among `server_findings`.
    """
    version = connection.info.server_version
    require_support(version, source)
    findings = server_findings(read_server(connection), version, read_slot(connection, source.slot))
    for finding in findings:
        if finding.level == "error":
            raise DefiniteError(
                finding.message, code=finding.code, where=address_of(source), remedy=finding.remedy
            )
    for finding in findings if log_findings else ():
        if finding.level == "warning":
            _LOGGER.warning("%s: %s; remedy: %s", finding.subject, finding.message, finding.remedy)


def _identity(server: Server, version: int) -> Iterator[Finding]:
    name = f" ({server.service.name})" if server.service.name else ""
    if version // 10000 > NEWEST_VERSION // 10000:
        yield Finding(
            level="warning",
            code="server-newer",
            subject="server",
            message=f"PostgreSQL {server.version}{name} is newer than the newest version that deltasmelt was "
            f"tested with ({NEWEST_VERSION // 10000})",
            remedy="check for a newer deltasmelt",
        )
    else:
        yield Finding(
            level="info",
            code="server-version",
            subject="server",
            message=f"PostgreSQL {server.version}{name}",
        )


def _messages(server: Server) -> Iterator[Finding]:
    """Check the right to write messages: a message places each snapshot and shape in the log.

    See `bronze.postgres.heartbeat`.
    """
    if server.denied_messages is not None:
        yield Finding(
            level="error",
            code="permission-denied",
            subject=f"role {server.role}",
            message=f"the role may not write messages to the write-ahead log ({server.denied_messages})",
            remedy="as an administrator: GRANT EXECUTE ON FUNCTION "
            f"{server.denied_messages} TO {quote_identifier(server.role)};",
        )


def _superusers(server: Server) -> Iterator[Finding]:
    """Check whether the role may become a superuser: a reader needs no such right."""
    for name in server.superusers:
        yield Finding(
            level="warning",
            code="role-inherits-superuser",
            subject=f"role {server.role}",
            message=f"the role is a member of {name}, a superuser: anyone with its password may do anything "
            "on the server",
            remedy=f"REVOKE {quote_identifier(name)} FROM {quote_identifier(server.role)}; and set "
            "source.manage to false, or let another role than a superuser own the tables",
        )


def _settings(server: Server) -> Iterator[Finding]:
    service = server.service
    if server.in_recovery:
        yield Finding.of(in_recovery("server"))
    if server.wal_level != "logical":
        yield Finding(
            level="error",
            code="wal-level",
            subject="wal_level",
            message=f"wal_level is {server.wal_level}; logical replication needs wal_level logical",
            remedy=service.logical,
        )
    if server.wal_keep == -1:
        yield Finding(
            level="warning",
            code="wal-keep-unlimited",
            subject="max_slot_wal_keep_size",
            message="while the pipeline is stopped, the server keeps WAL until its disk is full",
            remedy=service.setting(
                "max_slot_wal_keep_size", "50GB" if not service.parameters else "51200 (MB)"
            ),
        )
    else:
        yield Finding(
            level="info",
            code="wal-keep-limited",
            subject="max_slot_wal_keep_size",
            message="the server invalidates the slot as soon as the slot is "
            f"{setting_text(server.wal_keep << 20)} behind",
        )
    if 0 < server.sender_timeout < _SHORT_TIMEOUT_MILLISECONDS:
        yield Finding(
            level="warning",
            code="wal-sender-timeout-short",
            subject="wal_sender_timeout",
            message=f"wal_sender_timeout is {server.sender_timeout} ms; a short pause of the network ends "
            "the stream",
            remedy=service.setting("wal_sender_timeout", "60s" if not service.parameters else "60000 (ms)"),
        )


def _encoding(server: Server) -> Iterator[Finding]:
    """Check the encoding: text is sent as UTF-8, and inconvertible text stops the table.

    See `bronze.stream.encodings`.
    """
    if server.encoding == "UTF8":
        return
    effect = (
        "so the server accepts any bytes as text; bytes that are not UTF-8 stop their table"
        if server.encoding == "SQL_ASCII"
        else "a text with a character that does not exist in UTF-8 stops its table"
    )
    yield Finding(
        level="warning",
        code="encoding-not-utf8",
        subject="server_encoding",
        message=f"the encoding of database {server.database} is {server.encoding}; {effect}",
        remedy="`smelt explain-error character-not-convertible` shows how to find such texts; a permanent "
        "solution: pg_dump, and restore into a database with ENCODING 'UTF8'",
    )


def _room(server: Server, slot: SlotState | None) -> Iterator[Finding]:
    """Check for free slots and walsenders: stream and running snapshot each need a slot and a walsender."""
    service = server.service
    free = server.slots - server.slots_used
    own_slots = 0 if slot is not None else 1
    if free <= own_slots:
        stops = free < own_slots
        cure = service.setting("max_replication_slots", str(server.slots + 10), restart=True)
        yield Finding(
            level="error" if stops else "warning",
            code="slots-exhausted",
            subject="max_replication_slots",
            message=f"{server.slots_used} of {server.slots} replication slots are in use; "
            + ("the pipeline has no free slot" if stops else "a snapshot would have no free slot"),
            remedy="SELECT slot_name, active, wal_status FROM pg_replication_slots; drop unused slots "
            f"(SELECT pg_drop_replication_slot('…');), or {cure}",
        )
    free = server.senders - server.senders_used
    own_slots = 0 if slot is not None and slot.active_pid is not None else 1
    if free <= own_slots:
        stops = free < own_slots
        yield Finding(
            level="error" if stops else "warning",
            code="senders-exhausted",
            subject="max_wal_senders",
            message=f"{server.senders_used} of {server.senders} walsenders are in use; "
            + ("the stream has no free walsender" if stops else "a snapshot would have no free walsender"),
            remedy="SELECT pid, application_name, client_addr FROM pg_stat_replication; shows who has them; "
            + service.setting("max_wal_senders", str(server.senders + 10), restart=True),
        )


def _connections(server: Server) -> Iterator[Finding]:
    """Check the limits of connections, which include walsenders."""
    for kind, name, limit in (
        ("role", server.role, server.role_limit),
        ("database", server.database, server.database_limit),
    ):
        if 0 <= limit < _CONNECTIONS:
            yield Finding(
                level="error",
                code="connection-limit",
                subject=f"{kind} {name}",
                message=f"the {kind} may have at most {limit} connections at the same time; the reader alone "
                f"needs {_CONNECTIONS}, and other commands need more",
                remedy=f"as an administrator: ALTER {kind.upper()} {quote_identifier(name)} "
                f"CONNECTION LIMIT {3 * _CONNECTIONS};",
            )


def forgetting_findings(version: int) -> Iterator[Finding]:
    """Yield `smelt check`'s finding about a server version that may forget changes."""
    major, minor = divmod(version, 10000)
    if may_forget(version):
        yield Finding(
            level="warning",
            code="server-minor-old",
            subject="server",
            message=f"PostgreSQL {major}.{minor} loses changes of a table that joins a publication while a "
            "transaction that wrote the table is open; the reader prevents this loss by a new session of "
            "the stream before each such copy, other readers of the server do not",
            remedy=f"update the server to {major}.{MENDED[major]} or later",
        )
