"""Columns whose values `smelt tail` hides: those of `quality.masked`, in every shape of their tables.

In doubt a value is hidden: in a table with a masked column also the value of a column that the table no
longer has or that the catalog had lost, and every value of a table without a known shape. NULL stays visible,
as in every result (`pipelines.quality.masking`). Columns with a rule (`bronze.rules`) are hashed or masked in
bronze already.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.pipelines.quality.cut import held_columns
from deltasmelt.pipelines.quality.masking import MASK, parse_masked
from deltasmelt.silver.schema.catalog import silver_catalog

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.tail.records import Change, Shapes, Values


def masked_columns(pipeline: Pipeline, relations: Sequence[Relation]) -> Mapping[TableName, set[str]]:
    """Return the columns of `quality.masked` by table.

    Raises:
        ConfigurationError: ``mask-unknown``: neither the source nor silver has a column of a name.
    """
    names = pipeline.quality.masked
    catalog = silver_catalog(list(relations), pipeline.silver)
    try:
        return parse_masked(names, catalog, {})
    except ConfigurationError:
        # A column that only silver still has; opening all tables of silver takes a while.
        return parse_masked(names, catalog, held_columns(pipeline.lake_address(), catalog.values()))


def without_masked(
    change: Change, masked: Mapping[TableName, Collection[str]] | None, shapes: Shapes
) -> Change:
    """Return a change whose masked values are hidden, in a pipeline with masked columns. Pure.

    With `masked` None the masked columns are not known yet, and every value is hidden.
    """
    versions = () if change.relation_id is None else shapes.versions(change.relation_id)
    if masked is not None and versions and not any(version.table in masked for version in versions):
        return change
    shape = None
    if change.relation_id is not None:
        shape = shapes.at(change.relation_id, change.commit_lsn, change.lsn)
    visible = set() if masked is None else _visible(shape, versions, masked)

    def hidden(values: Values | None) -> Values | None:
        if values is None:
            return None
        return {name: value if value is None or name in visible else MASK for name, value in values.items()}

    return replace(
        change,
        key=hidden(change.key) or {},
        old_key=hidden(change.old_key),
        new=hidden(change.new),
        old=hidden(change.old),
    )


def _visible(
    shape: Relation | None, versions: Sequence[Relation], masked: Mapping[TableName, Collection[str]]
) -> set[str]:
    """Return the columns of a shape whose values are shown, in a table with a masked column."""
    if shape is None:
        return set()
    names = {name.casefold() for version in versions for name in masked.get(version.table, ())}
    numbers = {
        column.attnum for version in versions for column in version.columns if column.name.casefold() in names
    }
    present = set(versions[-1].names)
    return {
        column.name
        for column in shape.columns
        if column.attnum is not None
        and column.attnum in present
        and column.attnum not in numbers
        and column.name.casefold() not in names
    }
