r"""Map PostgreSQL's types to Spark types, and PostgreSQL's text to Spark values.

Each type has a `Reading`: the Spark type, and an SQL expression that converts PostgreSQL's own text to a
value. One convention carries everything: **the expression is NULL exactly when the text is NULL or the type
cannot hold the value**. So "not representable" needs no separate predicate: the text exists and the value
does not. A container checks its elements by this rule and is NULL as a whole if an element is lost.

The expressions use only built-in functions, and under ANSI mode only functions that give NULL instead of
failing (``try_cast``). Text in a form that PostgreSQL does not write also gives NULL, never a guess.

Session settings of the source fix the text: ISO dates in UTC, ``\x`` bytea, ISO 8601 intervals, shortest
round-trip floats.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.builtin_types import MOST_DIGITS, decimal_of, holds_every_digit
from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.identifiers import folded
from deltasmelt.silver.schema.containers import (
    array_value,
    hstore_value,
    range_value,
    struct_value,
    vector_value,
)
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltasmelt.bronze.shapes import PgType

_WHOLE: Final = {"int2": "SMALLINT", "int4": "INT", "int8": "BIGINT", "oid": "BIGINT"}
_FLOATING: Final = {"float4": "FLOAT", "float8": "DOUBLE"}
_DECIMAL: Final = re.compile(r"DECIMAL\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_ARRAY: Final = re.compile(r"ARRAY\s*<(.+)>", re.DOTALL)
_SIGNIFICANT_DIGITS: Final = {"FLOAT": 6, "DOUBLE": 15}
"""Decimal digits that survive text → binary → text (FLT_DIG, DBL_DIG)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The conversion of values of a PostgreSQL type.

    Attributes:
        ddl: the Spark type of the value.
        value: returns SQL of the value, from SQL of the text and the depth of enclosing lambdas. The function
            follows from the types, so a comparison of two columns leaves it out.
        exact: whether every text gives a value, so that no value can be lost.
    """

    ddl: str
    value: Callable[[str, int], str] = field(compare=False)
    exact: bool = False


TEXT: Final = Reading("STRING", lambda text, _: text, exact=True)


def reading(pg_type: PgType, override: str | None = None) -> Reading:
    """Return the reading of a type; `override` is a Spark type from the pipeline file's `silver.types`.

    Raises:
        ConfigurationError: the override is a type that cannot read PostgreSQL's text.
    """
    return _overridden(pg_type, override) if override is not None else _mapped(pg_type, pg_type.typmod)


def _mapped(pg_type: PgType, typmod: int) -> Reading:
    """Map a type by the contract's table. An array or domain passes its `typmod` on to its elements."""
    kind, element = pg_type.kind, pg_type.element
    if kind == "domain" and element is not None:
        return _mapped(element, typmod if element.typmod == -1 else element.typmod)
    if kind == "array" and element is not None:
        return _array(_mapped(element, typmod if element.typmod == -1 else element.typmod), pg_type.delimiter)
    if kind == "range" and element is not None:
        bound = _mapped(element, element.typmod)
        flags = "`lower_inc`: BOOLEAN, `upper_inc`: BOOLEAN, `empty`: BOOLEAN"
        ddl = f"STRUCT<`lower`: {bound.ddl}, `upper`: {bound.ddl}, {flags}>"
        return Reading(ddl, lambda text, depth: range_value(text, depth, bound.value))
    if kind == "composite" and pg_type.fields:
        return _composite(pg_type)
    return _base(pg_type.name, typmod) if kind == "base" else TEXT


def _base(name: str, typmod: int) -> Reading:
    if name in _WHOLE:
        return _cast(_WHOLE[name])
    if name in _FLOATING:
        return _cast(_FLOATING[name])
    simple = _SIMPLE.get(name)
    if simple is not None:
        return simple
    return _numeric(typmod) if name == "numeric" else TEXT


def _cast(ddl: str) -> Reading:
    return Reading(ddl, lambda text, _: f"try_cast({text} AS {ddl})")


def _numeric(typmod: int) -> Reading:
    """Return the reading of a numeric: always as a number; NaN and infinity give NULL."""
    precision, scale = decimal_of(typmod)
    # The text of numeric(p,s) has exactly s digits after the point, so the cast never rounds; a negative
    # scale means zeros before the point.
    if holds_every_digit(typmod):
        return _cast(f"DECIMAL({precision},{scale})")
    # Without precision, or with more digits than a decimal has, a value may not fit the decimal: NULL.
    return _exact_decimal(precision, scale)


def _unpadded(inner: Reading) -> Reading:
    """Return the reading of char(n): without trailing blanks, like PostgreSQL's own cast to text."""
    return replace(inner, value=lambda text, depth: inner.value(f"rtrim({text})", depth))


def _instant(ddl: str) -> Reading:
    """Return the reading of dates and timestamps of years 1 to 9999; all others, and infinity, give NULL."""

    def value(text: str, _: int) -> str:
        # Spark alone would read `0044-03-15 12:00:00+00 BC` as a year of our era.
        return f"CASE WHEN {text} LIKE '____-%' AND {text} NOT LIKE '% BC' THEN try_cast({text} AS {ddl}) END"

    return Reading(ddl, value)


_SIMPLE: Final = {
    "bool": Reading("BOOLEAN", lambda text, _: f"CASE {text} WHEN 't' THEN true WHEN 'f' THEN false END"),
    "bytea": Reading(
        "BINARY", lambda text, _: f"CASE WHEN {text} LIKE '\\\\\\\\x%' THEN unhex(substr({text}, 3)) END"
    ),
    "date": _instant("DATE"),
    "timestamp": _instant("TIMESTAMP_NTZ"),
    "timestamptz": _instant("TIMESTAMP"),
    "bpchar": _unpadded(TEXT),
    "hstore": Reading("MAP<STRING, STRING>", hstore_value),
    "vector": Reading("ARRAY<FLOAT>", vector_value),
}


def _array(element: Reading, delimiter: str) -> Reading:
    return Reading(
        f"ARRAY<{element.ddl}>",
        lambda text, depth: array_value(text, depth, element.value, delimiter=delimiter, exact=element.exact),
    )


def _composite(pg_type: PgType) -> Reading:
    names = [name for name, _ in pg_type.fields]
    if len({folded(name) for name in names}) < len(names):
        return TEXT  # Spark cannot distinguish such fields
    fields = [(name, _mapped(field, field.typmod)) for name, field in pg_type.fields]
    ddl = ", ".join(f"{quote(name)}: {field.ddl}" for name, field in fields)
    values = [(name, field.value) for name, field in fields]
    return Reading(f"STRUCT<{ddl}>", lambda text, depth: struct_value(text, depth, values))


def _overridden(pg_type: PgType, override: str) -> Reading:
    """Return the reading of a type that the user chose; rounding and overflow give NULL."""
    target = override.strip().upper()
    base = pg_type
    while base.kind == "domain" and base.element is not None:
        base = base.element
    array = _ARRAY.fullmatch(target)
    if array is not None and base.kind == "array" and base.element is not None:
        return _array(_overridden(base.element, array[1]), base.delimiter)
    chosen = _chosen(base, target)
    if chosen is None:
        raise ConfigurationError(
            f"a column of type {pg_type.name} cannot be read as {override!r}",
            code="type-override",
            remedy="use string, decimal(p,s), smallint, int, bigint, float, double, date, timestamp, "
            "timestamp_ntz, variant, or array<…> of these for an array",
        )
    return _unpadded(chosen) if base.name == "bpchar" else chosen


def _chosen(base: PgType, spark_type: str) -> Reading | None:
    """Return the reading as the wanted Spark type, in capitals; None for an unknown type."""
    decimal = _DECIMAL.fullmatch(spark_type)
    if decimal is not None and int(decimal[2] or 0) <= int(decimal[1]) <= MOST_DIGITS:
        return _exact_decimal(int(decimal[1]), int(decimal[2] or 0))
    if spark_type in _SIGNIFICANT_DIGITS:
        return _floating(base.name, spark_type)
    if spark_type == "VARIANT":
        return _VARIANT
    return _PLAIN_OVERRIDES.get(spark_type)


def _precise(ddl: str) -> Reading:
    """Return the reading of an instant in microseconds; a finer value gives NULL instead of a cut value."""
    inner = _instant(ddl).value
    finer = literal("[.][0-9]{6}[0-9]*[1-9]")
    return Reading(
        ddl, lambda text, depth: f"CASE WHEN NOT {text} RLIKE {finer} THEN {inner(text, depth)} END"
    )


_PLAIN_OVERRIDES: Final = {
    "STRING": TEXT,
    "SMALLINT": _cast("SMALLINT"),
    "INT": _cast("INT"),
    "INTEGER": _cast("INT"),
    "BIGINT": _cast("BIGINT"),
    "DATE": Reading("DATE", lambda text, _: f"CASE WHEN {text} RLIKE '^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}$' "
                    f"THEN try_cast({text} AS DATE) END"),
    "TIMESTAMP": _precise("TIMESTAMP"),
    "TIMESTAMP_NTZ": _precise("TIMESTAMP_NTZ"),
}  # fmt: skip

# Spark's JSON parser makes a double of a number with more than 38 digits, and of any number with an exponent.
# The pattern matches the numbers that a double may not hold: 39 digits, 16 digits and an exponent, or an
# exponent of three digits.
_NO_DECIMAL: Final = literal("([0-9][.]?){39}|([0-9][.]?){16}[eE]|[0-9][eE][-+]?[0-9]{3}")
_VARIANT: Final = Reading(
    "VARIANT", lambda text, _: f"CASE WHEN NOT {text} RLIKE {_NO_DECIMAL} THEN try_parse_json({text}) END"
)
"""JSON whose numbers are all held; too many digits inside a string cost the typed value, too."""


def _exact_decimal(precision: int, scale: int) -> Reading:
    """Return the reading as DECIMAL(p,s) of text that needs at most s digits after the point."""
    ddl = f"DECIMAL({precision},{scale})"
    fitting = literal(f"^-?[0-9]+([.][0-9]{{0,{scale}}}0*)?$")
    return Reading(
        ddl, lambda text, _: f"CASE WHEN {text} RLIKE {fitting} THEN try_cast({text} AS {ddl}) END"
    )


def _floating(name: str, ddl: str) -> Reading:
    """Return the reading of a PostgreSQL type (`name`) as FLOAT or DOUBLE, only for the very same value."""
    exact = _FLOATING.get(name)
    if exact == ddl:
        return _cast(ddl)
    if exact == "FLOAT":  # PostgreSQL widens a float4 in the same way
        return Reading(ddl, lambda text, _: f"CAST(try_cast({text} AS FLOAT) AS DOUBLE)")
    if exact == "DOUBLE":
        narrow, wide = "try_cast({0} AS FLOAT)", "try_cast({0} AS DOUBLE)"
        return Reading(
            ddl,
            lambda text, _: (
                f"CASE WHEN CAST({narrow.format(text)} AS DOUBLE) = {wide.format(text)} "
                f"THEN {narrow.format(text)} END"
            ),
        )
    return _exact_float(ddl)


def _exact_float(ddl: str) -> Reading:
    """Return the reading of a decimal number as FLOAT or DOUBLE if no digit is lost; NaN and infinity fit."""
    unimportant = literal("^-?0*[.]?0*|[.]|[.]?0+$")
    number = literal("^-?[0-9]+([.][0-9]+)?$")

    def value(text: str, _: int) -> str:
        digits = f"length(regexp_replace({text}, {unimportant}, ''))"
        exact = f"{digits} <= {_SIGNIFICANT_DIGITS[ddl]} AND length({text}) < 30 AND {text} RLIKE {number}"
        special = f"{text} IN ('NaN', 'Infinity', '-Infinity')"
        return f"CASE WHEN {special} OR {exact} THEN try_cast({text} AS {ddl}) END"

    return Reading(ddl, value)
