"""Errors of upkeep: what could not be kept in order, in `control.errors`, until it could.

A table that is not vacuumed or joined is right all the same: it goes on, is named by cuts, and stops no run.
So these errors have a code of their own, and the name of the table in the lake (`silver.orders`,
`gold.customer`), not that of the source's table or of the document: those are opened and closed by the layers
themselves.
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

UPKEEP_FAILED: Final = "upkeep-failed"


def stops(error: OpenError) -> bool:
    """Whether an error is one for which a table or document stands still."""
    return error.code != UPKEEP_FAILED


def record(control: ControlTables, name: str, error: Exception) -> None:
    """Open the error of a table; one that is open with another cause is closed first.

    Args:
        control: where.
        name: of the table with its layer.
        error: what ended its upkeep.
    """
    said = error.message if isinstance(error, SmeltError) else cause(error)
    message = without_secrets(f"upkeep failed: {said}")
    control.restate_error(
        OpenError(
            "table",
            name,
            UPKEEP_FAILED,
            message,
            "its rows are right and go on; it is tried again by itself, ever more rarely, or at once by: "
            "smelt maintain FILE",
        )
    )


def close(control: ControlTables, name: str) -> None:
    """Close the error of a table that has been kept in order."""
    control.close_errors("table", name, UPKEEP_FAILED)


def close_others(control: ControlTables, layers: Collection[str], names: Collection[str]) -> None:
    """Close the errors of tables that no cut names any more: nobody looks after those.

    Args:
        control: where.
        layers: whose tables.
        names: of the tables that are looked after, with their layers.
    """
    for known in control.open_errors():
        layer = known.name.partition(".")[0]
        if known.code == UPKEEP_FAILED and layer in layers and known.name not in names:
            close(control, known.name)
