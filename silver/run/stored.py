"""The state of a silver table in its log, and the check that separates two histories of one folder."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lsn import Lsn
from deltasmelt.silver.schema.ddl import FEED, RELATION_PROPERTY
from deltasmelt.silver.schema.fields import DeltaColumn, fields_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.silver.schema.catalog import SilverTable

SILVER_APP: Final = "deltasmelt.silver"
"""Application id of the mark; the mark's version is the LSN up to which the table is done."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The state of a silver table in the lake.

    Attributes:
        mark: LSN of the newest window in the table; None without a window.
        fields: all columns of the table, silver's own columns included.
        files: number of data files.
        relation: id of the relation that owns the rows (`silver.schema.ddl`); None for a table older than the
            property.
        description: the table's comment; empty without a comment.
        table_id: a number computed from the table's Delta id.
    """

    version: int
    mark: Lsn | None
    fields: tuple[DeltaColumn, ...]
    files: int
    relation: str | None = None
    description: str = ""
    properties: Mapping[str, str] = field(default_factory=dict, compare=False)
    table_id: int | None = None

    @property
    def has_feed(self) -> bool:
        """Whether the table has a change feed, which gold needs."""
        return self.properties.get(FEED) == "true"


def stored_of(table: Table) -> Stored:
    """Return the state of a table at the handle's version.

    Raises:
        DefiniteError: ``catalog-name-taken``: another program created the table.
    """
    table.require_ours(RELATION_PROPERTY)
    mark = table.transaction_version(SILVER_APP)
    return Stored(
        table.version(),
        None if mark is None else Lsn(mark),
        tuple(fields_of(json.loads(table.schema().to_json()))),
        len(table.file_uris()),
        table.metadata().configuration.get(RELATION_PROPERTY),
        table.metadata().description or "",
        table.metadata().configuration,
        int.from_bytes(hashlib.sha256(str(table.metadata().id).encode()).digest()[:8], signed=True),
    )


def loses(table: SilverTable, before: Stored, after: Stored) -> bool:
    """Check whether a later version lacks a column, or a field in a column, that the table's shape needs."""
    needed = {*table.own_columns, *(column.attnum for column in table.columns)}
    had, has = ({(one.attnum or one.name, one.ddl) for one in stored.fields} for stored in (before, after))
    return any(column in needed for column, _ in had - has)
