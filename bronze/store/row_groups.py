"""Row groups of a file of `bronze.changes`, by the LSNs in the file's footer. Pure.

A compaction joins files that may overlap, so the last row group need not have the last LSN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow.parquet as pq


def groups_from(footer: pq.FileMetaData, lsn: int) -> list[int]:
    """Return the row groups that may hold rows at or after an LSN."""
    return [group for group, ends in enumerate(_lsns(footer)) if ends is None or ends[1] >= lsn]


def outer_group(footer: pq.FileMetaData, *, last: bool) -> int:
    """Return the row group with a file's last or first LSN; without statistics, by its place in the file."""
    ends = _lsns(footer)
    order = [(each[last], group) for group, each in enumerate(ends) if each is not None]
    if len(order) < len(ends):
        return len(ends) - 1 if last else 0
    return (max if last else min)(order)[1]


def _lsns(footer: pq.FileMetaData) -> list[tuple[int, int] | None]:
    """Return the first and last LSN of each row group; None without statistics."""
    paths = [footer.schema.column(at).path for at in range(footer.num_columns)]
    if "commit_lsn" not in paths:
        return [None] * footer.num_row_groups
    column = paths.index("commit_lsn")
    found = [footer.row_group(at).column(column).statistics for at in range(footer.num_row_groups)]
    return [None if each is None or not each.has_min_max else (each.min, each.max) for each in found]
