"""Errors of maintenance: tables that could not be maintained, in `control.errors`, until they could.

A table that is not vacuumed or compacted is right all the same: it goes on, is named by cuts, and stops no
run. So these errors have their own code. They carry the name of the table in the lake (`silver.orders`,
`gold.customer`), not that of the source's table or of the document: the layers open and close those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bronze.errors import SmeltError
from bronze.lake.control import OpenError
from pipelines.terminal.failures import without_secrets
from silver.errors import cause

if TYPE_CHECKING:
    from collections.abc import Collection

    from bronze.lake.control_tables import ControlTables

MAINTENANCE_FAILED: Final = "upkeep-failed"


def stops(error: OpenError) -> bool:
    """Whether an error stops its table or document."""
    return error.code != MAINTENANCE_FAILED


def record(control: ControlTables, name: str, error: Exception) -> None:
    """Open the error of a table; one that is open with another cause is closed first.

    Args:
        control: where.
        name: of the table with its layer.
        error: what ended its maintenance.
    """
    said = error.message if isinstance(error, SmeltError) else cause(error)
    message = without_secrets(f"maintenance failed: {said}")
    control.restate_error(
        OpenError(
            "table",
            name,
            MAINTENANCE_FAILED,
            message,
            "its rows are right and continue to be updated; maintenance is retried automatically, after "
            "growing pauses, or at once by: smelt maintain FILE",
        )
    )


def close(control: ControlTables, name: str) -> None:
    """Close the error of a table that has been maintained."""
    control.close_errors("table", name, MAINTENANCE_FAILED)


def close_others(control: ControlTables, layers: Collection[str], names: Collection[str]) -> None:
    """Close the errors of tables that no cut names any longer: those are not maintained.

    Args:
        control: where.
        layers: whose tables.
        names: of the tables that are maintained, with their layers.
    """
    for known in control.open_errors():
        layer = known.name.partition(".")[0]
        if known.code == MAINTENANCE_FAILED and layer in layers and known.name not in names:
            close(control, known.name)
