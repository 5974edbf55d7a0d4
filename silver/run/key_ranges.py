"""Literal ranges of the keys that a MERGE touches, where they let it skip files of its target.

MERGE skips files by predicates on the target alone, so the ranges are queried before it. Ranges that skip few
files are not used. Without literals a MERGE is the same text as the one before it, and so is the code that
Spark generates for it, which the JVM has compiled already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from deltasmelt.silver.sql import block, comma

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

_RANGES_ABOVE: Final = 4
"""Data files from which looking for key ranges pays."""
_RANGE_HOLDS: Final = 0.75
"""Share of a table's rows from which a key range that holds them is left out."""


def key_ranges(
    session: SparkSession,
    query: str,
    keys: Mapping[int, str],
    *,
    files: int,
    share: Callable[[int, str, str], float],
) -> dict[int, tuple[str, str]]:
    """Smallest and largest value of key columns, as text, by position; of those that let files be skipped.

    Args:
        session: runs one statement over the query, where the target has files enough.
        query: the rows to come.
        keys: name of each key column in the query, by a position; of a `silver.fold.merge.prunable` type.
        files: number of the target's data files.
        share: of the target's rows in files that may hold a range: of a position, smallest, largest value.
    """
    if files < _RANGES_ABOVE or not keys:
        return {}
    row = session.sql(range_query(query, keys)).collect()[0]
    found = {position: (row[f"low_{position}"], row[f"high_{position}"]) for position in keys}
    return {
        position: (low, high)
        for position, (low, high) in found.items()
        if low is not None and share(position, low, high) < _RANGE_HOLDS
    }


def range_query(query: str, keys: Mapping[int, str]) -> str:
    """Smallest and largest value of key columns, as text: ``low_<position>``, ``high_<position>``."""
    columns = [
        f"CAST({function}({name}) AS STRING) AS {which}_{position}"
        for position, name in keys.items()
        for function, which in (("min", "low"), ("max", "high"))
    ]
    return f"SELECT {comma(columns, 2)}\nFROM (\n  {block(query, 2)}\n)"


def share_of(files: pa.Table, column: str, low: str, high: str) -> float:
    """Share of a table's rows in files that may hold values of a range; 0 where that is not known.

    Args:
        files: of the table, with their statistics, flat.
        column: as the statistics name it; only of integers and text it is known.
        low: smallest value, as text.
        high: largest value.
    """
    smallest, largest = f"min.{column}", f"max.{column}"
    if not {smallest, largest} <= set(files.column_names):
        return 0.0
    type_ = files[smallest].type
    if not (pa.types.is_integer(type_) or pa.types.is_string(type_) or pa.types.is_large_string(type_)):
        return 0.0
    first, last = (pa.scalar(one).cast(type_) for one in (low, high))
    read = pc.and_(pc.less_equal(files[smallest], last), pc.greater_equal(files[largest], first))
    rows = pc.fill_null(files["num_records"], 0)
    within = pc.sum(pc.if_else(pc.fill_null(read, True), rows, 0)).as_py() or 0
    return float(within / max(pc.sum(rows).as_py() or 0, 1))
