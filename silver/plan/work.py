"""What is to be done of one table: the changes to fold, from where to where. Pure, no Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bronze.lsn import Lsn
    from bronze.shapes import Relation
    from silver.plan.activity import Activity
    from silver.schema.catalog import SilverTable
    from silver.settings import SilverSettings


@dataclass(frozen=True, slots=True)
class Work:
    """A table's part of a cycle, from which its steps follow (`silver.plan.steps`, `history_steps`).

    Attributes:
        table: in its newest shape.
        versions: all versions of the relation's shape that may count.
        changes: `bronze.changes` at a pinned version, or the rows kept of it, as Spark SQL.
        activity: what the window holds.
        start: LSN up to which the table is done.
        end: LSN to carry it to.
        settings: types, and whether dropped columns are kept.
        fresh: the table holds nothing yet, so it begins with a snapshot. It counts for history and soft
            deletes alone.
        again: where the last window ended, if that is folded once more: its rows were not all there. It is a
            step of its own, as what follows begins with what it leaves.
        healed: LSN of the snapshot that healed a gap in bronze, if there is one; of history and soft deletes
            what comes before it is left out.
        described: nothing is to be done but to take over comments.
    """

    table: SilverTable
    versions: tuple[Relation, ...]
    changes: str
    activity: Activity
    start: Lsn
    end: Lsn
    settings: SilverSettings
    fresh: bool = False
    again: Lsn | None = None
    healed: Lsn | None = None
    described: bool = False
