"""`control.partitions`: partitions that the stream named before a poll saw them (`bronze.drift.streamed`).

Only the stream's thread records; polls only read. So no poll overwrites a concurrent record of the stream.
The stream drops settled records with the next record, so that the number of records stays bounded. A poll
forgets the records of a root that no longer exists (`TableMarks.forget`). If a root with this name returns,
its first snapshot settles all partitions that the stream named before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.drift.streamed import StreamedParts
from deltasmelt.bronze.store.catalog_log import CatalogLog, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from deltasmelt.bronze.drift.observed_storage import ObservedStorage
    from deltasmelt.bronze.drift.streamed import StreamedPart
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lsn import Lsn

PARTITIONS: Final = "partitions"

_KIND: Final = Kind(
    PARTITIONS,
    "Partitions that the stream named before a catalog poll found them",
    StreamedParts.from_json,
    StreamedParts.to_json,
)


class StreamedLog(CatalogLog[StreamedParts]):
    """The named partitions of each root; see `CatalogLog`.

    Args:
        storage_of: returns the results of catalog polls of a table.
    """

    def __init__(self, uri: str, storage_of: Callable[[TableName], ObservedStorage | None]) -> None:
        super().__init__(uri, _KIND)
        self._storage_of = storage_of

    def note(
        self,
        parts: Iterable[StreamedPart],
        copied: Callable[[Sequence[TableName]], Mapping[TableName, Lsn]],
    ) -> list[TableName]:
        """Record partitions that no poll had seen before their transaction; return the roots of new records.

        Args:
            copied: returns the newest snapshot of each copied table; the snapshot settles earlier partitions.
        """
        new: dict[TableName, StreamedParts] = {}
        for part in parts:
            storage = self._storage_of(part.table)
            if storage is not None and storage.saw_before(part.oid, part.commit_lsn):
                continue
            before = new.get(part.table) or self._unsettled(part.table)
            if part.oid not in before.named:
                new[part.table] = before.with_part(part)
        snapshots = copied(list(new)) if new else {}
        for table, lsn in snapshots.items():
            new[table] = new[table].after(lsn)
        self.record(new)
        return list(new)

    def unsettled(self) -> dict[TableName, StreamedParts]:
        """Return the records that a poll must decide, by root."""
        parts_of_tables = {table: self._unsettled(table) for table in list(self._known)}
        return {table: parts for table, parts in parts_of_tables.items() if parts.named}

    def _unsettled(self, table: TableName) -> StreamedParts:
        parts, storage = self.known(table) or StreamedParts(), self._storage_of(table)
        return parts if storage is None else parts.without(storage.settled)
