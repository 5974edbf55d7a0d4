"""The columns that a silver table is clustered by, and those that have statistics. Pure text.

Clustering affects speed alone: a clustering statement that fails leaves right rows (`is_optional`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.silver.schema.catalog import COMMIT_LSN, VALID_TO_LSN
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deltasmelt.silver.schema.catalog import SilverColumn, SilverTable

STATISTICS: Final = "delta.dataSkippingStatsColumns"
"""Table property: columns that Delta keeps statistics of, in place of the first ones."""
_CLUSTERING_COLUMNS: Final = 4
"""How many Delta takes at most."""
INDEXED_COLUMNS: Final = 32
"""How many of the first columns have statistics by default."""
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
    """The clause of CREATE TABLE, and the action of ALTER TABLE."""
    return f"CLUSTER BY ({', '.join(map(quote, columns))})"


def clustering_columns(table: SilverTable) -> list[str]:
    """Columns to cluster by: the first four with statistics of those that are wanted, or else of the key."""
    return _usable(table, table.cluster) or _usable(table, table.key)


def _usable(table: SilverTable, names: Sequence[str]) -> list[str]:
    usable = [name for name in dict.fromkeys(names) if may_cluster(table.column(name).spark_type)]
    return usable[:_CLUSTERING_COLUMNS]


def may_cluster(spark_type: str) -> bool:
    """Check whether Delta keeps statistics of a type, and clusters by columns of it."""
    return spark_type.partition("(")[0] in _WITH_STATISTICS


def is_wide(table: SilverTable, clustering: Sequence[str]) -> bool:
    """Whether a column to cluster by, or of the key, comes after those that have statistics by default."""
    needed = [*clustering, *_usable(table, table.key)]
    return any(_leaves_before(table, name) >= INDEXED_COLUMNS for name in needed)


def _leaves_before(table: SilverTable, name: str) -> int:
    """How many columns, counted inside structs, come before this one."""
    return _leaves(table.columns[: table.position(name)])


def _leaves(columns: Iterable[SilverColumn]) -> int:
    return sum(max(1, column.spark_type.count(": ")) for column in columns)


def recluster_for_drop(table: SilverTable, names: Mapping[int, str], types: Mapping[int, str]) -> list[str]:
    """Cluster again, by what the table has of its key: Delta drops no column that it is clustered by.

    By which columns it is, its key of now does not say; a drop is rare, and this is a commit without data.

    Args:
        table: its wanted shape.
        names: of the columns that stay, as they are called at this moment.
        types: of all its columns, as they are at this moment.
    """

    def stays(wanted: Sequence[str]) -> list[str]:
        return [
            names[column.attnum]
            for column in map(table.column, wanted)
            if column.attnum is not None and column.attnum in names and may_cluster(types[column.attnum])
        ]

    columns = stays(clustering_columns(table)) or stays(_usable(table, table.key))
    if not columns:
        return ["CLUSTER BY NONE"]
    return cluster_actions(table, columns, wide=len(types) > INDEXED_COLUMNS)


def clustered_again(target: str, table: SilverTable, *, statistics: bool = False) -> list[str]:
    """Cluster a table whose rows were all replaced: Delta's INSERT OVERWRITE forgets by what it was.

    A separate commit, without data. Killed before it, the table is not clustered until its next
    snapshot or TRUNCATE; that costs time when its files are compacted, and nothing else.

    Args:
        target: the table as Spark SQL.
        table: its shape.
        statistics: say also of which columns there are statistics, which an INSERT OVERWRITE leaves as it is.
    """
    columns = clustering_columns(table)
    if not columns:
        return []
    # Of a table with more columns than have statistics by default, it may have been said which have.
    wide = statistics and (is_wide(table, columns) or _leaves(table.columns) > INDEXED_COLUMNS)
    return [f"ALTER TABLE {target} {action}" for action in cluster_actions(table, columns, wide=wide)]


def is_optional(target: str, statement: str) -> bool:
    """Whether a statement of `silver.schema.alter.steps` is only about clustering."""
    alter = f"ALTER TABLE {target}"
    return statement.startswith(
        (f"{alter} CLUSTER BY ", f"{alter} SET TBLPROPERTIES ({literal(STATISTICS)} = ")
    )


def cluster_actions(table: SilverTable, columns: Sequence[str], *, wide: bool) -> list[str]:
    """The actions of ALTER TABLE; where the table is `wide`, also of which columns there are statistics."""
    by = cluster_by(columns)
    if not wide:
        return [by]
    return [f"SET TBLPROPERTIES ({literal(STATISTICS)} = {literal(statistics_columns(table, columns))})", by]


def statistics_columns(table: SilverTable, clustering: Sequence[str]) -> str:
    """Columns with statistics, where Delta would keep them of the first ones alone; clustering needs them."""
    # MERGE leaves out files by the key, whatever the rows are clustered by.
    key = _usable(table, table.key)
    own = [COMMIT_LSN, *([VALID_TO_LSN] if table.history else [])]
    return ",".join(quote(name) for name in dict.fromkeys([*clustering, *key, *own]))
