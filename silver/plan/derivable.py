"""Whether a history, or a table with soft deletes, can be derived from bronze with what ended before. Pure.

Rows that ended before the newest snapshot are in no change since. `silver.rebuild` copies them from the table
itself. That is exact only where the table's columns are those of the shapes since the snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltasmelt.silver.plan.steps import distinct_shapes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.silver.schema.catalog import SilverTable
    from deltasmelt.silver.schema.fields import DeltaColumn


def obstacle(
    table: SilverTable,
    fields: Sequence[DeltaColumn],
    versions: Sequence[Relation],
    snapshot: Lsn,
    *,
    ended: bool,
) -> str | None:
    """Return why a table cannot be derived, as the end of a sentence about the table; None where it can.

    Args:
        table: its newest shape, or its history.
        fields: columns of the table from which rows that ended are to be copied.
        versions: all shapes of its relation.
        snapshot: the newest one.
        ended: whether the table has, or may have, rows that ended before the snapshot.
    """
    shapes = distinct_shapes(versions)
    changed = [shape for shape in shapes if shape.from_lsn > snapshot]
    since = [*shapes[: len(shapes) - len(changed)][-1:], *changed]
    derived = {column.attnum for shape in since for column in shape.columns}
    own = table.own_columns
    former = [one.name for one in fields if one.name not in own and one.attnum not in derived]
    if former:
        return f"has the column {former[0]} from before the newest snapshot, which would be lost"
    if ended and changed:
        return "has rows that ended, with other columns, before the newest snapshot, which would be lost"
    return None
