"""The forms that rows of `smelt sql` take."""

from __future__ import annotations

from enum import StrEnum


class RowFormat(StrEnum):
    """What `smelt sql --output` takes."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
