"""Type changes that Delta makes in place. Pure."""

from __future__ import annotations

import re
from typing import Final

_DECIMAL: Final = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_WIDER: Final = {
    "SMALLINT": ("INT", "BIGINT", "DOUBLE"),
    "INT": ("BIGINT", "DOUBLE"),
    "FLOAT": ("DOUBLE",),
    "DATE": ("TIMESTAMP_NTZ",),
}
_DIGITS: Final = {"SMALLINT": 10, "INT": 10, "BIGINT": 20}
"""Digits before the point that a DECIMAL needs for Delta to widen such a column to it."""


def widens(narrow: str, wide: str) -> bool:
    """Whether Delta changes the type in place, and stored values then are what PostgreSQL has."""
    before, after = _DECIMAL.fullmatch(narrow), _DECIMAL.fullmatch(wide)
    if before is not None and after is not None:
        more_scale = int(after[2]) - int(before[2])
        return more_scale >= 0 and int(after[1]) - int(before[1]) >= more_scale
    if after is not None and narrow in _DIGITS:
        return int(after[1]) - int(after[2]) >= _DIGITS[narrow]
    return wide in _WIDER.get(narrow, ())
