"""Rows of a catalog's table changed or removed in place, by one MERGE that names each of them by its values.

Other processes append to the table at any moment, and change rows of it. So what is written must say nothing
of rows that were not looked at. A row is found by all its values: one that came meanwhile is none of those,
and one that somebody changed or removed first is not found, so nothing happens to it. Run again, whatever
became of the first attempt, it changes nothing more. Two that rewrite the same files at once Delta itself
tells apart: the later one is refused, and looks again.
"""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from deltasmelt.bronze.lake.catalog.commits import plain
from deltasmelt.bronze.lake.catalog.sql import failures, session_for
from deltasmelt.bronze.lake.location import address_of, quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

_GOES: Final = "goes"
_NAN: Final = object()
"""Stands for NaN, which in Python differs from itself."""


def amend(uri: str, before: pa.Table, after: pa.Table) -> None:
    """Have rows of a table changed, or removed; nothing where no row differs.

    Args:
        uri: location of the table.
        before: rows as they were read.
        after: the same rows in the same order, some of them with other values; or without some of them.

    Raises:
        CommitFailedError: another writer came first.
        OSError: Spark cannot do it; whether it came about is then not known.
    """
    changes = differing(before, after)
    if not changes.num_rows:
        return
    name = f"deltasmelt_{uuid.uuid4().hex}"
    with failures(uri):
        spark = session_for(uri)
        spark.createDataFrame(plain(changes)).createOrReplaceTempView(name)
        try:
            spark.sql(merge_text(address_of(uri), name, before.column_names)).collect()
        finally:
            spark.catalog.dropTempView(name)


def merge_text(address: str, source: str, columns: Sequence[str]) -> str:
    """The MERGE that applies what `differing` found.

    Args:
        address: the table as SQL names it.
        source: what holds the differences.
        columns: of the table.
    """
    same = " AND ".join(f"t.{quoted(name)} <=> s.o{number}" for number, name in enumerate(columns))
    values = ", ".join(f"t.{quoted(name)} = s.n{number}" for number, name in enumerate(columns))
    return (
        f"MERGE INTO {address} AS t USING {source} AS s ON {same}\n"
        f"WHEN MATCHED AND s.{_GOES} THEN DELETE\nWHEN MATCHED THEN UPDATE SET {values}"
    )


def differing(before: pa.Table, after: pa.Table) -> pa.Table:
    """What becomes of the rows that do not stay: values before (``o0``…), after (``n0``…), and which go.

    Each row once, however often the table has it: rows that are alike share their fate.

    Raises:
        ValueError: a row is there afterwards that was not before.
    """
    was, is_now = _values(before), _values(after)
    goes = before.num_rows != after.num_rows
    if goes:
        kept = set(is_now)
        if not kept <= set(was):
            raise ValueError("rows are added where some may change or go")
        places = [place for place, row in enumerate(was) if row not in kept]
    else:
        places = [place for place, row in enumerate(was) if row != is_now[place]]
    first = pa.array(list({was[place]: place for place in reversed(places)}.values()), pa.int64())
    old, new = before.take(first), (before if goes else after).take(first)
    names = [f"{side}{number}" for side in "on" for number in range(len(before.column_names))]
    marked = pa.array([goes] * old.num_rows, pa.bool_())
    return pa.table([*old.columns, *new.columns, marked], names=[*names, _GOES])


def _values(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Rows as values that are equal, and have one hash, where Spark's ``<=>`` finds them the same."""
    return list(zip(*(map(_comparable, column.to_pylist()) for column in rows.columns), strict=True))


def _comparable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_comparable, value))
    if isinstance(value, dict):
        return tuple((name, _comparable(inner)) for name, inner in value.items())
    return _NAN if isinstance(value, float) and math.isnan(value) else value
