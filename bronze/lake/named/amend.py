"""Rows of a catalog's table changed or removed in place, by one MERGE that names each of them by its values.

Other processes append to the table at any moment, and change rows of it. So what is written must say nothing
of rows that were not looked at. A row is found by all its values: one that came meanwhile is none of those,
and one that somebody changed or removed first is not found, so nothing happens to it. Run again, whatever
became of the first attempt, it changes nothing more. Two that rewrite the same files at once Delta itself
tells apart: the later one is refused, and looks again.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from bronze.lake.named.commits import plain
from bronze.lake.named.place import address_of
from bronze.lake.named.sql import failures, session_for
from bronze.lake.spark_text import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_GOES: Final = "goes"


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
    if before.num_rows == after.num_rows:
        places = _changed(before, after)
        old, new = before.take(places), after.take(places)
    else:
        kept = set(_values(after))
        listed = list(_values(before))
        if not kept <= set(listed):
            raise ValueError("rows are added where some may change or go")
        places = pa.array([place for place, row in enumerate(listed) if row not in kept], pa.int64())
        old = new = before.take(places)
    goes = pa.array([before.num_rows != after.num_rows] * old.num_rows, pa.bool_())
    first = list({row: place for place, row in reversed(list(enumerate(_values(old))))}.values())
    names = [f"{side}{number}" for side in "on" for number in range(len(before.column_names))]
    found = pa.table([*old.columns, *new.columns, goes], names=[*names, _GOES])
    return found.take(pa.array(first, pa.int64()))


def _changed(before: pa.Table, after: pa.Table) -> pa.Array:
    """Places of rows with a value that differs; NULL is a value."""
    differs = pa.chunked_array([pa.array([False] * before.num_rows, pa.bool_())])
    for one, other in zip(before.columns, after.columns, strict=True):
        null = pc.xor(pc.is_null(one), pc.is_null(other))
        differs = pc.or_(differs, pc.or_(null, pc.fill_null(pc.not_equal(one, other), fill_value=False)))
    return pc.indices_nonzero(differs)


def _values(rows: pa.Table) -> Iterable[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in rows.columns), strict=True)
