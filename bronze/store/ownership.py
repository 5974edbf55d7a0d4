"""The owner of a lake: pipeline, cluster and database of the changes in `bronze.changes`.

The properties of `bronze.changes` name the owner, from the commit that creates the table. LSNs of two
clusters, and tables of two databases, cannot be compared. A lake of another source is therefore refused
before it is compared with a server or written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.failures import lake_failures, lake_opened
from deltasmelt.bronze.store.contract import (
    CHANGES,
    DATABASE_PROPERTY,
    PIPELINE_PROPERTY,
    SYSTEM_PROPERTY,
    require_format,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.postgres.connection import ServerIdentity

_WHOSE: Final = {
    PIPELINE_PROPERTY: ("lake-of-another-pipeline", "pipeline"),
    SYSTEM_PROPERTY: ("lake-of-another-server", "PostgreSQL cluster (system identifier)"),
    DATABASE_PROPERTY: ("lake-of-another-database", "database"),
}


def owner_properties(pipeline: str, server: ServerIdentity | None = None) -> dict[str, str]:
    """Return the properties that name a pipeline and, if given, the server of its source."""
    properties = {PIPELINE_PROPERTY: pipeline}
    if server is not None:
        properties[SYSTEM_PROPERTY] = str(server.system_identifier)
        properties[DATABASE_PROPERTY] = server.database
    return properties


def foreign(uri: str, recorded: Mapping[str, str], ours: Mapping[str, str]) -> Iterator[DefiniteError]:
    """Yield an error for each property in `recorded` that differs from `ours` (`owner_properties`). Pure."""
    for name, (code, kind) in _WHOSE.items():
        if name in ours and name in recorded and recorded[name] != ours[name]:
            yield DefiniteError(
                f"this lake holds changes of {kind} {recorded[name]!r}, not of {ours[name]!r}",
                code=code,
                where=uri,
                remedy="set another lake.path, or correct the source section; if the source was replaced "
                "permanently, move this lake away and start with a new lake",
            )


def require_own_lake(
    lake: Lake, pipeline: str, server: ServerIdentity | None = None, *, again: bool = False
) -> Table | None:
    """Open `bronze.changes`; refuse a lake of another format, pipeline, cluster or database.

    Without `server` only format and pipeline are compared. `again` means that this process has opened the
    lake before; a missing bucket is then an outage, no mistake.

    Returns:
        The table; None before bronze has begun.

    Raises:
        DefiniteError: ``lake-format``, ``lake-of-another-pipeline``, ``lake-of-another-server``,
            ``lake-of-another-database``; ``lake-bucket``, ``lake-credentials`` of an object store.
        TransientError: the lake cannot be read.
    """
    uri = lake.uri("bronze", CHANGES)
    with lake_failures(uri) if again else lake_opened(uri):
        changes = delta.open_table(uri)
        if changes is not None:
            refuse_foreign(changes, pipeline, server)
    return changes


def refuse_foreign(changes: Table, pipeline: str, server: ServerIdentity | None = None) -> None:
    """Refuse an open `bronze.changes` for the reasons of `require_own_lake`.

    Raises:
        DefiniteError: the same errors as `require_own_lake`.
    """
    require_format(changes)
    for error in foreign(
        changes.table_uri, changes.metadata().configuration, owner_properties(pipeline, server)
    ):
        raise error
