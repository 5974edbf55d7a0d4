"""Define the result of one catalog poll (`bronze.reader.carried_tables`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltasmelt.bronze.lsn import ZERO, Lsn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.identifiers import TableName


@dataclass(frozen=True, slots=True)
class CatalogPoll:
    """The immutable result of one catalog poll; the next poll replaces the result."""

    # whether bronze keeps the stream's changes, by selected table; False also for a name that the
    # catalog no longer has and whose rules changed
    carried: Mapping[TableName, bool] = field(default_factory=dict)
    # tables without a problem that the publication carries
    members: tuple[TableName, ...] = ()
    # tables to be copied now
    due: tuple[SourceTable, ...] = ()
    # tables that need a snapshot, but wait for foreign transactions or for a session that begins after these
    # (`bronze.drift.joining`)
    waiting: frozenset[TableName] = frozenset()
    # tables that are carried again and wait for a session that reads them
    rejoining: frozenset[TableName] = frozenset()
    requests: Mapping[TableName, Lsn] = field(default_factory=dict)
    # versions with columns in doubt (`bronze.store.relations.ShapeLog.unknown_columns`)
    unknown: Mapping[int, Lsn] = field(default_factory=dict)
    # number of the stream's requests for tables when the poll began
    request_count: int = 0
    # OIDs of the selected tables and their partitions
    oids: frozenset[int] = frozenset()
    # OIDs of the enums and composites in the tables' columns
    types: frozenset[int] = frozenset()
    # bronze's frontier before the poll
    frontier: Lsn = ZERO
    # LSN that the stream must reach so that silver has the shapes recorded by polls. Silver reads versions
    # that begin before bronze's frontier, whenever the frontier moves.
    shapes_at: Lsn = ZERO
    # whether shapes are left to the next poll, which follows at once
    cut_short: bool = False
    # tables without a problem that need a snapshot, due or not
    uncopied: frozenset[TableName] = frozenset()
    # the table whose old snapshot is replaced now, if nothing else is to be copied
    renewal: tuple[SourceTable, ...] = ()
