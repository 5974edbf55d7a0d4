"""The statement that makes a silver table: explicit DDL, never automatic schema merging. Pure text.

Delta's MERGE cannot write the change feed of a table with a backtick in a column name (it does not escape
it); such a table has no feed, and gold then rebuilds.

Features: deletion vectors (small MERGEs on large files), change data feed (gold), clustering by key; others
when they are first needed (`silver.schema.ddl`).

Table features that a silver table asks of its readers, each from when it first needs it. Pure text.

Whoever reads a Delta table must know every reader feature that it has. Delta and Databricks know all of ours.
delta-rs and Polars know deletion vectors, but refuse a table that may have widened types, and Polars one with
mapped columns (`docs/readers.md`). So a table is made without the two:

* column mapping comes with the first rename or drop, or with a name that Parquet's files cannot bear;
* type widening comes with the first type that is widened in place;
* local timestamps: Delta adds that feature for a column that a table is made with; for one that is added
  later it must be asked for.

To ask twice for a feature does no harm: a cycle that was killed after it asks again.

Delta protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#table-features.

Whose rows a silver table holds: the relation's id, in a property of the table. Pure text.

A name may come to mean another relation: the table was dropped and recreated, or two tables swapped their
names. Rows of one and changes of the other must never be mixed, so a cycle compares ids (`silver.cycle`).
Only a snapshot of the new relation replaces the old one's rows. The property is written before them. So if
the process is killed in between, or the load fails, the snapshot is still after the table's mark, and is
loaded next.

History and soft-deleted rows outlive the table that they came from, but attnums do not: another table's
column 3 is another column. For another relation, columns of the same name and type are taken to be the same.
A column of another type makes room for the new one; the others are no longer the source's.

Names and types decide, so the statements may end anywhere and be derived again; the property comes last.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

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
from deltasmelt.silver.schema.fields import definition, former_name, free_name
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
"""What Delta refuses in the name of a column that is not mapped."""
_FIELD: Final = re.compile(r"`((?:[^`]|``)*)`")
_MAPPED_ALONE: Final = ("RENAME COLUMN ", "DROP COLUMN ")
_RETYPED: Final = re.compile(r"ALTER COLUMN `(?:[^`]|``)*` TYPE ")


def wants_mapping(columns: Iterable[SilverColumn]) -> bool:
    """Whether one of the columns, or a field inside of one, has a name that only mapped columns have."""
    return any(
        _ODD.search(name) for column in columns for name in (column.name, *_FIELD.findall(column.spark_type))
    )


def wants_local_times(wanted: Iterable[str], actual: Iterable[str]) -> bool:
    """Whether a table gets its first timestamp without a zone, wherever inside of a column.

    Args:
        wanted: the types that its columns are to have.
        actual: those that they have.
    """
    return any(NTZ in ddl for ddl in wanted) and not any(NTZ in ddl for ddl in actual)


def enabled(target: str, name: str, value: str) -> str:
    """The statement that asks for a feature."""
    return f"ALTER TABLE {target} SET TBLPROPERTIES ({literal(name)} = {literal(value)})"


def with_features(target: str, statements: Sequence[str], *, mapped: bool = False) -> list[str]:
    """ALTERs, and before them what enables the features that they need.

    Args:
        target: the table as Spark SQL.
        statements: what is to be done to it.
        mapped: a name among what is added needs mapped columns.
    """
    actions = [statement.removeprefix(f"ALTER TABLE {target} ") for statement in statements]
    needed = []
    if mapped or any(action.startswith(_MAPPED_ALONE) for action in actions):
        needed.append(enabled(target, MAPPING, BY_NAME))
    if any(_RETYPED.match(action) for action in actions):
        needed.append(enabled(target, WIDENING, "true"))
    return [*needed, *statements]


FEED: Final = "delta.enableChangeDataFeed"
CHECKPOINTS: Final = "delta.checkpointInterval"
TIMESTAMPS: Final = "deltasmelt.timestamps"
"""Table property: the type of timestamps in all files of the table. Tables of earlier versions lack it
until `smelt maintain` has rewritten them (`pipelines.runtime.old_timestamps`)."""
MICROSECONDS: Final = "microseconds"
PROPERTIES: Final = {
    "delta.enableDeletionVectors": "true",
    FEED: "true",
    CHECKPOINTS: "50",
    "delta.enableExpiredLogCleanup": "false",
    TIMESTAMPS: MICROSECONDS,
}
"""The log is cut off by what cuts name (`pipelines.runtime.maintenance`); Delta goes by the age of entries
alone."""
RELATION_PROPERTY: Final = "deltasmelt.relation"
"""Table property: id of the relation whose rows the table holds, and whose attnums its columns carry."""


def create(target: str, table: SilverTable, *, checkpoints: int | None = None) -> list[str]:
    """CREATE TABLE for a table that is not there; it says whose rows it holds (`silver.schema.ddl`).

    Delta cuts CLUSTER BY out of the text by positions counted in characters, but Java counts halves of those
    beyond U+FFFF. If such a character comes before the clause's end, a separate statement clusters the table.

    Args:
        target: what the table is called in SQL.
        table: its columns and key.
        checkpoints: versions between two checkpoints; None: as in `PROPERTIES`.
    """
    columns = [definition(column) for column in table.columns]
    columns += [f"{quote(name)} {ddl}" for name, ddl in table.own_columns.items()]
    clustering = clustering_columns(table)
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
    if is_wide(table, clustering):
        properties[STATISTICS] = statistics_columns(table, clustering)
    cluster = f"\n{cluster_by(clustering)}" if clustering else ""
    options = comma((f"{literal(name)} = {literal(value)}" for name, value in properties.items()), 2)
    head = f"""\
CREATE TABLE IF NOT EXISTS {target} (
  {comma(columns, 2)}
) USING DELTA
COMMENT {literal(description_of(table))}"""
    later = []
    if max(f"{head}{cluster}") > "\uffff" and clustering:
        cluster, later = "", [f"ALTER TABLE {target} {cluster_by(clustering)}"]
    return [f"{head}{cluster}\nTBLPROPERTIES (\n  {options}\n)", *later]


def feed_again(target: str, table: SilverTable, names: Iterable[str]) -> list[str]:
    """Return the statement that switches a table's change feed on again, where Delta can write the feed.

    Args:
        target: what the table is called in SQL.
        table: its columns.
        names: of the columns that it has, those that the source dropped among them.
    """
    if not feedable(table) or any("`" in name for name in names):
        return []
    return [f"ALTER TABLE {target} SET TBLPROPERTIES ({literal(FEED)} = 'true')"]


def feedable(table: SilverTable) -> bool:
    """Whether Delta can write the change feed of the table."""
    return not any("`" in column.name for column in table.columns)


def adopted(
    target: str, table: SilverTable, actual: Sequence[DeltaColumn], relation: str | None
) -> tuple[list[str], list[DeltaColumn]]:
    """Statements that make a table's columns those of another relation, and the columns after them.

    Args:
        target: the table as Spark SQL.
        table: the wanted shape.
        actual: the columns that it has.
        relation: what the property says; None of a table that was made before it was kept.
    """
    wanted = str(table.relation.relation_id)
    if relation == wanted:
        return [], list(actual)
    alter, sql, fields = f"ALTER TABLE {target}", [], list(actual)
    if relation is not None and table.versioned:
        columns = {folded(column.name): column for column in table.columns}
        for at, field in enumerate(actual):
            same = columns.get(folded(field.name))
            if field.attnum is None and same is None:
                continue
            name, attnum = field.name, None
            if same is not None and same.spark_type == field.ddl:
                attnum = same.attnum
            elif same is not None:
                taken = [*(one.name for one in fields), *(one.name for one in table.columns)]
                name = free_name(former_name(field.name, field.attnum, field.ddl), taken)
                sql.append(f"{alter} RENAME COLUMN {quote(field.name)} TO {quote(name)}")
            if attnum != field.attnum:
                comment = "" if attnum is None else f"attribute {attnum}"
                sql.append(f"{alter} ALTER COLUMN {quote(name)} COMMENT {literal(comment)}")
            fields[at] = replace(field, name=name, attnum=attnum, missing=None)
    sql.append(f"{alter} SET TBLPROPERTIES ({literal(RELATION_PROPERTY)} = {literal(wanted)})")
    return with_features(target, sql), fields
