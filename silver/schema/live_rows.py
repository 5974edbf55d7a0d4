"""Define live rows: the source's rows among the rows of a silver table. The only definition.

A table with soft deletes also holds rows that the source has deleted, and a history holds ended versions.
Readers go by the table itself (`live_rows`), not by the present settings. The comment distinguishes silver's
own column from a source column with this name: comments of source columns carry an attnum
(`silver.schema.fields`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.silver.schema.catalog import DELETED, VALID_TO_LSN
from deltasmelt.silver.schema.fields import is_of_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from deltasmelt.silver.schema.catalog import SilverTable

IS_LIVE: Final = f"NOT coalesce({DELETED}, false)"
"""The condition of a live row in a table that keeps deleted rows."""


def keeps_deleted(frame: DataFrame) -> bool:
    """Check whether a silver table, or its change feed, holds deleted rows, marked."""
    return any(
        field.name == DELETED and not is_of_source(field.metadata.get("comment", ""))
        for field in frame.schema.fields
    )


def live_rows(frame: DataFrame) -> DataFrame:
    """Return the live rows of a silver table, or of its change feed; not of a history."""
    return frame.where(IS_LIVE) if keeps_deleted(frame) else frame


def is_live(table: SilverTable) -> str:
    """Return the condition of a live row; in a history, of the current version."""
    if table.history:
        return f"{VALID_TO_LSN} IS NULL"
    return IS_LIVE if table.soft else "true"
