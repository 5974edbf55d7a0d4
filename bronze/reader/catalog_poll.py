"""The result of one look at the catalog (`bronze.reader.carried_tables`)."""

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
    """What one look found. Nothing of it is changed later; the next look replaces it.

    Attributes:
        carried: of each selected table, whether the stream's changes are kept.
        members: tables without a problem that the publication carries.
        due: those that are to be copied now.
        waiting: those that need a snapshot, but wait for transactions of others or for a session that begins
            after these (`bronze.drift.joining`).
        rejoining: those that are carried again, and wait for a session that reads them.
        requests: resnapshot marks of `members`.
        unknown: versions with columns in doubt (`bronze.store.relations.ShapeLog.unknown_columns`).
        asked: how often the stream had asked for tables when the look began.
        oids: of the selected tables and their partitions.
        types: OIDs of the enums and composites that their columns are made of.
        frontier: bronze's before the look.
        shapes_at: up to where the stream has to come so that silver has the shapes that looks recorded: it
            takes over what begins before bronze's frontier, and looks when that moves.
        cut_short: shapes are left to the next look, which follows at once.
        uncopied: tables without a problem that need a snapshot, due or not.
    """

    carried: Mapping[TableName, bool] = field(default_factory=dict)
    members: tuple[TableName, ...] = ()
    due: tuple[SourceTable, ...] = ()
    waiting: frozenset[TableName] = frozenset()
    rejoining: frozenset[TableName] = frozenset()
    requests: Mapping[TableName, Lsn] = field(default_factory=dict)
    unknown: Mapping[int, Lsn] = field(default_factory=dict)
    asked: int = 0
    oids: frozenset[int] = frozenset()
    types: frozenset[int] = frozenset()
    frontier: Lsn = ZERO
    shapes_at: Lsn = ZERO
    cut_short: bool = False
    uncopied: frozenset[TableName] = frozenset()
