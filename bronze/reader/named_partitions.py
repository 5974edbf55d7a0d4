"""Prove named partitions whole: which partitions of the stream's records have all their rows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.drift.streamed_queries import has_all_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import Any

    import psycopg

    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.drift.streamed import StreamedParts
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lsn import Lsn


_SECONDS: Final = 60.0
"""Time limit of one poll for all proofs; a table with an unproved partition is resnapshotted."""


class NamedPartitions:
    """Proofs of named partitions by catalog polls. Only polls, one at a time, access this object.

    A proof concerns a finished transaction, so the proof stays true when rows change later, and so does a
    refutation. Both hold for a partition and the transaction that named the partition.
    """

    def __init__(self) -> None:
        self._whole: set[tuple[int, Lsn]] = set()
        self._refused: set[tuple[int, Lsn]] = set()

    def prove(
        self,
        connection: psycopg.Connection[Any],
        tables: Iterable[SourceTable],
        streamed: Mapping[TableName, StreamedParts],
        waiting: Collection[TableName],
    ) -> dict[TableName, StreamedParts]:
        """Return the records, with the partitions that provably have all streamed rows.

        Args:
            connection: in autocommit mode; queried only if one transaction created and filled a partition.
            streamed: records from before this poll.
        """
        storages = {table.table: table.storage for table in tables if table.table not in waiting}
        on_record = {
            (oid, named.commit_lsn) for parts in streamed.values() for oid, named in parts.named.items()
        }
        self._whole &= on_record
        self._refused &= on_record
        deadline = time.monotonic() + _SECONDS
        for root, parts in streamed.items():
            storage = storages.get(root)
            if storage is None:
                continue
            for oid, part in parts.made_and_filled(storage).items():
                doubt = oid, part.commit_lsn
                if doubt in self._whole:
                    continue
                # A single partition without a proof causes a resnapshot of the table, so the table's other
                # partitions need no query.
                if doubt in self._refused or time.monotonic() >= deadline:
                    break
                if not has_all_rows(connection, storage.parts[oid], part):
                    self._refused.add(doubt)
                    break
                self._whole.add(doubt)
        proved = {oid for oid, _ in self._whole}
        return {root: parts.with_whole(proved) for root, parts in streamed.items()}
