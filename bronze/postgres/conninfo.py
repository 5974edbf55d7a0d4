"""libpq's connection string of the source, with each setting that decides how values print.

Snapshot and stream must print equal values of a row equally, despite ``ALTER DATABASE … SET`` or ``ALTER ROLE
… SET``. The settings therefore travel in the start-up packet's ``options``. PostgreSQL applies the options
after the settings of database and role (source ``PGC_S_CLIENT``). A user's own ``options`` (from DSN, service
file or PGOPTIONS) come before deltasmelt's.

Two things can still override or drop the options: the variables PGTZ and PGDATESTYLE (libpq sends both as
separate parameters), and a connection pooler. For these cases `bronze.postgres.connection.set_up_session`
repeats the settings on the open session.

A connection string contains the password and never appears in a message; messages use `address_of`.
`address_of` shows only names that `bronze.postgres.dsn` has checked.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from psycopg import pq
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.postgres.dsn import read_dsn, require_plain_names, require_sendable

if TYPE_CHECKING:
    from psycopg import ConnectionInfo

    from deltasmelt.bronze.config.sections import SourceSettings

SESSION_SETTINGS: Final = {
    "TimeZone": "UTC",
    "DateStyle": "ISO,MDY",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "xmloption": "content",
    "standard_conforming_strings": "on",
    "row_security": "off",  # a query that a policy would filter fails instead of returning fewer rows
    "search_path": "pg_catalog",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
"""Session settings of every connection to the source; every PostgreSQL since 9.6 has all of them."""

_DEFAULTS: Final = {
    "connect_timeout": "10",
    # Keepalives detect a vanished peer within a minute instead of two hours.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    # Unacknowledged data suspends keepalives; this timeout detects a vanished peer meanwhile.
    "tcp_user_timeout": "60000",
}

_KEYWORDS: Final = (
    "host", "hostaddr", "port", "user", "service", "passfile", "target_session_attrs", "channel_binding",
    "sslmode", "sslrootcert", "sslcert", "sslkey",
)  # fmt: skip

_OWN: Final = frozenset(
    {
        "service", "servicefile", "passfile", "target_session_attrs", "load_balance_hosts",
        "application_name", "fallback_application_name", "client_encoding", "replication",
    }
)  # fmt: skip
"""Keywords that `pinned` leaves out: already resolved, or specific to one connection."""

# libpq resolves all values, then refuses this sslmode before opening a connection or a password file.
_NEVER: Final = {"sslmode": "-", "passfile": "/dev/null/none"}


def conninfo(source: SourceSettings, **extra: str) -> str:
    """Return the source's libpq connection string. The string may contain the password: never log it.

    `extra` overrides the settings (``application_name``, ``replication``).

    Raises:
        ConfigurationError: the DSN cannot be read.
    """
    values = {**_configured(source), **extra}
    effective = _effective(source)
    for keyword, value in _DEFAULTS.items():
        if keyword not in values and keyword not in effective:
            values[keyword] = value
    # Passing `options` hides the options of a service file from libpq: read the effective options first.
    options = values.get("options") or effective.get("options") or ""
    pinned = " ".join(f"-c {name}={value}" for name, value in SESSION_SETTINGS.items())
    values["options"] = f"{options} {pinned}".strip()
    values["client_encoding"] = "UTF8"
    return make_conninfo("", **values)


def replication_conninfo(source: SourceSettings, *, application_name: str = "deltasmelt") -> str:
    """Return the connection string of a walsender for logical replication. May contain the password.

    Raises:
        ConfigurationError: the DSN cannot be read.
    """
    return conninfo(source, replication="database", application_name=application_name)


def pinned(source: SourceSettings, info: ConnectionInfo) -> SourceSettings:
    """Return the source as an open connection reached it, for processes in another environment.

    The result contains all values from a service file, a password file or libpq's variables, the password
    too. TLS files remain paths.
    """
    parameters = info.get_parameters()
    values = {keyword: value for keyword, value in parameters.items() if keyword not in _OWN}
    # Of several hosts, name the host that answered, because no other server knows a snapshot.
    values |= {"host": info.host, "port": str(info.port)}
    if "hostaddr" in values:
        values["hostaddr"] = info.hostaddr
    if info.password:
        values["password"] = info.password
    dsn = SecretStr(make_conninfo("", **{keyword: value for keyword, value in values.items() if value}))
    plain: dict[str, object] = dict.fromkeys((*_KEYWORDS, "database", "password", "sslpassword"))
    return source.model_copy(update={**plain, "dsn": dsn})


def address_of(source: SourceSettings) -> str:
    """Return the source's address for messages: ``host:port/database as user``, never a password."""
    try:
        values = _effective(source)
    except ConfigurationError:
        return "source.dsn"
    service = values.get("service")
    if service and "user" not in values:  # libpq sets a user, unless the service is unknown
        return f"service {service}"
    user = values.get("user", "?")
    host = values.get("host") or values.get("hostaddr") or "local socket"
    port = values.get("port") or "5432"
    database = values.get("dbname") or user
    if ":" in host and not host.startswith(("/", "[")) and "," not in host:
        host = f"[{host}]"
    return f"{host}:{port}/{database} as {user}"


def user_and_database(source: SourceSettings) -> tuple[str, str]:
    """Return the names of role and database for messages, as far as known before a connection."""
    try:
        values = _effective(source)
    except ConfigurationError:
        return "?", "?"
    user = values.get("user") or "?"
    return user, values.get("dbname") or user


def without_passwords(text: str, source: SourceSettings) -> str:
    """Return `text` with every password of the source replaced, in case a library put a password there."""
    try:
        values = _effective(source)
    except ConfigurationError:
        values = {}
    secrets = {values.get("password"), values.get("sslpassword"), os.environ.get("PGPASSWORD")}
    # A password equal to a plain name of the connection is indistinguishable from the name; a replacement
    # would only garble the message.
    plain = {values.get(keyword) for keyword in ("user", "dbname", "host", "port")}
    for secret in sorted((value for value in secrets - plain if value), key=len, reverse=True):
        text = text.replace(secret, "****")
    return text


def _configured(source: SourceSettings) -> dict[str, str]:
    """Return the pipeline file's values as libpq keywords; keywords override the DSN."""
    values: dict[str, str] = {}
    if source.dsn is not None:
        values = read_dsn(source.dsn.get_secret_value())
    keys: dict[str, str] = {}
    for keyword in _KEYWORDS:
        value = getattr(source, keyword)
        if value is not None:
            keys[keyword] = str(value)
    if source.database is not None:
        keys["dbname"] = source.database
    for keyword, secret in (("password", source.password), ("sslpassword", source.sslpassword)):
        if secret is not None:
            keys[keyword] = secret.get_secret_value()
    require_sendable(keys)
    require_plain_names(keys, "source")
    return {**values, **keys}


def _effective(source: SourceSettings) -> dict[str, str]:
    """Return libpq's effective values: the pipeline file, then service file, variables, built-in values."""
    keywords = _configured(source)
    # Only libpq knows the rules, so libpq resolves all values for a connection that libpq then refuses to
    # begin. If libpq does not find the service, the pipeline file's values remain.
    attempt = pq.PGconn.connect_start(make_conninfo("", **{**keywords, **_NEVER}).encode())
    try:
        resolved = {option.keyword.decode(): option.val.decode() for option in attempt.info if option.val}
    finally:
        attempt.finish()
    return {**{keyword: value for keyword, value in resolved.items() if keyword not in _NEVER}, **keywords}
