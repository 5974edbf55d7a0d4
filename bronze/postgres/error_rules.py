"""Failures between deltasmelt and the source: class, code, text and remedy of each kind.

Data alone; `bronze.postgres.error_translation` chooses the rule. The templates may name ``message`` (the
server's or libpq's text), ``user``, ``database``, ``slot``, ``publication``, ``user_quoted``,
``database_quoted`` (identifiers as SQL) and ``slot_literal``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError, SmeltError, TransientError


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of failure."""

    # class of the error: heals by itself, needs a person, or needs a corrected file
    error: type[SmeltError]
    code: str
    # template; `{message}` is the server's or libpq's text
    message: str
    # template; literal braces are doubled
    remedy: str


UNREACHABLE: Final = Rule(
    TransientError,
    "server-unreachable",
    "the server cannot be reached: {message}",
    "check host and port, the firewall, and that PostgreSQL runs and listens on this address "
    "(listen_addresses)",
)
HOST_UNKNOWN: Final = Rule(
    TransientError,
    "host-unknown",
    "the host name cannot be resolved: {message}",
    "check the host in the source section (spelling, DNS, VPN)",
)
PASSWORD_REJECTED: Final = Rule(
    ConfigurationError,
    "password-rejected",
    "PostgreSQL rejected the password of role {user}",
    "check user and password of the source section (${{ENV}} variables, PGPASSWORD, ~/.pgpass); to set a "
    "new password, as an administrator: \\password {user_quoted}",
)
PASSWORD_MISSING: Final = Rule(
    ConfigurationError,
    "password-missing",
    "PostgreSQL requires a password for role {user}, and the connection has no password",
    "set PGPASSWORD, `password: ${{SMELT_PASSWORD}}` in the source section, or a password file (~/.pgpass, "
    "passfile; libpq ignores a file that others can read: chmod 600)",
)
ROLE_UNKNOWN: Final = Rule(
    ConfigurationError,
    "role-unknown",
    "role {user} cannot log in: {message}",
    "check the user of the source section, or, as an administrator: "
    "CREATE ROLE {user_quoted} LOGIN REPLICATION PASSWORD '…'; "
    "(an existing role: ALTER ROLE {user_quoted} LOGIN;)",
)
DATABASE_UNKNOWN: Final = Rule(
    ConfigurationError,
    "database-unknown",
    "database {database} does not exist on this server",
    "check the database in the source section; `psql -l` lists the existing databases",
)
CONNECT_DENIED: Final = Rule(
    DefiniteError,
    "connect-denied",
    "role {user} may not connect to database {database}",
    "as an administrator: GRANT CONNECT ON DATABASE {database_quoted} TO {user_quoted};",
)
HBA: Final = Rule(
    DefiniteError,
    "pg-hba-rejected",
    "the server's pg_hba.conf does not allow this connection: {message}",
    "add a line such as `hostssl {database} {user} <client address>/32 scram-sha-256` to pg_hba.conf and "
    "SELECT pg_reload_conf(); if only hostssl lines match, set sslmode: require",
)
SSL: Final = Rule(
    ConfigurationError,
    "ssl-failed",
    "client and server could not agree on an encrypted connection: {message}",
    "set sslmode of the source section to a mode that the server offers (and sslrootcert, if the mode "
    "verifies the certificate); SHOW ssl; reports whether the server offers encryption",
)
SSL_NOT_OFFERED: Final = Rule(
    ConfigurationError,
    "ssl-not-offered",
    "the server offers no encryption, and sslmode requires encryption: {message}",
    "enable encryption at the server (ssl_cert_file, ssl_key_file; ALTER SYSTEM SET ssl = on; SELECT "
    "pg_reload_conf();), or, on a network that you trust, set sslmode: prefer",
)
SSL_UNTRUSTED: Final = Rule(
    ConfigurationError,
    "ssl-untrusted",
    "the server's certificate is not trusted: {message}",
    "set sslrootcert to the certificate of the authority that signed the server's certificate (managed "
    "services publish this file); if sslrootcert is correct, the certificate has expired: renew it at the "
    "server",
)
SSL_HOST: Final = Rule(
    ConfigurationError,
    "ssl-host-mismatch",
    "the server's certificate was issued for another host: {message}",
    "set `host` to the name in the certificate (and `hostaddr` to the address, if this name does not "
    "resolve), or issue a certificate for this host; sslmode: verify-ca does not compare names",
)
SSL_FILE: Final = Rule(
    ConfigurationError,
    "ssl-file",
    "a file of the encrypted connection cannot be used: {message}",
    "check sslrootcert, sslcert and sslkey of the source section as the account that runs the pipeline; "
    "only its owner may read a private key (chmod 600)",
)
CLIENT_CERTIFICATE: Final = Rule(
    ConfigurationError,
    "client-certificate-rejected",
    "the server does not accept the client certificate, or the connection has none: {message}",
    "set sslcert and sslkey of the source section: a certificate that has not expired, signed by the "
    "authority in the server's ssl_ca_file, with {user} as common name (or mapped to this role in "
    "pg_ident.conf)",
)
PEER: Final = Rule(
    ConfigurationError,
    "peer-rejected",
    "over its socket the server accepts an operating-system account only as the role of the same name, and "
    "this account is not {user}: {message}",
    "run the pipeline as the operating-system account {user}, map the present account in pg_ident.conf, or "
    "set `host: localhost` and a password",
)
AUTH_METHOD: Final = Rule(
    ConfigurationError,
    "auth-method-refused",
    "channel_binding or require_auth does not allow the server's authentication method: {message}",
    "store the role's password as scram-sha-256 and connect with TLS (channel_binding: require needs both), "
    "or remove the requirement from the source section, PGCHANNELBINDING or PGREQUIREAUTH",
)
TOO_MANY: Final = Rule(
    TransientError,
    "too-many-connections",
    "the server has no free connection: {message}",
    "raise max_connections, or close idle sessions (SELECT * FROM pg_stat_activity)",
)
LIMITED: Final = Rule(
    TransientError,
    TOO_MANY.code,
    "the connection limit of this role or of this database is reached: {message}",
    "as an administrator: ALTER ROLE {user_quoted} CONNECTION LIMIT <more>; or "
    "ALTER DATABASE {database_quoted} CONNECTION LIMIT <more>;",
)
STARTING: Final = Rule(
    TransientError,
    "server-starting",
    "the server does not accept connections now: {message}",
    "nothing to do if the server is restarting; otherwise read the server's log",
)
NO_PRIMARY: Final = Rule(
    TransientError,
    "primary-not-found",
    "none of the hosts satisfies target_session_attrs: {message}",
    "nothing to do during the promotion of a standby; otherwise name the primary among the hosts",
)
LOST: Final = Rule(
    TransientError,
    "connection-lost",
    "the connection to the server was lost: {message}",
    "nothing to do if the server or the network was restarted; otherwise read the server's log",
)
REPLICATION_DENIED: Final = Rule(
    DefiniteError,
    "replication-privilege",
    "role {user} lacks REPLICATION, so it can neither create nor read a slot: {message}",
    "as an administrator: ALTER ROLE {user_quoted} REPLICATION; "
    "(Amazon RDS and Aurora: GRANT rds_replication TO {user_quoted};)",
)
ROW_SECURITY: Final = Rule(
    DefiniteError,
    "row-level-security",
    "row-level security would hide rows from role {user}: {message}",
    "ALTER ROLE {user_quoted} BYPASSRLS; (as a superuser), or leave the table out with source.exclude",
)
PERMISSION: Final = Rule(
    DefiniteError,
    "permission-denied",
    "role {user} lacks a privilege: {message}",
    "`smelt check` lists every missing privilege with the GRANT that gives it",
)
WAL_LEVEL: Final = Rule(
    DefiniteError,
    "wal-level",
    "the server does not write enough to its log for logical replication: {message}",
    "ALTER SYSTEM SET wal_level = logical; then restart PostgreSQL "
    "(managed services: rds.logical_replication = 1, cloudsql.logical_decoding = on)",
)
SLOTS_EXHAUSTED: Final = Rule(
    DefiniteError,
    "slots-exhausted",
    "the server has no room for another replication slot or walsender: {message}",
    "drop unused slots (SELECT slot_name, active FROM pg_replication_slots; SELECT "
    "pg_drop_replication_slot('…');), or ALTER SYSTEM SET max_replication_slots = <more>; ALTER SYSTEM SET "
    "max_wal_senders = <more>; and restart PostgreSQL",
)
SLOT_IN_USE: Final = Rule(
    DefiniteError,
    "slot-in-use",
    "replication slot {slot} is in use by another session: {message}",
    "stop the other reader of this slot; to find it: SELECT a.pid, a.application_name, a.client_addr FROM "
    "pg_replication_slots s JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = "
    "{slot_literal};",
)
SLOT_MISSING: Final = Rule(
    DefiniteError,
    "slot-missing",
    "replication slot {slot} does not exist",
    "SELECT pg_create_logical_replication_slot({slot_literal}, 'pgoutput'); a pipeline that has run before "
    "lacks the changes in between: `smelt snapshot FILE --all` makes it and resnapshots every table",
)
SLOT_LOST: Final = Rule(
    DefiniteError,
    "slot-lost",
    "replication slot {slot} can no longer be read: {message}",
    "raise max_slot_wal_keep_size; then `smelt snapshot FILE --all` creates a new slot and resnapshots "
    "every table, deletes included",
)
PUBLICATION_MISSING: Final = Rule(
    DefiniteError,
    "publication-missing",
    "publication {publication} does not exist (or did not exist yet at this point of the log)",
    "`smelt check` prints the CREATE PUBLICATION; if the publication was recreated: SELECT "
    "pg_drop_replication_slot({slot_literal}); then `smelt snapshot FILE --all`",
)
OPTION_UNKNOWN: Final = Rule(
    ConfigurationError,
    "connection-option-unknown",
    "the server does not know a setting of the connection: {message}",
    "check `options` of the DSN and PGOPTIONS; if a connection pooler refuses these options, connect to the "
    "server directly",
)
SERVICE_UNKNOWN: Final = Rule(
    ConfigurationError,
    "service-unknown",
    "the libpq service cannot be used: {message}",
    "check `service` of the source section against ~/.pg_service.conf (or PGSERVICEFILE)",
)
LOCKED: Final = Rule(
    TransientError,
    "lock-not-available",
    "a lock was not granted in time: {message}",
    "find the session that holds the lock: SELECT pid, state, query FROM pg_stat_activity WHERE xact_start "
    "IS NOT NULL AND cardinality(pg_blocking_pids(pid)) = 0;",
)
CANCELLED: Final = Rule(
    TransientError,
    "statement-cancelled",
    "the server cancelled a statement: {message}",
    "nothing to do if a person cancelled the statement; otherwise search for a timeout set by a pooler or a "
    "watchdog",
)
CONFLICT: Final = Rule(
    TransientError,
    "concurrent-change",
    "another session changed the same object at the same time: {message}",
    "nothing to do: deltasmelt retries",
)
RESOURCES: Final = Rule(
    TransientError,
    "server-resources",
    "the server lacks a resource, or its disk failed: {message}",
    "read the server's log; check disk space and memory of its machine",
)
READ_ONLY: Final = Rule(
    DefiniteError,
    "server-read-only",
    "the server is read-only: {message}",
    "set the primary, not a standby, as the source; on a primary, ALTER ROLE {user_quoted} RESET "
    "default_transaction_read_only;",
)
REFUSED_SESSION: Final = Rule(
    ConfigurationError,
    "connection-refused",
    "the server answers, but refuses this connection: {message}",
    "check user, password, database and sslmode of the source section, and the server's pg_hba.conf and log",
)
UNCONVERTIBLE: Final = Rule(
    DefiniteError,
    "character-not-convertible",
    "a text of the database cannot be converted to UTF-8: {message}",
    "correct the text at the source, or leave its table out with source.exclude; "
    "`smelt explain-error character-not-convertible` shows how to find it",
)
UNKNOWN: Final = Rule(
    DefiniteError,
    "server-error",
    "PostgreSQL reported an error: {message}",
    "read the server's log; if the error persists, report it with the SQLSTATE above",
)

UNDECODABLE: Final = Rule(
    DefiniteError,
    "stream-undecodable",
    "the server cannot send a change of slot {slot}: {message}",
    "correct the cause that the message names at the source (a missing library); to give up a change that "
    "can never be sent (a value of more than about 500 MB): `smelt snapshot FILE --all` creates a new slot "
    "and resnapshots every table. Bronze then also lacks the other changes since the end of bronze",
)

TOO_LARGE: Final = Rule(
    TransientError,
    "stream-out-of-memory",
    "the server has no memory for a change of slot {slot}: {message}",
    "nothing to do at first: the reader retries. If the error stays at the same LSN, add memory to the "
    "server, or give up the change: `smelt snapshot FILE --all` creates a new slot and resnapshots every "
    "table. Bronze then also lacks the other changes since the end of bronze",
)

OF_TABLES: Final = (ROW_SECURITY, PERMISSION, UNCONVERTIBLE)
"""Failures of a statement on a single table that concern the table."""

REFUSALS: Final = frozenset(
    {
        rule.code
        for rule in (
            PASSWORD_REJECTED,
            PASSWORD_MISSING,
            ROLE_UNKNOWN,
            CONNECT_DENIED,
            HBA,
            SSL,
            SSL_NOT_OFFERED,
            SSL_UNTRUSTED,
            SSL_HOST,
            SSL_FILE,
            CLIENT_CERTIFICATE,
            AUTH_METHOD,
            REPLICATION_DENIED,
            READ_ONLY,
            SLOTS_EXHAUSTED,
        )
    }
    | {"server-in-recovery", "senders-exhausted"}
)
"""The server answers, but refuses the connection, perhaps temporarily if an earlier connection succeeded.

A standby that is about to be promoted already answers at its primary's address. A slot or walsender in use is
free again after the other session ends.
"""
