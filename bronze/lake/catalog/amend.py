"""Rows of a catalog's table changed or removed in place, with a MERGE that names each row by all its values.

Other processes append rows, and change rows, at any moment. The MERGE must therefore affect only rows that
the caller has read. A newly appended row has different values, and a row that a concurrent process changed or
removed first does not match. A repeated MERGE changes nothing more, whether or not the first attempt
succeeded. If two MERGEs rewrite the same files concurrently, Delta rejects the later MERGE, whose caller
reads again and retries.
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
# Substitute for NaN: in Python, NaN differs from NaN.
_NAN: Final = object()


def amend(uri: str, before: pa.Table, after: pa.Table) -> None:
    """Change or remove rows of a table; do nothing if no row differs.

    Args:
        before: rows as the caller read them.
        after: the same rows in equal order, some with new values; or fewer rows.

    Raises:
        CommitFailedError: another writer was faster.
        OSError: Spark cannot execute the MERGE; whether the MERGE succeeded is then unknown.
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
    """Return the MERGE that applies the result of `differing`, in the view `source`."""
    same = " AND ".join(f"t.{quoted(name)} <=> s.o{number}" for number, name in enumerate(columns))
    values = ", ".join(f"t.{quoted(name)} = s.n{number}" for number, name in enumerate(columns))
    return (
        f"MERGE INTO {address} AS t USING {source} AS s ON {same}\n"
        f"WHEN MATCHED AND s.{_GOES} THEN DELETE\nWHEN MATCHED THEN UPDATE SET {values}"
    )


def differing(before: pa.Table, after: pa.Table) -> pa.Table:
    """Return the changed or removed rows: values before (``o0``…) and after (``n0``…), and a removal flag.

    Raises:
        ValueError: `after` contains a row that `before` lacks.
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
    # Each row once, however often the table contains the row: the MERGE treats equal rows alike.
    first = pa.array(list({was[place]: place for place in reversed(places)}.values()), pa.int64())
    old, new = before.take(first), (before if goes else after).take(first)
    names = [f"{side}{number}" for side in "on" for number in range(len(before.column_names))]
    marked = pa.array([goes] * old.num_rows, pa.bool_())
    return pa.table([*old.columns, *new.columns, marked], names=[*names, _GOES])


def _values(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Return rows as hashable values that are equal exactly if Spark's ``<=>`` is true."""
    return list(zip(*(map(_comparable, column.to_pylist()) for column in rows.columns), strict=True))


def _comparable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_comparable, value))
    if isinstance(value, dict):
        return tuple((name, _comparable(inner)) for name, inner in value.items())
    return _NAN if isinstance(value, float) and math.isnan(value) else value
