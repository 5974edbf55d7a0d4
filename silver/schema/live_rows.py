"""Rows of the source among the rows of a silver table: what others have to read where deletes are soft.

Our own column is told from a source's column of that name by its comment: columns of the source carry their
attnum in it (`silver.schema.ddl`). So it depends on the table alone, not on what the settings say now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from silver.schema.catalog import DELETED
from silver.schema.ddl import is_of_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LIVING: Final = f"NOT coalesce({DELETED}, false)"
"""The condition that a row of the source meets, in a table that keeps deleted rows."""


def keeps_deleted(frame: DataFrame) -> bool:
    """Whether a silver table, or its change feed, holds deleted rows, marked."""
    return any(
        field.name == DELETED and not is_of_source(field.metadata.get("comment", ""))
        for field in frame.schema.fields
    )


def living_rows(frame: DataFrame) -> DataFrame:
    """The rows that the source has: without those that silver keeps as deleted."""
    return frame.where(LIVING) if keeps_deleted(frame) else frame
