"""Whose lake it is: which pipeline, cluster and database the changes of `bronze.changes` come from.

The properties of `bronze.changes` say so from the commit that makes the table. LSNs of two clusters, and
tables of two databases, have nothing in common. So a lake of another source is refused before it is compared
with a server or written.
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

    from deltalake import DeltaTable

    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.postgres.connection import ServerIdentity

_WHOSE: Final = {
    PIPELINE_PROPERTY: ("lake-of-another-pipeline", "pipeline"),
    SYSTEM_PROPERTY: ("lake-of-another-server", "PostgreSQL cluster (system identifier)"),
    DATABASE_PROPERTY: ("lake-of-another-database", "database"),
}


def owner_properties(pipeline: str, server: ServerIdentity | None = None) -> dict[str, str]:
    """Return the properties that name a pipeline and, where it is given, the server of its source."""
    properties = {PIPELINE_PROPERTY: pipeline}
    if server is not None:
        properties[SYSTEM_PROPERTY] = str(server.system_identifier)
        properties[DATABASE_PROPERTY] = server.database
    return properties


def foreign(uri: str, found: Mapping[str, str], ours: Mapping[str, str]) -> Iterator[DefiniteError]:
    """Yield an error for each property by which a lake belongs to somebody else. Pure.

    Args:
        uri: location of `bronze.changes`.
        found: properties of `bronze.changes`.
        ours: as `owner_properties` gives them.
    """
    for name, (code, what) in _WHOSE.items():
        if name in ours and name in found and found[name] != ours[name]:
            yield DefiniteError(
                f"this lake holds changes of {what} {found[name]!r}, not of {ours[name]!r}",
                code=code,
                where=uri,
                remedy="give another lake.path, or correct the section source; if the source was replaced "
                "for good, move this lake away and start anew",
            )


def require_own_lake(
    lake: Lake, pipeline: str, server: ServerIdentity | None = None, *, again: bool = False
) -> DeltaTable | None:
    """Open `bronze.changes`; refuse a lake of another format, pipeline, cluster or database.

    Args:
        lake: where it lies.
        pipeline: name of the pipeline.
        server: the source's; None: the server is not asked.
        again: this process has opened the lake before. Then a missing bucket is an outage, not a mistake.

    Returns:
        The table; None where bronze has not begun.

    Raises:
        DefiniteError: ``lake-format``, ``lake-of-another-pipeline``, ``lake-of-another-server``,
            ``lake-of-another-database``; ``lake-bucket``, ``lake-credentials`` of an object store.
        TransientError: the lake cannot be read.
    """
    uri = delta.location(lake, "bronze", CHANGES)
    with lake_failures(uri) if again else lake_opened(uri):
        changes = delta.open_table(uri)
        if changes is not None:
            refuse_foreign(changes, pipeline, server)
    return changes


def refuse_foreign(changes: DeltaTable, pipeline: str, server: ServerIdentity | None = None) -> None:
    """Refuse an open `bronze.changes` as `require_own_lake` does.

    Raises:
        DefiniteError: as `require_own_lake`.
    """
    require_format(changes)
    for error in foreign(
        changes.table_uri, changes.metadata().configuration, owner_properties(pipeline, server)
    ):
        raise error
