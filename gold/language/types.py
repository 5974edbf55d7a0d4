"""Answer the document language's questions about Spark types: comparing, ordering, adding up, defaults."""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Final

_INTEGERS: Final = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "INTEGER": 32, "BIGINT": 64}
_DIGITS: Final = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "INTEGER": 10, "BIGINT": 20}
"""Digits of the decimal that Spark makes of a whole number."""

DIGITS_OF_DOUBLE: Final = 15
"""Number of decimal digits that a 64-bit floating-point number holds exactly."""

_MOST_DIGITS: Final = 38
_BIGINT_DIGITS: Final = 18
_DECIMAL: Final = re.compile(
    r"\s*(?:DECIMAL|DEC|NUMERIC)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)\s*)?", re.IGNORECASE
)
_LITERAL: Final = re.compile(r"0*(\d*)(?:[.](\d*))?([A-Z]*)", re.IGNORECASE)
_SCIENTIFIC: Final = re.compile(r"[\d.]+e[+-]?\d+", re.IGNORECASE)
_FLOATING: Final = frozenset({"FLOAT", "DOUBLE", "REAL"})
_MOMENTS: Final = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_NTZ"})
_WORD: Final = re.compile(r"\w+")


def base(ddl: str) -> str:
    """Return the type's first word: ``DECIMAL(12,2)`` is ``DECIMAL``."""
    match = _WORD.match(ddl.strip())
    return match[0].upper() if match else ""


def is_integer(ddl: str) -> bool:
    """Check whether values are whole numbers of a fixed width."""
    return base(ddl) in _INTEGERS


def is_floating(ddl: str) -> bool:
    """Check whether sums depend on the order of their terms."""
    return base(ddl) in _FLOATING


def is_numeric(ddl: str) -> bool:
    """Check whether values can be added up."""
    return base(ddl) in {*_INTEGERS, *_FLOATING, "DECIMAL", "NUMERIC"}


def is_moment(ddl: str) -> bool:
    """Check whether values are dates or timestamps."""
    return base(ddl) in _MOMENTS


def digits(ddl: str) -> tuple[int, int] | None:
    """Return Spark's number of digits before and after the point; None for a floating-point type."""
    if is_integer(ddl):
        return _DIGITS[base(ddl)], 0
    match = _DECIMAL.fullmatch(ddl)
    if match is None:
        return None
    scale = int(match[2] or 0)
    return int(match[1] or 10) - scale, scale


def rounded(first: str, second: str) -> bool:
    """Check whether Spark rounds numbers of two types before a comparison: Spark has 38 digits for both."""
    left, right = digits(first), digits(second)
    if left is None or right is None:
        return False
    return max(left[0], right[0]) + max(left[1], right[1]) > _MOST_DIGITS


def shared(first: str, second: str) -> str:
    """Return the type that holds every number that values of both types can equal."""
    left, right = digits(first) or (0, 0), digits(second) or (0, 0)
    # One of the two types has as many digits after the point, and at least as many before.
    scale = max(left[1], right[1])
    return f"DECIMAL({min(left[0], right[0]) + scale},{scale})"


def calculated(operator: str, first: str, second: str) -> str:
    """Return Spark's type of a sum, a product or a remainder; empty if unknown."""
    if not (first and second):
        return ""
    if is_floating(first) or is_floating(second):
        return "FLOAT" if base(first) == base(second) == "FLOAT" else "DOUBLE"
    if is_integer(first) and is_integer(second):
        return max(first, second, key=lambda ddl: _INTEGERS[base(ddl)])
    left, right = digits(first) or (0, 0), digits(second) or (0, 0)
    most, least = max(left[0], right[0]), min(left[0], right[0])
    before = {"*": most + least + 1, "%": least}.get(operator, most + 1)
    # Gold's sessions keep all digits after the point: too many digits before the point fail the document.
    after = min(left[1] + right[1] if operator == "*" else max(left[1], right[1]), _MOST_DIGITS)
    return f"DECIMAL({min(before, _MOST_DIGITS - after) + after},{after})"


def overflows(first: str, second: str) -> bool:
    """Check whether a product's digits after the point leave no room for the digits before."""
    left, right = digits(first), digits(second)
    if left is None or right is None or left[0] + right[0] + 1 + left[1] + right[1] <= _MOST_DIGITS:
        return False
    return _MOST_DIGITS - left[1] - right[1] < max(left[0], right[0]) / 2


def wraps(first: str, second: str) -> bool:
    """Check whether a whole quotient may have more digits than BIGINT, Spark's type for the quotient."""
    left, right = digits(first), digits(second)
    if left is None or right is None or (is_integer(first) and is_integer(second)):
        return False
    return left[0] + right[1] > _BIGINT_DIGITS


def is_scientific(text: str) -> bool:
    """Check whether a number has an exponent: floating to Spark, exact to PostgreSQL."""
    return _SCIENTIFIC.fullmatch(text) is not None


def of_number(text: str) -> str:
    """Return the type by which Spark compares a number in SQL text."""
    match = _LITERAL.fullmatch(text)
    if match is None or match[3].upper() in {"D", "F"}:
        return "DECIMAL" if text.upper().endswith("BD") else "DOUBLE"
    scale = len(match[2] or "")
    return f"DECIMAL({max(len(match[1]) + scale, 1)},{scale})"


def orderable(ddl: str) -> bool:
    """Check whether values have an order by less and greater."""
    return not re.search(r"\b(?:MAP|VARIANT)\b", ddl.upper())


def map_key(ddl: str) -> bool:
    """Check whether values can be names in a JSON object: Spark writes others by their memory address."""
    return not re.search(r"\b(?:BINARY|ARRAY|STRUCT|MAP|VARIANT|INTERVAL)\b", ddl.upper())


def comparable(left: str, right: str) -> bool:
    """Check whether values of both types can be equal: numbers of all kinds, else only equal types."""
    if not (orderable(left) and orderable(right)):
        return False
    if is_numeric(left) and is_numeric(right):
        return True
    if is_moment(left) and is_moment(right):
        return base(left) == base(right)
    return re.sub(r"\s", "", left.upper()) == re.sub(r"\s", "", right.upper())


def unfit(function: str, ddl: str) -> str | None:
    """Return why a type does not fit an aggregate; None if the type fits."""
    if function in {"sum", "avg"} and not is_numeric(ddl):
        if base(ddl) == "STRING":
            return "not a number; for numeric without precision set silver.types, e.g. decimal(38,9)"
        return "not a number"
    if function in {"min", "max", "count_distinct"} and not orderable(ddl):
        return "has no order" if function != "count_distinct" else "cannot be compared"
    return None


def holds(ddl: str, value: str | float) -> bool:
    """Check whether a default of the document file is a value of a type."""
    kind = base(ddl)
    if isinstance(value, bool) or kind == "BOOLEAN":
        return isinstance(value, bool) and kind == "BOOLEAN"
    if kind in _INTEGERS:
        limit = 1 << (_INTEGERS[kind] - 1)
        return isinstance(value, int) and -limit <= value < limit
    if is_numeric(ddl):
        return isinstance(value, int | float)
    return isinstance(value, str) and (kind == "STRING" or (is_moment(ddl) and _states_moment(kind, value)))


def _states_moment(kind: str, text: str) -> bool:
    try:
        (date if kind == "DATE" else datetime).fromisoformat(text)
    except ValueError:
        return False
    return True
