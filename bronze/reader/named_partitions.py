"""Partitions that the stream named, as looks decide on them: which are on record, and which are whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bronze.drift.streamed_queries import has_all_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    import psycopg

    from bronze.catalog.source_table import SourceTable
    from bronze.drift.streamed import StreamedParts
    from bronze.identifiers import TableName


class NamedPartitions:
    """What looks proved of named partitions. Only looks, one at a time, touch this.

    A proof speaks of a transaction that is over, so the proof stays true when rows change later.
    """

    def __init__(self) -> None:
        self._whole: set[int] = set()

    def prove(
        self,
        connection: psycopg.Connection[Any],
        tables: Iterable[SourceTable],
        streamed: Mapping[TableName, StreamedParts],
    ) -> dict[TableName, StreamedParts]:
        """Return the records, with the partitions that proved to have all rows that were streamed.

        Args:
            connection: in autocommit mode; asked only where one transaction created and filled a partition.
            tables: as this look saw them.
            streamed: records from before this look.
        """
        if not streamed:
            self._whole.clear()
            return {}
        storages = {table.table: table.storage for table in tables}
        proved: set[int] = set()
        for root, parts in streamed.items():
            storage = storages.get(root)
            if storage is None:
                continue
            for oid, named in parts.made_and_filled(storage).items():
                if oid in self._whole or has_all_rows(connection, storage.parts[oid], named):
                    proved.add(oid)
        self._whole = proved
        return {root: parts.with_whole(proved) for root, parts in streamed.items()}
