"""Convert errors of libpq and the server into deltasmelt's errors, each with class and remedy.

SQLSTATE decides if the error has a SQLSTATE. For a failed connection, libpq returns only text, and the
server's language may not be English. Three checks then follow:

1. the English wording;
2. parts that are equal in every language: names of role and database, ``pg_hba.conf``;
3. libpq's own ``PQping``, which detects whether the server is starting, silent or answering.

An error that is not known to heal is definite, except on a lost or failing connection. A retry then costs
nothing, but a stop might.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import pq

from deltasmelt.bronze.errors import SmeltError, TableError, TransientError
from deltasmelt.bronze.identifiers import quote_identifier, quote_literal
from deltasmelt.bronze.postgres import error_rules as rules
from deltasmelt.bronze.postgres.conninfo import address_of, conninfo, user_and_database, without_passwords

if TYPE_CHECKING:
    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.postgres.error_rules import Rule


_BY_SQLSTATE: Final = {
    "28P01": rules.PASSWORD_REJECTED,
    "3D000": rules.DATABASE_UNKNOWN,
    "57P04": rules.DATABASE_UNKNOWN,
    "53300": rules.TOO_MANY,
    "53400": rules.SLOTS_EXHAUSTED,
    "55006": rules.SLOT_IN_USE,
    "55P03": rules.LOCKED,
    "57014": rules.CANCELLED,
    "57P01": rules.LOST,
    "57P02": rules.LOST,
    "57P03": rules.STARTING,
    "57P05": rules.LOST,
    "22021": rules.UNCONVERTIBLE,
    "22P05": rules.UNCONVERTIBLE,
    "25006": rules.READ_ONLY,
    "58P01": rules.UNKNOWN,
}
_QUOTED: Final = "[\"'«»„“”\u2018\u2019](.+?)[\"'«»„“”\u2018\u2019]"
_WAL_FILE: Final = r"\b[0-9A-F]{24}\b"
"""The name of a WAL file: 58P01 for any other file does not concern a slot."""

_LSN: Final = r"\b[0-9A-F]{1,8}/[0-9A-F]{1,8}\b"
"""The LSN of the change that a walsender was decoding, in the context of the error."""

_ATTEMPT: Final = r"connection (failed|is bad): |connection to server (at|on) .*? failed: "
"""The start of the text of a failed connection attempt, by psycopg or libpq."""

_BY_CLASS: Final = {
    "08": rules.LOST,
    "40": rules.CONFLICT,
    "53": rules.RESOURCES,
    "57": rules.LOST,
    "58": rules.RESOURCES,
}

_OF_CONNECTION: Final = ("08", "28", "3D", "57")
"""Classes of SQLSTATE that concern the session, whatever statement the session ran."""

# First match wins. After attempts at several addresses, a server's answer is more informative than the
# silence of another server.
_BY_TEXT: Final = [
    (r"[Cc]ertificate authentication failed|valid client certificate", rules.CLIENT_CERTIFICATE),
    (r"([Pp]eer|[Ii]dent) authentication failed", rules.PEER),
    (r"channel binding (is )?required|authentication method requirement", rules.AUTH_METHOD),
    (r"authentication failed for user", rules.PASSWORD_REJECTED),
    (r"no password supplied", rules.PASSWORD_MISSING),
    (r"pg_hba\.conf", rules.HBA),
    (r"database .* does not exist", rules.DATABASE_UNKNOWN),
    (r"permission denied for database", rules.CONNECT_DENIED),
    (r"role .* (does not exist|is not permitted to log in)", rules.ROLE_UNKNOWN),
    (r"start WAL sender|must be superuser or replication role", rules.REPLICATION_DENIED),
    (r"max_wal_senders|number of requested standby connections", rules.SLOTS_EXHAUSTED),
    (r"too many connections for (role|database)", rules.LIMITED),
    (r"too many (clients|connections)|remaining connection slots", rules.TOO_MANY),
    (r"in hot standby mode|session is (not )?read-only", rules.NO_PRIMARY),
    (r"starting up|shutting down|in recovery mode|not yet accepting connections", rules.STARTING),
    (
        r"unrecognized configuration parameter|invalid value for parameter|unsupported startup parameter",
        rules.OPTION_UNKNOWN,
    ),
    (r"definition of service|service file", rules.SERVICE_UNKNOWN),
    (r"root certificate file|private key file|could not (open|read) certificate file", rules.SSL_FILE),
    (r"certificate present, but not private key", rules.SSL_FILE),
    (r"does not match host name|host name must be specified", rules.SSL_HOST),
    (r"SSL error: certificate verify failed", rules.SSL_UNTRUSTED),
    (r"server does not support SSL", rules.SSL_NOT_OFFERED),
    (r"SSL error: .*alert (certificate|unknown ca|bad certificate|unsupported c)", rules.CLIENT_CERTIFICATE),
    (r"SSL SYSCALL|server closed the connection|connection is (closed|lost)|Connection reset", rules.LOST),
    (r"SSL error: unexpected eof|SSL connection has been closed", rules.LOST),
    (r"Broken pipe|consuming input failed|could not (send|receive) data", rules.LOST),
    (r"SSL|certificate", rules.SSL),
    (r"resolve host|could not translate host name|Name or service not known", rules.HOST_UNKNOWN),
    (r"Connection refused|timeout expired|timed out|No route to host", rules.UNREACHABLE),
    (r"No such file|Network is unreachable", rules.UNREACHABLE),
]


def translate(error: psycopg.Error, source: SourceSettings) -> SmeltError:
    """Return `error` as deltasmelt's error: event, place and remedy.

    `error` comes from a connection attempt or from a statement. The result contains no password; raise the
    result ``from error``.
    """
    return _made(_rule(error, source), error, source)


def stream_error(result: pq.abc.PGresult, source: SourceSettings) -> SmeltError:
    """Return the error that ended a running stream as deltasmelt's error."""
    error = psycopg.errors.error_from_result(result)
    rule = _rule(error, source)
    if rule is rules.UNKNOWN:
        # A definite error that no rule knows comes from the decoding of one change: the value is too long to
        # print, or the type cannot print. The server begins with the change each time, so no later change
        # arrives.
        rule = rules.UNDECODABLE
    elif isinstance(error, psycopg.errors.OutOfMemory) and re.search(_LSN, error.diag.context or ""):
        # The server's memory never suffices for this change, so no later change arrives either.
        rule = rules.TOO_LARGE
    return _made(rule, error, source)


def table_error(table: TableName, error: psycopg.Error, source: SourceSettings) -> TableError:
    """Convert a definite error of a statement that locks or copies a table into an error of the table.

    Raises:
        SmeltError: the error heals by itself, or concerns the session.
    """
    rule = _rule(error, source)
    if issubclass(rule.error, TransientError) or (error.sqlstate or "08")[:2] in _OF_CONNECTION:
        raise _made(rule, error, source) from error
    # A rule of slots, publications or settings does not fit such a statement, and no copy would close such an
    # error. So the message then contains the server's own text, like an error without a rule.
    made = _made(rule if rule in rules.OF_TABLES else rules.UNKNOWN, error, source)
    return TableError(table, made.message, code=made.code, remedy=made.remedy)


def _rule(error: psycopg.Error, source: SourceSettings) -> Rule:
    if error.sqlstate is not None:
        return _by_sqlstate(error.sqlstate, _message_of(error, source), source, error.diag.message_detail)
    if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)) or error.pgresult is not None:
        # A failed result without SQLSTATE was made by libpq itself: the connection broke.
        return _by_text(str(error), source)
    return rules.UNKNOWN


def _made(rule: Rule, error: psycopg.Error, source: SourceSettings) -> SmeltError:
    message = _message_of(error, source)
    if rule in (rules.UNKNOWN, rules.UNDECODABLE, rules.TOO_LARGE) and error.sqlstate is not None:
        place = re.search(_LSN, error.diag.context or "")
        message += f" (SQLSTATE {error.sqlstate}{f', at {place[0]}' if place else ''})"
    names = _fill(source, message)
    return rule.error(
        rule.message.format_map(names),
        code=rule.code,
        where=address_of(source),
        remedy=rule.remedy.format_map(names),
    )


def tables_changed(happened: str, error: psycopg.Error, source: SourceSettings) -> TransientError:
    """Return the error ``concurrent-change``: a session dropped or renamed a table during an operation.

    `happened` is the effect of the change on the operation.
    """
    return TransientError(
        f"{happened}: {error.diag.message_primary}",
        code="concurrent-change",
        where=address_of(source),
        remedy="nothing to do: the reader reads the tables' state again",
    )


def translate_result(result: pq.abc.PGresult, source: SourceSettings) -> SmeltError:
    """Translate a failed result of a connection that uses `psycopg.pq` directly."""
    return translate(psycopg.errors.error_from_result(result), source)


def _by_sqlstate(sqlstate: str, message: str, source: SourceSettings, detail: str | None) -> Rule:
    """Choose by SQLSTATE; for a vague SQLSTATE, by parts that are equal in every language of the server."""
    match sqlstate:
        case "28000":
            rule = rules.HBA if "pg_hba.conf" in message else rules.ROLE_UNKNOWN
        case "42501":
            rule = _missing_privilege(message)
        case "42704":
            rule = _missing_object(message, source)
        case "55000" if "wal_level" in message:
            rule = rules.WAL_LEVEL
        # Only the message of an invalidated slot has a detail; the detail names the cause.
        case "55000" if "invalidated" in message or (detail and source.slot in message):
            rule = rules.SLOT_LOST
        case "58P01" if re.search(_WAL_FILE, message):
            rule = rules.SLOT_LOST
        case "53400" if "temp_file_limit" in message:
            rule = rules.RESOURCES
        case "XX000" if "concurrently" in message:
            rule = rules.CONFLICT
        case _:
            rule = _BY_SQLSTATE.get(sqlstate) or _BY_CLASS.get(sqlstate[:2], rules.UNKNOWN)
    return rule


def _missing_privilege(message: str) -> Rule:
    if "row-level security" in message or "row_security" in message:
        return rules.ROW_SECURITY
    if message.startswith("permission denied for "):  # of a table with any name
        return rules.PERMISSION
    return (
        rules.REPLICATION_DENIED
        if re.search(r"replication|WAL sender", message, re.IGNORECASE)
        else rules.PERMISSION
    )


def _missing_object(message: str, source: SourceSettings) -> Rule:
    if "publication" in message:
        return rules.PUBLICATION_MISSING
    if "replication slot" in message:
        return rules.SLOT_MISSING
    if "configuration parameter" in message:
        return rules.OPTION_UNKNOWN
    # Another language: the quoted name decides, unless slot and publication share it.
    if source.slot != source.publication:
        if source.slot in message:
            return rules.SLOT_MISSING
        if source.publication in message:
            return rules.PUBLICATION_MISSING
    return rules.UNKNOWN


def _by_text(text: str, source: SourceSettings) -> Rule:
    for pattern, rule in _BY_TEXT:
        if re.search(pattern, text):
            return rule
    return _by_ping(text, source)


def _by_ping(text: str, source: SourceSettings) -> Rule:
    """Choose for a text in an unknown language by libpq's ping, a second attempt to connect."""
    attempt = re.search(_ATTEMPT, text)
    # After the failure of an established connection a successful ping would prove nothing.
    if attempt is None:
        return rules.LOST
    try:
        answer = pq.PGconn.ping(conninfo(source).encode())
    except (psycopg.Error, SmeltError):
        return rules.LOST
    if answer == pq.Ping.REJECT:
        return rules.STARTING
    if answer != pq.Ping.OK:
        return rules.LOST
    user, database = user_and_database(source)
    quoted = re.findall(_QUOTED, text[attempt.end() :])
    if user in quoted and user != database:
        return rules.REFUSED_SESSION
    return rules.DATABASE_UNKNOWN if database in quoted and user != database else rules.REFUSED_SESSION


_OF_VALUES: Final = "22"
"""Class of SQLSTATEs whose messages contain values of rows."""


def _message_of(error: psycopg.Error, source: SourceSettings) -> str:
    """Return the server's or libpq's text on one line: message and detail, without libpq's preamble."""
    primary = error.diag.message_primary
    if any(source.where.values()) and (error.sqlstate or "").startswith(_OF_VALUES):
        # A condition of source.where that fails for a row may print the row's value.
        return "a value is invalid; the server's text is not shown, because it may contain the value"
    if primary:
        detail = error.diag.message_detail
        text = f"{primary} ({detail})" if detail else primary
    else:
        text = str(error).strip().partition("\nMultiple connection attempts failed")[0]
        text = re.sub(r"^(connection failed|connection is bad): ", "", text)
        text = re.sub(r"^connection to server (at|on) .*? failed: ", "", text)
        text = re.sub(r"^(FATAL|ERROR|PANIC):\s+", "", text)
        text = re.sub(r"\n\tIs the server running .*", "", text)  # part of the remedy
    return without_passwords(" ".join(text.split()), source)


def _fill(source: SourceSettings, message: str) -> dict[str, str]:
    user, database = user_and_database(source)
    return {
        "message": message,
        "user": user,
        "user_quoted": quote_identifier(user),
        "database": database,
        "database_quoted": quote_identifier(database),
        "slot": source.slot,
        "slot_literal": quote_literal(source.slot),
        "publication": source.publication,
    }
