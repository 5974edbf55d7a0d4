"""Type changes that Delta makes in place, and the table features that they need. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

NTZ: Final = "TIMESTAMP_NTZ"
NTZ_FEATURE: Final = "delta.feature.timestampNtz"
"""CREATE TABLE enables this itself for such a column; for one that is added later it must be set."""
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_WIDER: Final = {
    "SMALLINT": ("INT", "BIGINT", "DOUBLE"),
    "INT": ("BIGINT", "DOUBLE"),
    "FLOAT": ("DOUBLE",),
    "DATE": ("TIMESTAMP_NTZ",),
}
_DIGITS: Final = {"SMALLINT": 10, "INT": 10, "BIGINT": 20}
"""Digits before the point that a DECIMAL needs for Delta to widen such a column to it."""


def wants_feature(wanted: Iterable[str], actual: Iterable[str]) -> bool:
    """Whether a table gets its first timestamp without a zone, wherever inside of a column.

    Args:
        wanted: the types that its columns are to have.
        actual: those that they have.
    """
    return any(NTZ in ddl for ddl in wanted) and not any(NTZ in ddl for ddl in actual)


def widens(narrow: str, wide: str) -> bool:
    """Whether Delta changes the type in place, and stored values then are what PostgreSQL has."""
    before, after = _DECIMAL.fullmatch(narrow), _DECIMAL.fullmatch(wide)
    if before is not None and after is not None:
        more_scale = int(after[2]) - int(before[2])
        return more_scale >= 0 and int(after[1]) - int(before[1]) >= more_scale
    if after is not None and narrow in _DIGITS:
        return int(after[1]) - int(after[2]) >= _DIGITS[narrow]
    return wide in _WIDER.get(narrow, ())
