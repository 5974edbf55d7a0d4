"""The connection as the pipeline file names it: as it was given, but without its secrets.

A secret stays in the environment. The file names the variable that holds it in a separate key, not inside
the connection string, where a password with an ``@`` would have to be percent-encoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

from psycopg.conninfo import conninfo_to_dict, make_conninfo

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECRETS: Final = {"password": "PGPASSWORD", "sslpassword": "PGSSLPASSWORD"}
_IN_AUTHORITY: Final = ("user", "host", "port", "dbname")


@dataclass(frozen=True, slots=True)
class WrittenDsn:
    """A connection string that may be shown.

    Attributes:
        secrets: key of the pipeline file to the environment variable that holds its value.
    """

    text: str
    secrets: Mapping[str, str]


def without_password(dsn: str) -> WrittenDsn:
    """The connection string to be written, and where its secrets are to be found.

    Args:
        dsn: a libpq URI or keyword string that libpq can read.
    """
    values = {key: str(value) for key, value in conninfo_to_dict(dsn).items() if value is not None}
    secrets = {key: variable for key, variable in _SECRETS.items() if values.pop(key, None) is not None}
    if not secrets:
        return WrittenDsn(dsn, {})
    if "://" in dsn:
        uri = _uri(values)
        if {key: str(value) for key, value in conninfo_to_dict(uri).items()} == values:
            return WrittenDsn(uri, secrets)
    return WrittenDsn(make_conninfo("", **values), secrets)


def _uri(values: Mapping[str, str]) -> str:
    user = f"{quote(values['user'], safe='')}@" if "user" in values else ""
    hosts = values.get("host", "").split(",")
    ports = values.get("port", "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    places = ",".join(
        _host(host) + (f":{port}" if port else "") for host, port in zip(hosts, ports, strict=False)
    )
    database = f"/{quote(values['dbname'], safe='')}" if "dbname" in values else ""
    rest = {key: value for key, value in values.items() if key not in _IN_AUTHORITY}
    return f"postgresql://{user}{places}{database}" + (f"?{urlencode(rest, quote_via=quote)}" if rest else "")


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else quote(host, safe="")
