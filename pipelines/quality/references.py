"""Foreign keys: every child's key exists in its parent, at the same cut.

Great Expectations sees one table at a time; as its SQL expectation each foreign key would cost three Spark
jobs. Here one query checks all keys by left anti joins, and returns a line for each. Only broken keys are
queried again, for some orphans.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.pipelines.quality.engine import failed_with
from deltasmelt.pipelines.quality.expectations import Result
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from deltasmelt.pipelines.quality.expectations import Expectation

_PER_QUERY: Final = 16
"""Number of foreign keys in one query: planning takes more than linear time."""

ORPHANS: Final = 5
"""Largest number of shown keys, and of keys with shown rows."""


def check_references(
    expectations: Sequence[Expectation], frame: Callable[[str], DataFrame], rows: Mapping[str, int]
) -> list[Result]:
    """Return the result of each foreign key.

    `frame` returns the table at the cut by its name (``silver.orders``); `rows` are the known numbers of
    rows.
    """
    from deltasmelt.gold.builder.failures import SPARK_ERRORS  # noqa: PLC0415 - Spark is loaded by who needs it

    counts = dict(rows)
    results: list[Result] = []
    for start in range(0, len(expectations), _PER_QUERY):
        batch = expectations[start : start + _PER_QUERY]
        try:
            results += _check(batch, frame, counts)
        except SPARK_ERRORS:
            # An uncomputable key (a text compared with a number, after an override of types) fails the shared
            # query. Alone, only this key is reported as not checked.
            results += [_alone(expectation, frame, counts) for expectation in batch]
    return results


def _alone(expectation: Expectation, frame: Callable[[str], DataFrame], rows: dict[str, int]) -> Result:
    """Return the result of one foreign key, also for an uncomputable key."""
    from deltasmelt.gold.builder.failures import SPARK_ERRORS  # noqa: PLC0415

    try:
        return _check([expectation], frame, rows)[0]
    except SPARK_ERRORS as error:
        return failed_with(expectation, error)


def _check(
    expectations: Sequence[Expectation], frame: Callable[[str], DataFrame], rows: dict[str, int]
) -> list[Result]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    for expectation in expectations:
        if expectation.qualified not in rows:
            rows[expectation.qualified] = frame(expectation.qualified).count()
    orphans = [_orphans(expectation, frame) for expectation in expectations]
    counts = [
        orphan_rows.agg(F.count(F.lit(1)).alias("orphans")).select(F.lit(index).alias("index"), "orphans")
        for index, orphan_rows in enumerate(orphans)
    ]
    lines = functools.reduce(lambda left, right: left.unionAll(right), counts).collect()
    orphan_counts = {line["index"]: int(line["orphans"]) for line in lines}
    return [
        _result(expectation, keys, orphan_counts[index], rows[expectation.qualified])
        for index, (expectation, keys) in enumerate(zip(expectations, orphans, strict=True))
    ]


def _orphans(expectation: Expectation, frame: Callable[[str], DataFrame]) -> DataFrame:
    """Return keys of child rows missing in the parent, under the parent's column names."""
    columns: list[str] = expectation.kwargs["columns"]
    referenced: list[str] = expectation.kwargs["referenced_columns"]
    ways: list[str] = expectation.kwargs.get("compare") or ["exact"] * len(columns)
    # As in PostgreSQL (MATCH SIMPLE), a row with a NULL among the columns refers to nothing and passes.
    child = frame(expectation.qualified).select(*(quote(column) for column in columns)).dropna()
    parent = frame(expectation.kwargs["references"]).select(
        *(
            _compared(column, comparison).alias(f"_parent_{n}")
            for n, (column, comparison) in enumerate(zip(referenced, ways, strict=True))
        )
    )
    conditions = [
        _compared(column, comparison) == parent[f"_parent_{n}"]
        for n, (column, comparison) in enumerate(zip(columns, ways, strict=True))
    ]
    return child.join(parent, functools.reduce(operator.and_, conditions), "left_anti")


def _compared(column: str, way: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    value = F.col(quote(column))
    if way == "ignore case":
        return F.lower(value)
    if way == "ignore trailing spaces":
        return F.rtrim(value)
    if way == "as numbers":  # 1.50 and 1.5 are one number, also where silver keeps it as text
        without_zeros = F.regexp_replace(value.cast("string"), r"(\.\d*?)0+$", "$1")
        return F.regexp_replace(without_zeros, r"\.$", "")
    return value


def _result(expectation: Expectation, orphans: DataFrame, count: int, rows: int) -> Result:
    values: tuple[Any, ...] = ()
    if count:
        examples = [row.asDict() for row in orphans.distinct().limit(ORPHANS).collect()]
        single = len(expectation.kwargs["columns"]) == 1
        values = tuple(sorted((next(iter(row.values())) if single else row for row in examples), key=str))
    return Result(
        expectation,
        success=count == 0,
        element_count=rows,
        unexpected_count=count,
        unexpected_percent=100 * count / rows if rows else 0.0,
        values=values,
    )
