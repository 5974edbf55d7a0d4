"""Parse a connection string without ever showing a part of the string: any part may be the password.

libpq is generous. A ``/`` or ``@`` in a password that is not percent-encoded makes a different URI that libpq
accepts: in ``postgresql://me:Pa55/Word@host/db`` the host is ``me``, the port ``Pa55``, the database
``Word@host/db``. Messages show the names of host, port, database and user. The string must therefore be
refused before any part counts as a name. Comments at the checks give the reasons.

A well-formed string with another meaning cannot be detected: ``postgresql://me:12/Word`` has the port 12.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from deltasmelt.bronze.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_URI: Final = re.compile(r"postgres(?:ql)?://(?P<rest>.*)", re.DOTALL)
_OF_LIBRARIES: Final = re.compile(
    r"jdbc:postgresql://|postgres(?:ql)?\+(?:psycopg2?|psycopg2cffi|psycopg_async|asyncpg|pg8000|aiopg)://",
    re.IGNORECASE,
)
_OTHER_SCHEME: Final = re.compile(
    r"(?:jdbc:)?(?P<scheme>mysql|mariadb|mssql|sqlserver|oracle|sqlite|mongodb|redshift|snowflake|https?)\b"
    r"[a-z0-9+:]*//",
    re.IGNORECASE,
)
"""Only names of these lists are shown: any other text before ``://`` may be a part of a password."""
_NAMES: Final = ("host", "hostaddr", "port", "dbname", "user", "service", "application_name")
_HIGHEST_PORT: Final = 65535


def read_dsn(dsn: str) -> dict[str, str]:
    """Return the libpq keywords of a URI or keyword string.

    Raises:
        ConfigurationError: ``dsn-invalid``; the message contains no part of the string.
    """
    require_sendable({"dsn": dsn})
    uri = _URI.match(dsn)
    if uri is not None:
        authority, _, path = uri["rest"].partition("/")
        # An unencoded @ ends user and password, so a URI has at most one @, before the first /. A further @
        # may be the intended end of a password; a user encodes a literal @.
        if "@" in path or authority.count("@") > 1:
            raise _unreadable("an @ or / in user or password is not percent-encoded")
    try:
        values = {
            keyword: str(value) for keyword, value in conninfo_to_dict(dsn).items() if value is not None
        }
    except (psycopg.Error, UnicodeDecodeError):  # %91 is no UTF-8
        # libpq quotes the refused string, sometimes with the tail of a password that was cut at a quote or a
        # space. So the message never repeats libpq's text.
        raise _foreign(dsn) or _unreadable(
            "libpq cannot read it as a URI"
            if uri
            else "it is neither a URI nor a list like host=… dbname=…"
            if "=" not in dsn
            else "libpq cannot read it as a list of keyword=value"
        ) from None
    require_plain_names(values, "source.dsn")
    return values


def require_plain_names(values: Mapping[str, str], where: str) -> None:
    """Refuse names of a connection that may contain a password; `where` is the place in the pipeline file.

    Raises:
        ConfigurationError: ``dsn-invalid``; the message contains no part of the values.
    """
    for keyword in _NAMES:
        if "://" in values.get(keyword, ""):  # a whole connection string in the place of a name
            raise _unreadable(f"{keyword} holds another connection string", where)
    if "@" in values.get("host", "") or "@" in values.get("hostaddr", ""):
        raise _unreadable("an @ in user or password is not percent-encoded", where)
    if not all(_is_port(port) for port in values.get("port", "").split(",")):
        raise _unreadable("the port is not a number (is a : or / of the password not encoded?)", where)


def require_sendable(values: Mapping[str, str], section: str = "source") -> None:
    """Refuse values that libpq's strings cannot carry: the strings end at a NUL, and are UTF-8 here.

    Raises:
        ConfigurationError: ``dsn-invalid``; the message contains no part of the values.
    """
    for key, value in values.items():
        if "\0" in value or any("\ud800" <= sign <= "\udfff" for sign in value):
            raise _unreadable("a value contains a NUL, or bytes that are not UTF-8", f"{section}.{key}")


def _is_port(text: str) -> bool:
    return not text or (text.isascii() and text.isdigit() and int(text) <= _HIGHEST_PORT)


def _foreign(dsn: str) -> ConfigurationError | None:
    """Return the error of a string for another library or database; None if the string is none."""
    if other := _OTHER_SCHEME.match(dsn):
        return _unreadable(f"{other['scheme'].lower()} is another database than PostgreSQL")
    own = _OF_LIBRARIES.match(dsn)
    if own is None:
        return None
    return _unreadable(f"it begins with {own[0].lower()}, which libpq does not know")


def _unreadable(reason: str, where: str = "source.dsn") -> ConfigurationError:
    return ConfigurationError(
        f"the connection string cannot be read: {reason}",
        code="dsn-invalid",
        where=where,
        remedy="write postgresql://user@host:5432/database, and set the password in PGPASSWORD; special "
        "characters of user and password are percent-encoded (@ as %40, / as %2F, : as %3A, % as %25). Or "
        "use the keys host, port, database, user and password",
    )
