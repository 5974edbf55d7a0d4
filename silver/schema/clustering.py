"""Choose the columns by which a silver table is clustered, and the columns with statistics. Pure text.

Clustering affects speed alone: a failed clustering statement leaves the rows right (`is_optional`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.silver.schema.catalog import COMMIT_LSN, VALID_TO_LSN
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deltasmelt.silver.schema.catalog import SilverColumn, SilverTable

STATISTICS: Final = "delta.dataSkippingStatsColumns"
"""Table property: the columns with statistics, in place of Delta's default, the first columns."""
_CLUSTERING_COLUMNS: Final = 4
"""The largest number of clustering columns that Delta accepts."""
INDEXED_COLUMNS: Final = 32
"""Number of first columns that have statistics by default."""
_WITH_STATISTICS: Final = frozenset(
    (
        "SMALLINT",
        "INT",
        "BIGINT",
        "FLOAT",
        "DOUBLE",
        "DECIMAL",
        "STRING",
        "DATE",
        "TIMESTAMP",
        "TIMESTAMP_NTZ",
    )
)


def cluster_by(columns: Iterable[str]) -> str:
    """Return the clause of CREATE TABLE, which is also the action of ALTER TABLE."""
    return f"CLUSTER BY ({', '.join(map(quote, columns))})"


def clustering_columns(table: SilverTable) -> list[str]:
    """Return the first four columns with statistics, from the wanted columns or else from the key."""
    return _usable(table, table.cluster) or _usable(table, table.key)


def _usable(table: SilverTable, names: Sequence[str]) -> list[str]:
    usable = [name for name in dict.fromkeys(names) if may_cluster(table.column(name).spark_type)]
    return usable[:_CLUSTERING_COLUMNS]


def may_cluster(spark_type: str) -> bool:
    """Check whether Delta keeps statistics of a type and can cluster by columns of the type."""
    return spark_type.partition("(")[0] in _WITH_STATISTICS


def is_wide(table: SilverTable, clustering: Sequence[str]) -> bool:
    """Check whether a clustering or key column comes after the columns that have statistics by default."""
    needed = [*clustering, *_usable(table, table.key)]
    return any(_leaves_before(table, name) >= INDEXED_COLUMNS for name in needed)


def _leaves_before(table: SilverTable, name: str) -> int:
    """Return the number of columns before a column, counted inside structs."""
    return _leaves(table.columns[: table.position(name)])


def _leaves(columns: Iterable[SilverColumn]) -> int:
    return sum(max(1, column.spark_type.count(": ")) for column in columns)


def recluster_for_drop(table: SilverTable, names: Mapping[int, str], types: Mapping[int, str]) -> list[str]:
    """Return actions that cluster by the remaining key columns: Delta drops no clustering column.

    `names` has the columns that stay, `types` all columns of the table, both by attnum.
    """

    def stays(columns: Sequence[str]) -> list[str]:
        return [
            names[column.attnum]
            for column in map(table.column, columns)
            if column.attnum is not None and column.attnum in names and may_cluster(types[column.attnum])
        ]

    # The present key does not show by which columns Delta clusters the table, so every drop clusters again. A
    # drop is rare, and clustering is a commit without data.
    columns = stays(clustering_columns(table)) or stays(_usable(table, table.key))
    if not columns:
        return ["CLUSTER BY NONE"]
    return cluster_actions(table, columns, wide=len(types) > INDEXED_COLUMNS)


def clustered_again(target: str, table: SilverTable, *, statistics: bool = False) -> list[str]:
    """Cluster a table again after an INSERT OVERWRITE: Delta forgets the clustering columns.

    The new clustering is a separate commit without data. After a kill before the commit, the table stays
    unclustered until its next snapshot or TRUNCATE; only compaction takes longer. With `statistics` also set
    the columns with statistics, which an INSERT OVERWRITE leaves unchanged.
    """
    columns = clustering_columns(table)
    if not columns:
        return []
    # A table with more columns than have statistics by default may have the property set before.
    wide = statistics and (is_wide(table, columns) or _leaves(table.columns) > INDEXED_COLUMNS)
    return [f"ALTER TABLE {target} {action}" for action in cluster_actions(table, columns, wide=wide)]


def is_optional(target: str, statement: str) -> bool:
    """Check whether a statement of `silver.schema.alter.steps` only affects clustering."""
    alter = f"ALTER TABLE {target}"
    return statement.startswith(
        (f"{alter} CLUSTER BY ", f"{alter} SET TBLPROPERTIES ({literal(STATISTICS)} = ")
    )


def cluster_actions(table: SilverTable, columns: Sequence[str], *, wide: bool) -> list[str]:
    """Return the actions of ALTER TABLE; for a `wide` table also the columns with statistics."""
    by = cluster_by(columns)
    if not wide:
        return [by]
    return [f"SET TBLPROPERTIES ({literal(STATISTICS)} = {literal(statistics_columns(table, columns))})", by]


def statistics_columns(table: SilverTable, clustering: Sequence[str]) -> str:
    """Return the columns with statistics for a wide table; clustering needs statistics of its columns."""
    # MERGE skips files by the key, whatever the clustering columns.
    key = _usable(table, table.key)
    positions = [COMMIT_LSN, *([VALID_TO_LSN] if table.history else [])]
    return ",".join(quote(name) for name in dict.fromkeys([*clustering, *key, *positions]))
