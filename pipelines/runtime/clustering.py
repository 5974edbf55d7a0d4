"""The clustering columns of silver's tables, and the rewrite into their order.

The pipeline file (``silver.cluster``), the documents' joins (`join_columns`) or the key decide the columns.
Clustering affects speed alone: reading an unclustered table returns the same rows.

Delta stores the columns in the table's log, and writes no row after a change. OPTIMIZE reorders rows, those
of large files only as ``OPTIMIZE … FULL``. So only `smelt maintain` changes the columns of an existing table:
the command rewrites the table once, and each later run is cheap.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.gold.language.model import AggregateField, ManyField, ObjectField, OneField, entry_name
from deltasmelt.silver.schema.catalog import is_named, silver_catalog
from deltasmelt.silver.schema.clustering import (
    INDEXED_COLUMNS,
    STATISTICS,
    cluster_actions,
    clustering_columns,
    is_wide,
)
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.gold.language.document import Document
    from deltasmelt.silver.schema.catalog import SilverTable
    from deltasmelt.silver.settings import SilverSettings

_MOST: Final = 2
"""Largest number of clustering columns: each further column scatters the rows of one value."""


def join_columns(documents: Iterable[Document]) -> dict[TableName, tuple[str, ...]]:
    """Return the first two join columns of each table, without the joins of a `one`. Pure.

    An incremental run of gold searches for the children of a few roots. If these rows are adjacent in the
    files of a silver table, the run reads few pages (`gold.incremental.key_lists`). So the foreign key of a
    `many` or an aggregate, and in a link table the columns toward the parent, are the best choice, unless the
    table's own key contains them.
    """
    joined: defaultdict[TableName, dict[str, None]] = defaultdict(dict)
    for document in documents:
        for table, columns in _joins(document.definition.fields):
            joined[table].update(dict.fromkeys(columns))
    return {table: tuple(columns)[:_MOST] for table, columns in joined.items()}


def _joins(entries: Iterable[str | dict[str, Any]]) -> Iterator[tuple[TableName, tuple[str, ...]]]:
    for entry in entries:
        spec = None if isinstance(entry, str) else entry[entry_name(entry)]
        if isinstance(spec, ObjectField):
            yield from _joins(spec.object)
        elif isinstance(spec, OneField):
            yield from _joins(spec.fields)
        elif isinstance(spec, ManyField | AggregateField):
            yield from _of(spec)


def _of(spec: ManyField | AggregateField) -> Iterator[tuple[TableName, tuple[str, ...]]]:
    for step in spec.join_path:
        yield TableName.parse(step.table), tuple(step.on)
    if spec.on is not None:
        yield TableName.parse(spec.many) if isinstance(spec, ManyField) else spec.target[0], tuple(spec.on)
    if isinstance(spec, ManyField):
        if spec.recurse is not None:
            yield TableName.parse(spec.many), tuple(spec.recurse.on)
        yield from _joins(spec.fields or ())


_LOGGER: Final = logging.getLogger("deltasmelt.maintenance")
ORDERED_FILES: Final = {
    "spark.databricks.io.skipping.mdc.sortWithinFiles": "true",
    # Rows of one range stay as they come. A thousand ranges, Delta's default, are too coarse for millions.
    "spark.databricks.io.skipping.mdc.rangeId.max": "2000",
}
"""Settings for OPTIMIZE to order the rows within a file, so that readers can skip pages."""
OWED: Final = "deltasmelt.clusteringOwed"
"""Table property: the rows are not yet in the order of the clustering columns."""


def clustered(settings: SilverSettings, documents: Iterable[Document]) -> SilverSettings:
    """Return silver's settings, with the documents' join columns for tables missing in the file."""
    joined = {table: list(columns) for table, columns in join_columns(documents).items()}
    derived = {
        str(table): columns for table, columns in joined.items() if not is_named(table, settings.cluster)
    }
    return settings.model_copy(update={"cluster": {**settings.cluster, **derived}})


def by_name(relations: Sequence[Relation], settings: SilverSettings) -> dict[str, SilverTable]:
    """Return silver's tables by their names within the layer, without histories."""
    return {table.name: table for table in silver_catalog(relations, settings).values()}


def cluster_as_configured(
    spark: SparkSession, address: str, table: SilverTable, stored: Table, run: Callable[[str], object]
) -> bool:
    """Set a table's clustering columns; return whether a rewrite is due.

    A table property records the due rewrite until the end of the rewrite (`written_again`). So a process that
    ends in between leaves the rewrite to the next process. `table` has bronze's shape, `stored` is the stored
    table.
    """
    from deltasmelt.gold.builder.failures import SPARK_ERRORS  # noqa: PLC0415 - `smelt` without Spark reads this module

    columns = clustering_columns(table)
    stored_columns = {field.name for field in stored.schema().fields}
    # With a column still missing from the lake, nothing happens.
    if table.problem is not None or not columns or not set(columns) <= stored_columns:
        return False
    properties = stored.metadata().configuration
    row = spark.sql(f"DESCRIBE DETAIL {address}").select("clusteringColumns").first()
    present = [] if row is None or row[0] is None else [str(name) for name in row[0]]
    pairs = zip(present, columns, strict=False)
    # Delta quotes a name that needs it.
    if len(present) == len(columns) and all(
        stored_name in {name, quote(name)} for stored_name, name in pairs
    ):
        return OWED in properties
    # Columns kept by silver may precede; an earlier run may have named the columns with statistics.
    wide = is_wide(table, columns) or STATISTICS in properties or len(stored_columns) > INDEXED_COLUMNS
    run(f"ALTER TABLE {address} SET TBLPROPERTIES ({literal(OWED)} = 'true')")
    try:
        for action in cluster_actions(table, columns, wide=wide):
            run(f"ALTER TABLE {address} {action}")
    except SPARK_ERRORS:
        # Spark's refusal stops no maintenance.
        _LOGGER.warning("%s could not be clustered by %s", address, ", ".join(columns), exc_info=True)
        written_again(address, run)
        return False
    return True


def written_again(address: str, run: Callable[[str], object]) -> None:
    """Record that all rows of a table are in the order of its columns."""
    run(f"ALTER TABLE {address} UNSET TBLPROPERTIES IF EXISTS ({literal(OWED)})")
