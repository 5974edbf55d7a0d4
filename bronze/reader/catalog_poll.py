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
    """The immutable result of one catalog poll; the next poll replaces the result.

    Attributes:
        carried: whether bronze keeps the stream's changes, by selected table.
        members: tables without a problem that the publication carries.
        due: tables to be copied now.
        waiting: tables that need a snapshot, but wait for foreign transactions or for a session that begins
            after these (`bronze.drift.joining`).
        rejoining: tables that are carried again and wait for a session that reads them.
        unknown: versions with columns in doubt (`bronze.store.relations.ShapeLog.unknown_columns`).
        request_count: number of the stream's requests for tables when the poll began.
        oids: OIDs of the selected tables and their partitions.
        types: OIDs of the enums and composites in the tables' columns.
        frontier: bronze's frontier before the poll.
        shapes_at: LSN that the stream must reach so that silver has the shapes recorded by polls. Silver
            reads versions that begin before bronze's frontier, whenever the frontier moves.
        cut_short: whether shapes are left to the next poll, which follows at once.
        uncopied: tables without a problem that need a snapshot, due or not.
    """

    carried: Mapping[TableName, bool] = field(default_factory=dict)
    members: tuple[TableName, ...] = ()
    due: tuple[SourceTable, ...] = ()
    waiting: frozenset[TableName] = frozenset()
    rejoining: frozenset[TableName] = frozenset()
    requests: Mapping[TableName, Lsn] = field(default_factory=dict)
    unknown: Mapping[int, Lsn] = field(default_factory=dict)
    request_count: int = 0
    oids: frozenset[int] = frozenset()
    types: frozenset[int] = frozenset()
    frontier: Lsn = ZERO
    shapes_at: Lsn = ZERO
    cut_short: bool = False
    uncopied: frozenset[TableName] = frozenset()
