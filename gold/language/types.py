"""What the document language asks of Spark types: comparing, ordering, adding up, defaults."""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Final

_INTEGERS: Final = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "INTEGER": 32, "BIGINT": 64}
_FLOATING: Final = frozenset({"FLOAT", "DOUBLE", "REAL"})
_WORD: Final = re.compile(r"\w+")


def base(ddl: str) -> str:
    """The type's first word: ``DECIMAL(12,2)`` is ``DECIMAL``."""
    found = _WORD.match(ddl.strip())
    return found[0].upper() if found else ""


def is_integer(ddl: str) -> bool:
    """Whether values are whole numbers of a fixed width."""
    return base(ddl) in _INTEGERS


def is_floating(ddl: str) -> bool:
    """Whether sums depend on the order of their terms."""
    return base(ddl) in _FLOATING


def is_numeric(ddl: str) -> bool:
    """Whether values can be added up."""
    return base(ddl) in {*_INTEGERS, *_FLOATING, "DECIMAL", "NUMERIC"}


def orderable(ddl: str) -> bool:
    """Whether values can be compared by less and greater."""
    return not re.search(r"\b(?:MAP|VARIANT)\b", ddl.upper())


def map_key(ddl: str) -> bool:
    """Whether values can be the names in a JSON object: Spark writes others by their address in memory."""
    return not re.search(r"\b(?:BINARY|ARRAY|STRUCT|MAP|VARIANT|INTERVAL)\b", ddl.upper())


def comparable(left: str, right: str) -> bool:
    """Whether values of both types can be equal: numbers of all kinds, otherwise equal types."""
    if not (orderable(left) and orderable(right)):
        return False
    if is_numeric(left) and is_numeric(right):
        return True
    moments = {"DATE", "TIMESTAMP", "TIMESTAMP_NTZ"}
    if base(left) in moments and base(right) in moments:
        return base(left) == base(right)
    return re.sub(r"\s", "", left.upper()) == re.sub(r"\s", "", right.upper())


def unfit(function: str, ddl: str) -> str | None:
    """Why an aggregate cannot be taken of a type; None where it can."""
    if function in {"sum", "avg"} and not is_numeric(ddl):
        if base(ddl) == "STRING":
            return "not a number; for numeric without precision set silver.types, e.g. decimal(38,9)"
        return "not a number"
    if function in {"min", "max", "count_distinct"} and not orderable(ddl):
        return "has no order" if function != "count_distinct" else "cannot be compared"
    return None


def holds(ddl: str, value: str | float) -> bool:
    """Whether a default of the document file is a value of a type."""
    kind = base(ddl)
    if isinstance(value, bool) or kind == "BOOLEAN":
        return isinstance(value, bool) and kind == "BOOLEAN"
    if kind in _INTEGERS:
        limit = 1 << (_INTEGERS[kind] - 1)
        return isinstance(value, int) and -limit <= value < limit
    if is_numeric(ddl):
        return isinstance(value, int | float)
    return isinstance(value, str) and (kind == "STRING" or _is_moment(kind, value))


def _is_moment(kind: str, text: str) -> bool:
    if kind not in {"DATE", "TIMESTAMP", "TIMESTAMP_NTZ"}:
        return False
    try:
        (date if kind == "DATE" else datetime).fromisoformat(text)
    except ValueError:
        return False
    return True
