"""Cut a table into ranges of pages, so that workers copy the ranges independently. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.identifiers import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.shapes import Relation

_ROWS_PER_PAGE: Final = 50
"""Assumption for a table without ANALYZE so far."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A range of pages of one table, or of one leaf of a partitioned table."""

    # unique within the table's snapshot, from 0
    number: int
    # the table or leaf to read
    source: TableName
    # number of the first page
    first: int
    # number of the page after the last; None: to the end of the table
    end: int | None

    def query(self, relation: Relation, condition: str = "") -> str:
        """Return the SELECT of the chunk's rows, with columns in the relation's order."""
        columns = ", ".join(quote_identifier(column.name) for column in relation.columns)
        conditions = [f"({condition})"] if condition else []
        if self.first > 0:
            conditions.append(f"ctid >= '({self.first},0)'::tid")
        if self.end is not None:
            conditions.append(f"ctid < '({self.end},0)'::tid")
        clause = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        # The condition may name the table; a partition has another name.
        alias = f" AS {quote_identifier(relation.table.name)}" if condition else ""
        return f"SELECT {columns} FROM ONLY {self.source.quoted}{alias}{clause}"


def chunks_of(leaves: Sequence[tuple[TableName, int]], rows: int, chunk_rows: int) -> list[Chunk]:
    """Cut a table into chunks of about `chunk_rows` rows.

    Args:
        leaves: the table itself or its leaf partitions, each with its pages.
        rows: estimate for all leaves together; 0 if unknown.
    """
    pages = sum(count for _, count in leaves)
    per_page = rows / pages if rows and pages else _ROWS_PER_PAGE
    step = max(1, int(chunk_rows / per_page))
    chunks: list[Chunk] = []
    for leaf, count in leaves:
        starts = range(0, max(count, 1), step)
        for start in starts:
            # No end page: pages beyond the measured size still belong to the last chunk.
            end = None if start == starts[-1] else start + step
            chunks.append(Chunk(len(chunks), leaf, start, end))
    return chunks
