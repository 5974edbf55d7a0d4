"""Check whether bronze can rebuild a history, or a table with soft deletes, with all ended rows. Pure.

Rows that ended before the newest snapshot are in no later change. `silver.rebuild` copies these rows from the
silver table. The copy is exact only if the table's columns are the columns of the shapes since the snapshot.
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
    """Return why a table cannot be derived, as the end of a sentence about the table; else None.

    Args:
        table: the table in its newest shape, or its history.
        fields: columns of the table from which silver copies ended rows.
        versions: all shapes of the table's relation.
        snapshot: LSN of the newest complete snapshot.
        ended: whether the table has, or may have, rows that ended before the snapshot.
    """
    shapes = distinct_shapes(versions)
    changed = [shape for shape in shapes if shape.from_lsn > snapshot]
    since = [*shapes[: len(shapes) - len(changed)][-1:], *changed]
    derived = {column.attnum for shape in since for column in shape.columns}
    own_columns = table.own_columns
    former = [field.name for field in fields if field.name not in own_columns and field.attnum not in derived]
    if former:
        return f"has the column {former[0]} from before the newest snapshot; a rebuild would lose this column"
    if ended and changed:
        return "has ended rows with other columns from before the newest snapshot; a rebuild would lose them"
    return None
