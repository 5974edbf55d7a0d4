"""Keep values that silver's type of a column cannot hold, as their text in ``_unrepresentable``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltasmelt.silver.schema.catalog import OWN_COLUMNS, UNREPRESENTABLE
from deltasmelt.silver.sql import literal

if TYPE_CHECKING:
    from collections.abc import Sequence


def lost_values(losable: Sequence[tuple[str, str, str]]) -> str:
    """Return the map of texts that their types do not hold, from (column, text, value); NULL without any."""
    if not losable:
        return f"CAST(NULL AS {OWN_COLUMNS[UNREPRESENTABLE]})"
    anything = " OR ".join(f"{text} IS NOT NULL AND {value} IS NULL" for _, text, value in losable)
    entries = ", ".join(
        f"{literal(column)}, CASE WHEN {value} IS NULL THEN {text} END" for column, text, value in losable
    )
    return f"CASE WHEN {anything}\n    THEN map_filter(map({entries}), (name, text) -> text IS NOT NULL) END"
