"""Findings about numeric columns: their types in silver, and how many of their values do not fit.

A column counts if its decimal may not hold every value: a numeric without a precision or with more than 38
digits, and a numeric that `silver.types` makes a decimal. The server counts the values
(`bronze.catalog.numeric_values`) for at most half a minute over all tables. The finding of a table beyond
this limit reports the missing count.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.builtin_types import MOST_DIGITS, MOST_SCALE
from deltasmelt.bronze.catalog.numeric_values import count_values
from deltasmelt.bronze.checks.finding import Finding
from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.silver.schema.catalog import silver_table
from deltasmelt.silver.schema.decimals import lossy_decimals, lossy_inside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import psycopg

    from deltasmelt.bronze.catalog.numeric_values import CountedTable, NumericValues
    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.checks.finding import Level
    from deltasmelt.silver.schema.catalog import SilverTable
    from deltasmelt.silver.settings import SilverSettings

_SECONDS: Final = 30.0
_ROOMY_SCALE: Final = 9
_ROOMY_VALUES: Final = (26, 6)
"""Preferred digits after the point; largest digits before and after the point in the values."""


def numeric_findings(
    connection: psycopg.Connection[Any], tables: Iterable[SourceTable], settings: SilverSettings
) -> Iterator[Finding]:
    """Return a finding for each table with numerics whose decimal may not hold every value."""
    for shape, counts in counted_tables(connection, tables, settings):
        decimals, inside = lossy_decimals(shape), lossy_inside(shape)
        if decimals or inside:
            yield _finding(shape, decimals, inside, counts)


def counted_tables(
    connection: psycopg.Connection[Any], tables: Iterable[SourceTable], settings: SilverSettings
) -> Iterator[tuple[SilverTable, CountedTable | None]]:
    """Return the shapes of healthy tables with what their rows show of lossy decimals; None where unknown."""
    deadline = time.monotonic() + _SECONDS
    for table in tables:
        if table.problems:
            continue
        try:
            shape = silver_table(table.relation, settings)
        except ConfigurationError:
            continue  # reported with the other shapes
        decimals = lossy_decimals(shape)
        counting = decimals and time.monotonic() < deadline
        yield shape, count_values(connection, table, decimals) if counting else None


def better_type(values: NumericValues) -> str | None:
    """Return the type under `silver.types` that suits values better than DECIMAL(38,18), or None.

    Fewer digits after the point leave more digits for sums; more digits after the point hold more values.
    """
    if not values.values:
        return None
    if values.whole <= _ROOMY_VALUES[0] and values.scale <= _ROOMY_VALUES[1]:
        return f"decimal({MOST_DIGITS},{_ROOMY_SCALE})"
    holds = values.scale <= MOST_SCALE and values.whole <= MOST_DIGITS - MOST_SCALE
    if holds or values.whole + values.scale > MOST_DIGITS:
        return None
    return f"decimal({MOST_DIGITS},{values.scale})"


def _finding(
    table: SilverTable,
    decimals: Mapping[str, tuple[int, int]],
    inside: Sequence[str],
    counted: CountedTable | None,
) -> Finding:
    sentences, remedies = [], []
    unfit = False
    for name, (precision, scale) in decimals.items():
        becomes = f"{name} becomes DECIMAL({precision},{scale})"
        if counted is None:
            sentences.append(f"{becomes} (its values could not be counted in time)")
            continue
        values = counted.columns[name]
        if not values.unfit:
            fit = f", which holds all {values.values:,} values" if values.values else ""
            sentences.append(f"{becomes}{fit}")
            continue
        unfit = True
        sentences.append(f"{becomes}, which does not hold {values.unfit:,} of {values.values:,} values")
        cure = None if values.unfit == values.special else better_type(values)
        remedies.append(f"{table.table}.{name}: {cure or 'string'}")
    sentences += [f"{name} contains numerics that may have more digits than a decimal" for name in inside]
    if counted is not None and not counted.complete:
        sentences.append(f"{counted.rows:,} rows were read")
    in_key = any(counted.columns[name].unfit for name in decimals if name in table.key) if counted else False
    level: Level = "error" if in_key else "warning" if unfit else "info"
    lost = "such a key stops the table" if in_key else "NULL in silver, with the text in _unrepresentable"
    return Finding(
        level=level,
        code="numeric-digits",
        subject=str(table.table),
        message="; ".join([*sentences, *([lost] if unfit else [])]),
        remedy=f"silver.types: {{{', '.join(remedies)}}}" if remedies else None,
    )
