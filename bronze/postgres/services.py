"""Managed services: how one is recognised, and how there one does what ``ALTER SYSTEM`` does elsewhere.

A service gives nobody a superuser, so cures that need one are no cures there. Each has a role of its own in
every cluster, by which it is recognised. Where replication comes by membership in a role instead of the
attribute REPLICATION, that role is named too; whether it suffices is tried, not believed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.identifiers import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True, slots=True)
class Service:
    """Where settings and privileges come from.

    Attributes:
        name: as messages say it; empty for a server of one's own.
        marker: role that every cluster of the service has.
        replicators: roles whose members may replicate.
        parameters: where settings are changed; empty: by ALTER SYSTEM.
        logical: what gives ``wal_level = logical``.
    """

    name: str
    marker: str
    replicators: tuple[str, ...]
    parameters: str
    logical: str

    def setting(self, name: str, value: str, *, restart: bool = False) -> str:
        """How to change a setting of the server."""
        if self.parameters:
            after = "; then restart the instance" if restart else ""
            return f"set {name} = {value} in {self.parameters}{after}"
        apply = "then restart PostgreSQL" if restart else "SELECT pg_reload_conf();"
        return f"ALTER SYSTEM SET {name} = {_literal(value)}; {apply}"

    def replication(self, role: str) -> str:
        """The SQL that lets a role replicate."""
        quoted = quote_identifier(role)
        if self.replicators:
            return f"GRANT {quote_identifier(self.replicators[0])} TO {quoted};"
        return f"ALTER ROLE {quoted} REPLICATION;"


OWN: Final = Service("", "", (), "", "ALTER SYSTEM SET wal_level = logical; then restart PostgreSQL")
"""A server of one's own."""

SERVICES: Final = (
    Service(
        name="Amazon RDS or Aurora",
        marker="rds_superuser",
        replicators=("rds_replication", "rds_superuser"),
        parameters="the DB parameter group",
        logical="set rds.logical_replication = 1 in the DB parameter group; then reboot the instance",
    ),
    Service(
        name="Google Cloud SQL",
        marker="cloudsqlsuperuser",
        replicators=(),
        parameters="the flags of the instance",
        logical="set the flag cloudsql.logical_decoding = on; the instance restarts",
    ),
    Service(
        name="Google AlloyDB",
        marker="alloydbsuperuser",
        replicators=(),
        parameters="the flags of the instance",
        logical="set the flag alloydb.logical_decoding = on; the instance restarts",
    ),
    Service(
        name="Azure Database",
        marker="azure_pg_admin",
        replicators=(),
        parameters="the server parameters",
        logical="set wal_level = logical in the server parameters; then restart the server",
    ),
)

ROLES: Final = tuple(dict.fromkeys(role for each in SERVICES for role in (each.marker, *each.replicators)))
"""Every role that tells something."""


def service_of(roles: Collection[str]) -> Service:
    """The service whose roles a cluster has; `OWN` where it has none. Pure."""
    return next(
        (each for each in SERVICES if each.marker in roles or set(each.replicators) & set(roles)), OWN
    )


def _literal(value: str) -> str:
    return value if value.isdigit() else f"'{value}'"
