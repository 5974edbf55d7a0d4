"""The statement that makes a silver table: explicit DDL, never automatic schema merging. Pure text.

Delta's MERGE cannot write the change feed of a table with a backtick in a column name (it does not escape
it); such a table has no feed, and gold then rebuilds.

Features: deletion vectors (small MERGEs on large files), change data feed (gold), clustering by key; others
when they are first needed (`silver.schema.features`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from silver.schema import deleted_keys, padding
from silver.schema.clustering import STATISTICS, cluster_by, clustering_columns, is_wide, statistics_columns
from silver.schema.comments import description_of
from silver.schema.features import BY_NAME, MAPPING, wants_mapping
from silver.schema.fields import definition
from silver.sql import comma, literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable

    from silver.schema.catalog import SilverTable

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
    """CREATE TABLE for a table that is not there; it says whose rows it holds (`silver.schema.recreated`).

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
