"""Aggregates over the rows of a node, as Spark SQL. Pure.

Sums of floating-point values depend on the order of their terms. They are taken over sorted values, so that a
rebuild gives the same last bit. Sums of integers and decimals are exact in any order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gold.language import types
from silver.sql import quote

if TYPE_CHECKING:
    from gold.tree.nodes import Aggregate


def measured(node: Aggregate, *, common: bool) -> list[str]:
    """The measures of a node as the columns ``m0, m1 …``, over its rows as ``t``.

    Args:
        node: an aggregate.
        common: all measures have the same `where`, and the rows have passed it.
    """
    output = []
    for index, measure in enumerate(node.measures):
        ddl = "" if measure.column is None else node.scope.table.column(measure.column).spark_type
        only = "" if common or measure.where is None else f" FILTER (WHERE {measure.where.sql('t')})"
        value = "*" if measure.column is None else quote("t", measure.column)
        if measure.order is not None:
            placed = f"struct({quote('t', measure.order)} AS o, {value} AS v)"
            found = f"{measure.function}(CASE WHEN {value} IS NOT NULL THEN {placed} END){only}"
            output.append(f"({found}).v AS m{index}")
            continue
        output.append(f"{_measure(measure.function, value, only, ddl)} AS m{index}")
    return output


def _measure(function: str, value: str, only: str, ddl: str) -> str:
    if function == "count_distinct":
        return f"count(DISTINCT {value}){only}"
    if function in {"sum", "avg"} and types.is_floating(ddl):
        terms = f"array_sort(collect_list(CAST({value} AS DOUBLE)){only})"
        # As PostgreSQL adds up: a sum of nothing but -0 is -0.
        total = f"aggregate({terms}, -0D, (total, term) -> total + term)"
        if function == "avg":
            total += f" / count({value}){only}"
        return f"CASE WHEN count({value}){only} > 0 THEN {total} END"
    if function == "avg" and types.is_integer(ddl):
        # Spark adds integers up as doubles here, which rounds; PostgreSQL does not.
        return f"CAST(sum(CAST({value} AS DECIMAL(20, 0))){only} AS DOUBLE) / count({value}){only}"
    return f"{function}({value}){only}"
