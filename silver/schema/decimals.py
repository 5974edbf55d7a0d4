"""Find columns of a silver table whose decimals may not hold every value of the source's numerics. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.builtin_types import decimal_of, holds_every_digit
from deltasmelt.bronze.catalog.numeric_values import is_numeric

if TYPE_CHECKING:
    from deltasmelt.bronze.shapes import PgType
    from deltasmelt.silver.schema.catalog import SilverTable

UNREPRESENTABLE_ROWS: Final = "unrepresentable_rows"
"""Detail of a run in `control.runs`: upper bound of rows with values that their types do not hold."""

_DECIMAL: Final = re.compile(r"DECIMAL\((\d+),(\d+)\)")


def lossy_decimals(table: SilverTable) -> dict[str, tuple[int, int]]:
    """Return precision and scale, by name, of numeric columns whose decimal may not hold every value."""
    digits_of_columns = {}
    for column, silver in zip(table.relation.columns, table.columns, strict=True):
        decimal = _DECIMAL.fullmatch(silver.spark_type)
        if decimal is not None and is_numeric(column.type):
            digits = int(decimal[1]), int(decimal[2])
            if not _holds_all(column.type, digits):
                digits_of_columns[column.name] = digits
    return digits_of_columns


def lossy_inside(table: SilverTable) -> list[str]:
    """Return the names of columns with such numerics inside arrays, composites or ranges."""
    return [
        column.name
        for column, silver in zip(table.relation.columns, table.columns, strict=True)
        if "DECIMAL" in silver.spark_type and not is_numeric(column.type) and _is_unbounded(column.type)
    ]


def _holds_all(type_: PgType, digits: tuple[int, int]) -> bool:
    """Check whether a decimal holds every finite value of a numeric."""
    while type_.element is not None:
        type_ = type_.element
    if not holds_every_digit(type_.typmod):
        return False
    (precision, scale), (most, after) = decimal_of(type_.typmod), digits
    return scale <= after and precision - scale <= most - after


def _is_unbounded(type_: PgType) -> bool:
    return any(
        part.kind == "base" and part.name == "numeric" and not holds_every_digit(part.typmod)
        for part in type_.parts()
    )
