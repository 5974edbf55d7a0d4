"""Turns what libpq and the server say into our errors, each of the right class and with its remedy.

SQLSTATE decides wherever there is one. When a connection fails, libpq hands out only text, and the server
may speak another language than English; there the English wording is tried first, then what is the same in
every language (names of role and database, ``pg_hba.conf``), and at last libpq's own ``PQping``, which
knows whether the server is starting, silent or answering.

What is not known to heal is definite, except on a lost or failing connection: a retry there costs nothing,
a stop might.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import pq

from bronze.conninfo import conninfo, describe, user_and_database, without_secrets
from bronze.errors import ConfigurationError, DefiniteError, SmeltError, TransientError
from bronze.identifiers import quote_identifier, quote_literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bronze.settings import SourceSettings


@dataclass(frozen=True, slots=True)
class _Rule:
    """One kind of failure. The texts are templates; see `_fill` for the names they may use."""

    error: type[SmeltError]
    code: str
    message: str
    remedy: str


_UNREACHABLE: Final = _Rule(
    TransientError,
    "server-unreachable",
    "the server cannot be reached: {said}",
    "check host and port, that PostgreSQL runs and listens there (listen_addresses), and the firewall",
)
_HOST_UNKNOWN: Final = _Rule(
    TransientError,
    "host-unknown",
    "the host name cannot be resolved: {said}",
    "check the host in the source section (spelling, DNS, VPN)",
)
_PASSWORD_REJECTED: Final = _Rule(
    ConfigurationError,
    "password-rejected",
    "PostgreSQL rejected the password of role {user}",
    "check user and password of the source section (${{ENV}} variables, PGPASSWORD, ~/.pgpass); "
    "to set a new one, as an administrator: \\password {user_quoted}",
)
_PASSWORD_MISSING: Final = _Rule(
    ConfigurationError,
    "password-missing",
    "PostgreSQL asks for a password of role {user}, and none was given",
    "give it by PGPASSWORD, ~/.pgpass, or `password: ${{SMELT_PASSWORD}}` in the source section",
)
_ROLE_UNKNOWN: Final = _Rule(
    ConfigurationError,
    "role-unknown",
    "role {user} cannot log in: {said}",
    "check the user of the source section, or, as an administrator: "
    "CREATE ROLE {user_quoted} LOGIN REPLICATION PASSWORD '…'; "
    "(an existing role: ALTER ROLE {user_quoted} LOGIN;)",
)
_DATABASE_UNKNOWN: Final = _Rule(
    ConfigurationError,
    "database-unknown",
    "database {database} does not exist on that server",
    "check the database in the source section; `psql -l` lists those there are",
)
_CONNECT_DENIED: Final = _Rule(
    DefiniteError,
    "connect-denied",
    "role {user} may not connect to database {database}",
    "as an administrator: GRANT CONNECT ON DATABASE {database_quoted} TO {user_quoted};",
)
_HBA: Final = _Rule(
    DefiniteError,
    "pg-hba-rejected",
    "the server's pg_hba.conf admits no such connection: {said}",
    "add a line such as `hostssl {database} {user} <client address>/32 scram-sha-256` to pg_hba.conf and "
    "SELECT pg_reload_conf(); where only hostssl lines match, set sslmode: require",
)
_SSL: Final = _Rule(
    ConfigurationError,
    "ssl-failed",
    "no encrypted connection could be agreed on: {said}",
    "set sslmode (and sslrootcert) of the source section to what the server offers; "
    "SHOW ssl; tells whether it offers any",
)
_TOO_MANY: Final = _Rule(
    TransientError,
    "too-many-connections",
    "the server has no free connection: {said}",
    "raise max_connections, or close idle sessions (SELECT * FROM pg_stat_activity)",
)
_STARTING: Final = _Rule(
    TransientError,
    "server-starting",
    "the server is not accepting connections now: {said}",
    "nothing to do if it is being restarted; otherwise read the server's log",
)
_LOST: Final = _Rule(
    TransientError,
    "connection-lost",
    "the connection to the server was lost: {said}",
    "nothing to do if the server or the network was restarted; otherwise read the server's log",
)
_REPLICATION_DENIED: Final = _Rule(
    DefiniteError,
    "replication-privilege",
    "role {user} may not replicate: {said}",
    "as an administrator: ALTER ROLE {user_quoted} REPLICATION; "
    "(Amazon RDS and Aurora: GRANT rds_replication TO {user_quoted};)",
)
_ROW_SECURITY: Final = _Rule(
    DefiniteError,
    "row-level-security",
    "row-level security would hide rows from role {user}: {said}",
    "ALTER ROLE {user_quoted} BYPASSRLS; (as a superuser), or take the table off the pattern with `exclude`",
)
_PERMISSION: Final = _Rule(
    DefiniteError,
    "permission-denied",
    "role {user} lacks a privilege: {said}",
    "`smelt check` lists every missing privilege with the GRANT that gives it",
)
_WAL_LEVEL: Final = _Rule(
    DefiniteError,
    "wal-level",
    "the server does not write enough to its log for logical replication: {said}",
    "ALTER SYSTEM SET wal_level = logical; then restart PostgreSQL "
    "(managed services: rds.logical_replication = 1, cloudsql.logical_decoding = on)",
)
_SLOTS_EXHAUSTED: Final = _Rule(
    DefiniteError,
    "slots-exhausted",
    "the server has no room for another replication slot or walsender: {said}",
    "drop slots nobody uses (SELECT slot_name, active FROM pg_replication_slots; "
    "SELECT pg_drop_replication_slot('…');), or ALTER SYSTEM SET max_replication_slots = <more>; "
    "ALTER SYSTEM SET max_wal_senders = <more>; and restart PostgreSQL",
)
_SLOT_IN_USE: Final = _Rule(
    DefiniteError,
    "slot-in-use",
    "replication slot {slot} is in use by another session: {said}",
    "end the other reader of this slot; who it is: SELECT a.pid, a.application_name, a.client_addr "
    "FROM pg_replication_slots s JOIN pg_stat_activity a ON a.pid = s.active_pid "
    "WHERE s.slot_name = {slot_literal};",
)
_SLOT_MISSING: Final = _Rule(
    DefiniteError,
    "slot-missing",
    "replication slot {slot} does not exist",
    "SELECT pg_create_logical_replication_slot({slot_literal}, 'pgoutput'); a pipeline that has run before "
    "starts anew with another lake.path, because the changes in between are gone",
)
_SLOT_LOST: Final = _Rule(
    DefiniteError,
    "slot-lost",
    "replication slot {slot} can no longer be read: {said}",
    "raise max_slot_wal_keep_size, SELECT pg_drop_replication_slot({slot_literal}); "
    "move the lake away (or give another lake.path) and start again, so that every table is copied anew",
)
_PUBLICATION_MISSING: Final = _Rule(
    DefiniteError,
    "publication-missing",
    "publication {publication} does not exist (or did not yet at this point of the log)",
    "`smelt check` prints the CREATE PUBLICATION; if it was dropped and made again, drop the slot too, "
    "and start anew with another lake.path",
)
_OPTION_UNKNOWN: Final = _Rule(
    ConfigurationError,
    "connection-option-unknown",
    "the server does not know a setting given with the connection: {said}",
    "check `options` of the DSN and PGOPTIONS",
)
_SERVICE_UNKNOWN: Final = _Rule(
    ConfigurationError,
    "service-unknown",
    "the libpq service cannot be used: {said}",
    "check `service` of the source section against ~/.pg_service.conf (or PGSERVICEFILE)",
)
_LOCKED: Final = _Rule(
    TransientError,
    "lock-not-available",
    "a lock was not to be had in time: {said}",
    "find the holder: SELECT pid, state, query FROM pg_stat_activity "
    "WHERE xact_start IS NOT NULL AND cardinality(pg_blocking_pids(pid)) = 0;",
)
_CANCELLED: Final = _Rule(
    TransientError,
    "statement-cancelled",
    "the server cancelled a statement: {said}",
    "nothing to do if somebody cancelled it; otherwise look for a timeout set by a pooler or a watchdog",
)
_CONFLICT: Final = _Rule(
    TransientError,
    "concurrent-change",
    "somebody changed the same thing at the same moment: {said}",
    "nothing to do; it is tried again",
)
_RESOURCES: Final = _Rule(
    TransientError,
    "server-resources",
    "the server is short of something or failed at its disk: {said}",
    "read the server's log; check disk space and memory of its machine",
)
_READ_ONLY: Final = _Rule(
    DefiniteError,
    "server-read-only",
    "the server only reads: {said}",
    "give the primary, not a standby, as the source; on a primary, "
    "ALTER ROLE {user_quoted} RESET default_transaction_read_only;",
)
_REFUSED_SESSION: Final = _Rule(
    ConfigurationError,
    "connection-refused",
    "the server answers, but refuses this connection: {said}",
    "check user, password, database and sslmode of the source section, and the server's pg_hba.conf and log",
)
_UNKNOWN: Final = _Rule(
    DefiniteError,
    "server-error",
    "PostgreSQL reported an error: {said}",
    "read the server's log; if this stays, report it with the SQLSTATE above",
)

_BY_SQLSTATE: Final = {
    "28P01": _PASSWORD_REJECTED,
    "3D000": _DATABASE_UNKNOWN,
    "57P04": _DATABASE_UNKNOWN,
    "53300": _TOO_MANY,
    "53400": _SLOTS_EXHAUSTED,
    "55006": _SLOT_IN_USE,
    "55P03": _LOCKED,
    "57014": _CANCELLED,
    "57P01": _LOST,
    "57P02": _LOST,
    "57P03": _STARTING,
    "57P05": _LOST,
    "25006": _READ_ONLY,
    "58P01": _SLOT_LOST,
}
_QUOTED: Final = "[\"'«»„“”\u2018\u2019](.+?)[\"'«»„“”\u2018\u2019]"
_BY_CLASS: Final = {"08": _LOST, "40": _CONFLICT, "53": _RESOURCES, "57": _LOST, "58": _RESOURCES}

# First match wins. Where several addresses were tried, what a server answered says more than that another
# did not.
_BY_TEXT: Final = [
    (r"authentication failed for user", _PASSWORD_REJECTED),
    (r"no password supplied", _PASSWORD_MISSING),
    (r"pg_hba\.conf", _HBA),
    (r"database .* does not exist", _DATABASE_UNKNOWN),
    (r"permission denied for database", _CONNECT_DENIED),
    (r"role .* (does not exist|is not permitted to log in)", _ROLE_UNKNOWN),
    (r"start WAL sender|must be superuser or replication role", _REPLICATION_DENIED),
    (r"max_wal_senders|number of requested standby connections", _SLOTS_EXHAUSTED),
    (r"too many (clients|connections)|remaining connection slots", _TOO_MANY),
    (r"starting up|shutting down|in recovery mode|not yet accepting connections", _STARTING),
    (r"unrecognized configuration parameter|invalid value for parameter", _OPTION_UNKNOWN),
    (r"definition of service|service file", _SERVICE_UNKNOWN),
    (r"SSL SYSCALL|server closed the connection|connection is (closed|lost)|Connection reset", _LOST),
    (r"Broken pipe|consuming input failed|could not (send|receive) data", _LOST),
    (r"SSL|certificate", _SSL),
    (r"resolve host|could not translate host name|Name or service not known", _HOST_UNKNOWN),
    (r"Connection refused|timeout expired|timed out|No route to host", _UNREACHABLE),
    (r"No such file|Network is unreachable", _UNREACHABLE),
]


def translate(error: psycopg.Error, source: SourceSettings) -> SmeltError:
    """The error of ours that says what `error` means, where, and what to do.

    Takes errors of a connection attempt and of statements. The result holds no password; raise it ``from
    error``.
    """
    said = _said(error, source)
    if error.sqlstate is not None:
        rule = _by_sqlstate(error.sqlstate, said, source)
    elif isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)) or error.pgresult is not None:
        # A failed result without SQLSTATE was made by libpq itself: the connection broke.
        rule = _by_text(str(error), source)
    else:
        rule = _UNKNOWN
    if rule is _UNKNOWN and error.sqlstate is not None:
        said = f"{said} (SQLSTATE {error.sqlstate})"
    names = _fill(source, said)
    return rule.error(
        rule.message.format_map(names),
        code=rule.code,
        where=describe(source),
        remedy=rule.remedy.format_map(names),
    )


def translate_result(result: pq.abc.PGresult, source: SourceSettings) -> SmeltError:
    """`translate` for a failed result of a connection that is driven through `psycopg.pq`."""
    return translate(psycopg.errors.error_from_result(result), source)


def translate_failed_connection(text: str, source: SourceSettings) -> SmeltError:
    """`translate` for the error message of a `PGconn` that did not come up, or broke."""
    return translate(psycopg.OperationalError(text), source)


def _by_sqlstate(sqlstate: str, said: str, source: SourceSettings) -> _Rule:
    """SQLSTATE, and where it says too little, what is the same in every language of the server."""
    match sqlstate:
        case "28000":
            rule = _HBA if "pg_hba.conf" in said else _ROLE_UNKNOWN
        case "42501":
            rule = _missing_privilege(said)
        case "42704":
            rule = _missing_object(said, source)
        case "55000" if "wal_level" in said:
            rule = _WAL_LEVEL
        case "55000" if "max_slot_wal_keep_size" in said or "invalidated" in said or source.slot in said:
            rule = _SLOT_LOST
        case "XX000" if "concurrently" in said:
            rule = _CONFLICT
        case _:
            rule = _BY_SQLSTATE.get(sqlstate) or _BY_CLASS.get(sqlstate[:2], _UNKNOWN)
    return rule


def _missing_privilege(said: str) -> _Rule:
    if "row-level security" in said or "row_security" in said:
        return _ROW_SECURITY
    return _REPLICATION_DENIED if re.search(r"replication|WAL sender", said, re.IGNORECASE) else _PERMISSION


def _missing_object(said: str, source: SourceSettings) -> _Rule:
    if "publication" in said:
        return _PUBLICATION_MISSING
    if "replication slot" in said:
        return _SLOT_MISSING
    if "configuration parameter" in said:
        return _OPTION_UNKNOWN
    # Another language: the quoted name decides, unless slot and publication share it.
    if source.slot != source.publication:
        if source.slot in said:
            return _SLOT_MISSING
        if source.publication in said:
            return _PUBLICATION_MISSING
    return _UNKNOWN


def _by_text(text: str, source: SourceSettings) -> _Rule:
    for pattern, rule in _BY_TEXT:
        if re.search(pattern, text):
            return rule
    return _by_ping(text, source)


def _by_ping(text: str, source: SourceSettings) -> _Rule:
    """A message in a language we do not read: ask libpq how the server answers a second attempt."""
    try:
        answer = pq.PGconn.ping(conninfo(source).encode())
    except (psycopg.Error, SmeltError):
        return _LOST
    if answer == pq.Ping.REJECT:
        return _STARTING
    if answer != pq.Ping.OK or "failed: " not in text:
        return _LOST
    user, database = user_and_database(source)
    quoted = re.findall(_QUOTED, text.partition("failed: ")[2])
    if user in quoted and user != database:
        return _REFUSED_SESSION
    return _DATABASE_UNKNOWN if database in quoted and user != database else _REFUSED_SESSION


def _said(error: psycopg.Error, source: SourceSettings) -> str:
    """The other side's own words on one line: message and detail, without libpq's preamble."""
    primary = error.diag.message_primary
    if primary:
        detail = error.diag.message_detail
        text = f"{primary} ({detail})" if detail else primary
    else:
        text = str(error).strip().partition("\nMultiple connection attempts failed")[0]
        text = re.sub(r"^(connection failed|connection is bad): ", "", text)
        text = re.sub(r"^connection to server (at|on) .*? failed: ", "", text)
        text = re.sub(r"^(FATAL|ERROR|PANIC):\s+", "", text)
    return without_secrets(" ".join(text.split()), source)


def _fill(source: SourceSettings, said: str) -> dict[str, str]:
    user, database = user_and_database(source)
    return {
        "said": said,
        "user": user,
        "user_quoted": quote_identifier(user),
        "database": database,
        "database_quoted": quote_identifier(database),
        "slot": source.slot,
        "slot_literal": quote_literal(source.slot),
        "publication": source.publication,
    }


def one_line(parts: Iterable[str]) -> str:
    """SQL statements as one remedy."""
    return " ".join(part if part.endswith(";") else f"{part};" for part in parts)
