"""PostgreSQL's text converted to silver's expected value, by the type's tree and without silver's SQL.

A text that silver's type cannot represent raises ValueError (or OverflowError), at any depth of the value.
"""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltasmelt.bronze.shapes import PgType

_MOST_DIGITS: Final = 38
_MOST_SCALE: Final = 18


def value_of(type_: PgType, text: str) -> Any:
    """Return the value of a text; structs become dicts."""
    if type_.element is not None and type_.kind in _AROUND:
        return _AROUND[type_.kind](type_, type_.element, text)
    if type_.kind == "composite" and _tells_fields_apart(type_):
        cells = zip(type_.fields, _record(text), strict=True)
        return {name: None if cell is None else value_of(field, cell) for (name, field), cell in cells}
    if type_.name == "numeric":
        return _numeric(type_.typmod, text)
    return _READERS.get(type_.name, str)(text) if type_.kind == "base" else text


def _tells_fields_apart(type_: PgType) -> bool:
    names = {name.lower() for name, _ in type_.fields}
    return bool(names) and len(names) == len(type_.fields)


def _array(array: PgType, element: PgType, text: str) -> list[Any]:
    if not text.startswith("{") or text.startswith("{{"):
        raise ValueError(text)  # bounds of its own, or several dimensions
    if text == "{}":
        return []
    values, at = [], 1
    while at < len(text):
        cell, quoted, at = _cell(text, at, array.delimiter + "}", doubled=False)
        values.append(None if cell == "NULL" and not quoted else value_of(element, cell))
        at += 1
    return values


def _record(text: str) -> list[str | None]:
    fields: list[str | None] = []
    at = 1
    while at < len(text):
        cell, quoted, at = _cell(text, at, ",)", doubled=True)
        fields.append(cell if cell or quoted else None)
        at += 1
    return fields


def _range(_: PgType, bound: PgType, text: str) -> dict[str, Any]:
    if text == "empty":
        return {"lower": None, "upper": None, "lower_inc": False, "upper_inc": False, "empty": True}
    lower, has_lower, at = _cell(text, 1, ",", doubled=True)
    upper, has_upper, at = _cell(text, at + 1, "])", doubled=True)
    return {
        "lower": value_of(bound, lower) if lower or has_lower else None,
        "upper": value_of(bound, upper) if upper or has_upper else None,
        "lower_inc": text[0] == "[",
        "upper_inc": text[at] == "]",
        "empty": False,
    }


def _cell(text: str, at: int, ends: str, *, doubled: bool) -> tuple[str, bool, int]:
    """Return the cell at a position, whether any part was quoted, and the cell's end.

    Args:
        ends: characters that end a cell outside of quotes.
        doubled: whether two quotes within quotes mean a quote, in addition to the backslash.
    """
    letters: list[str] = []
    inside = quoted = False
    while inside or text[at] not in ends:
        letter = text[at]
        if letter == "\\":
            at += 1
            letters.append(text[at])
        elif letter == '"' and inside and doubled and text[at + 1] == '"':
            at += 1
            letters.append('"')
        elif letter == '"':
            inside, quoted = not inside, True
        else:
            letters.append(letter)
        at += 1
    return "".join(letters), quoted, at


def _numeric(typmod: int, text: str) -> Decimal:
    """Return the number; raise if silver cannot hold it.

    Silver holds at most 38 digits. If the type declares more, at most 18 stand after the point.
    """
    precision, scale = 39, 18
    if typmod != -1:
        precision, scale = (typmod - 4) >> 16, ((typmod - 4) & 0x7FF ^ 0x400) - 0x400
    value, digits, scale = Decimal(text), max(precision, scale, precision - scale), max(scale, 0)
    if digits > _MOST_DIGITS:
        digits, scale = _MOST_DIGITS, min(scale, _MOST_SCALE)
    with localcontext(prec=1000):
        scaled = value.scaleb(scale) if value.is_finite() else value
        if (
            not value.is_finite()
            or scaled != scaled.to_integral_value()
            or abs(scaled) >= Decimal(10) ** digits
        ):
            raise ValueError(text)
    return value


def _float4(text: str) -> float:
    """Return the Python value of Spark's FLOAT: the nearest number of four bytes."""
    value: float = struct.unpack("f", struct.pack("f", float(text)))[0]
    return value


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "bool": {"t": True, "f": False}.__getitem__,
    "int2": int,
    "int4": int,
    "int8": int,
    "oid": int,
    "float4": _float4,
    "float8": float,
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "timestamptz": lambda text: datetime.fromisoformat(text).astimezone(UTC).replace(tzinfo=None),
    "bpchar": lambda text: text.rstrip(" "),
    "bytea": lambda text: bytes.fromhex(text.removeprefix("\\x")),
}
_AROUND: Final[dict[str, Callable[[PgType, PgType, str], Any]]] = {
    "domain": lambda _, inner, text: value_of(inner, text),
    "array": _array,
    "range": _range,
}
