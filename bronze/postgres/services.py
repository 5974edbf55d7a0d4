"""Managed services: the signs of each service, and the service's replacement for ``ALTER SYSTEM``.

A service grants no superuser, so a remedy that needs a superuser is useless there. Each service has a role in
every cluster, and deltasmelt recognises the service by the role. In some services membership in a role
replaces the attribute REPLICATION. `replicators` names this role; a trial, not the catalog, decides whether
the membership suffices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.identifiers import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True, slots=True)
class Service:
    """The source of settings and privileges."""

    # name of the service in messages; empty for a self-managed server
    name: str
    # role that every cluster of the service has
    marker: str
    # roles whose members may replicate
    replicators: tuple[str, ...]
    # the place to change settings; empty: by ALTER SYSTEM
    parameters: str
    # the steps to set `wal_level = logical`
    logical: str

    def setting(self, name: str, value: str, *, restart: bool = False) -> str:
        """Return the steps to change a setting of the server."""
        if self.parameters:
            after = "; then restart the instance" if restart else ""
            return f"set {name} = {value} in {self.parameters}{after}"
        apply = "then restart PostgreSQL" if restart else "SELECT pg_reload_conf();"
        return f"ALTER SYSTEM SET {name} = {_literal(value)}; {apply}"

    def replication(self, role: str) -> str:
        """Return the SQL that allows a role to replicate."""
        quoted = quote_identifier(role)
        if self.replicators:
            return f"GRANT {quote_identifier(self.replicators[0])} TO {quoted};"
        return f"ALTER ROLE {quoted} REPLICATION;"


OWN: Final = Service("", "", (), "", "ALTER SYSTEM SET wal_level = logical; then restart PostgreSQL")
"""A self-managed server."""

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

ROLES: Final = tuple(
    dict.fromkeys(role for service in SERVICES for role in (service.marker, *service.replicators))
)
"""Every role that identifies a service."""


def service_of(roles: Collection[str]) -> Service:
    """Return the service with these roles of a cluster; otherwise `OWN`. Pure."""
    return next(
        (service for service in SERVICES if service.marker in roles or set(service.replicators) & set(roles)),
        OWN,
    )


def _literal(value: str) -> str:
    return value if value.isdigit() else f"'{value}'"
