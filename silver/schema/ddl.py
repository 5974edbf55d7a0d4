"""Build the statement that creates a silver table: explicit DDL, never automatic schema merging. Pure text.

A table begins with deletion vectors (small MERGEs on large files), change data feed (gold) and clustering by
key. `with_features` enables further table features, `feedable` decides about the change feed. A property of
the table names the relation whose rows the table holds (`adopted`).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.identifiers import folded
from deltasmelt.silver.schema import deleted_keys, padding
from deltasmelt.silver.schema.clustering import (
    STATISTICS,
    cluster_by,
    clustering_columns,
    is_wide,
    statistics_columns,
)
from deltasmelt.silver.schema.comments import description_of
from deltasmelt.silver.schema.fields import (
    FIELD_NAME,
    comment_of,
    definition,
    field_of,
    former_name,
    free_name,
    json_of,
)
from deltasmelt.silver.sql import comma, literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deltasmelt.silver.schema.catalog import SilverColumn, SilverTable
    from deltasmelt.silver.schema.fields import DeltaColumn

MAPPING: Final = "delta.columnMapping.mode"
BY_NAME: Final = "name"
WIDENING: Final = "delta.enableTypeWidening"
NTZ: Final = "TIMESTAMP_NTZ"
NTZ_FEATURE: Final = "delta.feature.timestampNtz"
_ODD: Final = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that Delta rejects in the name of an unmapped column."""
_MAPPED_ALONE: Final = ("RENAME COLUMN ", "DROP COLUMN ")
_RETYPED: Final = re.compile(r"ALTER COLUMN `(?:[^`]|``)*` TYPE ")


def wants_mapping(columns: Iterable[SilverColumn]) -> bool:
    """Check whether a column, or a field inside a column, has a name that only mapped columns can have."""
    return any(
        _ODD.search(name)
        for column in columns
        for name in (column.name, *FIELD_NAME.findall(column.spark_type))
    )


def wants_local_times(shape_types: Iterable[str], stored_types: Iterable[str]) -> bool:
    """Check whether a table gets its first timestamp without a zone, anywhere inside a column."""
    return any(NTZ in ddl for ddl in shape_types) and not any(NTZ in ddl for ddl in stored_types)


def enabled(target: str, name: str, value: str) -> str:
    """Return the statement that enables a feature."""
    return f"ALTER TABLE {target} SET TBLPROPERTIES ({literal(name)} = {literal(value)})"


def with_features(target: str, statements: Sequence[str], *, mapped: bool = False) -> list[str]:
    """Return ALTERs, preceded by the statements that enable the features needed.

    Every reader of a Delta table must know all of the table's reader features. Delta and Databricks know all
    features in use. delta-rs and Polars know deletion vectors, but reject a table that may have widened
    types. Polars also rejects mapped columns (`docs/readers.md`). So silver enables further features only
    when first needed. Local timestamps need no statement here: for the columns of CREATE TABLE Delta itself
    adds the feature, and `silver.schema.alter` enables the feature for a column added later.

    With `mapped` the name of an added column needs mapped columns. A second request for a feature does no
    harm: after a kill the next cycle repeats the request.

    Delta protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#table-features.
    """
    actions = [statement.removeprefix(f"ALTER TABLE {target} ") for statement in statements]
    features = []
    # For a rename, a drop, or a name that Parquet's files cannot contain.
    if mapped or any(action.startswith(_MAPPED_ALONE) for action in actions):
        features.append(enabled(target, MAPPING, BY_NAME))
    if any(_RETYPED.match(action) for action in actions):
        features.append(enabled(target, WIDENING, "true"))
    return [*features, *statements]


FEED: Final = "delta.enableChangeDataFeed"
CHECKPOINTS: Final = "delta.checkpointInterval"
TIMESTAMPS: Final = "deltasmelt.timestamps"
"""Table property: the type of timestamps in all files of the table.

Tables of earlier versions lack the property until `smelt maintain` has rewritten their files
(`pipelines.runtime.old_timestamps`).
"""
MICROSECONDS: Final = "microseconds"
PROPERTIES: Final = {
    "delta.enableDeletionVectors": "true",
    FEED: "true",
    CHECKPOINTS: "50",
    "delta.enableExpiredLogCleanup": "false",
    TIMESTAMPS: MICROSECONDS,
}
"""Properties of a new table.

Cuts decide which log entries `pipelines.runtime.maintenance` removes; Delta would decide by age alone.
"""
RELATION_PROPERTY: Final = "deltasmelt.relation"
"""Table property: id of the relation whose rows the table holds, and whose attnums its columns carry."""


def schema_of(table: SilverTable) -> dict[str, Any]:
    """Return the columns of a new table in Delta's form, as `create` declares them.

    Raises:
        ValueError: silver cannot express a type in Delta's form.
    """
    fields = [
        field_of(
            column.name,
            json_of(column.spark_type),
            None if column.attnum is None else comment_of(column, filled=True),
        )
        for column in table.columns
    ]
    fields += [field_of(name, json_of(ddl)) for name, ddl in table.own_columns.items()]
    return {"type": "struct", "fields": fields}


def properties_of(table: SilverTable, *, checkpoints: int | None = None) -> dict[str, str]:
    """Return the properties of a new table; see `create`."""
    properties = {
        **PROPERTIES,
        RELATION_PROPERTY: str(table.relation.relation_id),
        **padding.properties(table),
        **deleted_keys.properties(table),
    }
    if checkpoints is not None:
        properties[CHECKPOINTS] = str(checkpoints)
    if wants_mapping(table.columns):
        properties[MAPPING] = BY_NAME
    if not feedable(table):
        properties[FEED] = "false"
    clustering = clustering_columns(table)
    if is_wide(table, clustering):
        properties[STATISTICS] = statistics_columns(table, clustering)
    return properties


def create(target: str, table: SilverTable, *, checkpoints: int | None = None) -> list[str]:
    """Return CREATE TABLE for a missing table; a property names the relation whose rows the table holds.

    `checkpoints` is the number of versions between two checkpoints; None: as in `PROPERTIES`.
    """
    columns = [definition(column) for column in table.columns]
    columns += [f"{quote(name)} {ddl}" for name, ddl in table.own_columns.items()]
    clustering, properties = clustering_columns(table), properties_of(table, checkpoints=checkpoints)
    cluster = f"\n{cluster_by(clustering)}" if clustering else ""
    options = comma((f"{literal(name)} = {literal(value)}" for name, value in properties.items()), 2)
    head = f"""\
CREATE TABLE IF NOT EXISTS {target} (
  {comma(columns, 2)}
) USING DELTA
COMMENT {literal(description_of(table))}"""
    # Delta cuts CLUSTER BY out of the text by positions in characters, but Java counts a character beyond
    # U+FFFF as two. If such a character precedes the clause's end, a separate statement clusters the table.
    later = []
    if max(f"{head}{cluster}") > "\uffff" and clustering:
        cluster, later = "", [f"ALTER TABLE {target} {cluster_by(clustering)}"]
    return [f"{head}{cluster}\nTBLPROPERTIES (\n  {options}\n)", *later]


def feed_again(target: str, table: SilverTable, names: Iterable[str]) -> list[str]:
    """Return the statement that switches a table's change feed on again, if Delta can write the feed.

    `names` are the names of all columns of the table, including columns that the source dropped.
    """
    if not feedable(table) or any("`" in name for name in names):
        return []
    return [f"ALTER TABLE {target} SET TBLPROPERTIES ({literal(FEED)} = 'true')"]


def feedable(table: SilverTable) -> bool:
    """Check whether Delta can write the change feed of the table; without the feed gold rebuilds in full."""
    # Delta's MERGE does not escape a backtick in a column name, so it cannot write the feed of such a table.
    return not any("`" in column.name for column in table.columns)


def adopted(
    target: str, table: SilverTable, actual: Sequence[DeltaColumn], relation: str | None
) -> tuple[list[str], list[DeltaColumn]]:
    """Return statements that assign a table's columns to another relation, and the columns afterwards.

    A name may pass to another relation: a user dropped and recreated the table, or two tables swapped names.
    Rows of a relation and changes of another must never mix, so a cycle compares ids (`silver.cycle`). Only a
    snapshot of the new relation replaces the old relation's rows, and silver writes the property before the
    rows. After a kill in between, or a failed load, the snapshot is still after the table's mark, and silver
    loads the snapshot next.

    `relation` is the property's value; None for a table created before the property existed.
    """
    relation_id = str(table.relation.relation_id)
    if relation == relation_id:
        return [], list(actual)
    alter, sql, fields = f"ALTER TABLE {target}", [], list(actual)
    if relation is not None and table.versioned:
        # History and soft-deleted rows survive their source table, but attnums do not: another table's column
        # 3 is another column. So name and type identify a column of the other relation.
        columns = {folded(column.name): column for column in table.columns}
        for at, field in enumerate(actual):
            namesake = columns.get(folded(field.name))
            if field.attnum is None and namesake is None:
                continue
            name, attnum = field.name, None
            if namesake is not None and namesake.spark_type == field.ddl:
                attnum = namesake.attnum
            elif namesake is not None:
                # A column of another type makes room for the new column.
                used = [*(item.name for item in fields), *(item.name for item in table.columns)]
                name = free_name(former_name(field.name, field.attnum, field.ddl), used)
                sql.append(f"{alter} RENAME COLUMN {quote(field.name)} TO {quote(name)}")
            # All remaining columns are no longer the source's.
            if attnum != field.attnum:
                comment = "" if attnum is None else f"attribute {attnum}"
                sql.append(f"{alter} ALTER COLUMN {quote(name)} COMMENT {literal(comment)}")
            fields[at] = replace(field, name=name, attnum=attnum, missing=None)
    # Last: the statements may stop anywhere before, and silver derives them again from names and types.
    sql.append(f"{alter} SET TBLPROPERTIES ({literal(RELATION_PROPERTY)} = {literal(relation_id)})")
    return with_features(target, sql), fields
