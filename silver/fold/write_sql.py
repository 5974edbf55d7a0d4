"""Build the statements that write silver tables: one Delta commit per window each. Pure text, no Spark.

The mode of a step decides the statement (`silver.plan.steps`): `rows` builds both kinds of INSERT, `merge`
the MERGE.

* Mode `load`: the state starts empty in this window (snapshot or TRUNCATE). The fold's rows *are* the table:
  INSERT OVERWRITE. The statement has no join and no ``WHEN NOT MATCHED BY SOURCE``: this clause would read
  the whole target and switch file pruning off (delta-io/delta#7362).
* Mode `append`: INSERT without a join, for a window with only inserts of a key that the source enforces.
  A step of mode `load` also adds the rows of an empty table by INSERT, which keeps the clustering columns.
* Mode `merge`: every other window. Literal key ranges of the window prune the target, because MERGE skips
  files by predicates on the target alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.silver.fold import toast
from deltasmelt.silver.fold.upsert import Insert, Upsert
from deltasmelt.silver.schema.catalog import (
    COMMIT_LSN,
    COMMIT_TS,
    DELETED,
    OWN_COLUMNS,
    UNREPRESENTABLE,
    VALID_FROM,
    VALID_FROM_LSN,
    VALID_TO,
    VALID_TO_LSN,
)
from deltasmelt.silver.sql import block, literal, quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltasmelt.silver.fold.fold import Fold
    from deltasmelt.silver.schema.catalog import SilverTable

_OF_A_ROW: Final = {
    COMMIT_LSN: "commit_lsn",
    COMMIT_TS: "commit_ts",
    UNREPRESENTABLE: "lost",
    DELETED: "false",
    VALID_FROM_LSN: "commit_lsn",
    VALID_TO_LSN: "CAST(NULL AS BIGINT)",
    VALID_FROM: "commit_ts",
    VALID_TO: "CAST(NULL AS TIMESTAMP)",
}
"""Deltasmelt's own columns of a row that was inserted and not changed since."""

_PRUNABLE: Final = ("SMALLINT", "INT", "BIGINT", "DECIMAL", "STRING", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ")


def prunable(spark_type: str) -> bool:
    """Check whether Delta can skip files by a range of this type, and the range survives as text."""
    return spark_type.partition("(")[0] in _PRUNABLE


def rows(table: SilverTable, fold: Fold, former: Sequence[tuple[str, str]] = ()) -> Insert:
    """Return the fold's rows, to be added to the table or to replace its content.

    `former` has name and type of each column that the source dropped and silver keeps; their values are NULL.
    """
    return Insert(inserted(table, fold, former), f"(\n  {block(fold.query, 2)}\n)")


def inserted(table: SilverTable, fold: Fold, former: Sequence[tuple[str, str]] = ()) -> dict[str, str]:
    """Return each column's value in a row of `rows`, over the rows of the fold's query."""
    values = {column.name: fold.values[position] for position, column in enumerate(table.columns)}
    values |= {name: _OF_A_ROW[name] for name in table.own_columns}
    return values | {name: f"CAST(NULL AS {ddl})" for name, ddl in former}


def merge(
    table: SilverTable,
    fold: Fold,
    ranges: Mapping[int, tuple[str, str]],
    *,
    known: bool = False,
    leaves: bool = True,
) -> Upsert:
    """Return the upsert that applies the fold's actions to the table.

    Args:
        table: the table in its present shape.
        fold: the actions to apply, one per key.
        ranges: smallest and largest value of key columns in the window, as text, by position.
        known: the table has every row that the fold acts on, and such rows are few.
        leaves: whether a row may have left its key. If no row left, no key held two rows in turn.
    """
    conditions = [
        f"t.{quote(table.columns[position].name)} = s.{name}" for position, name in fold.keys.items()
    ]
    conditions += in_ranges(table, ranges)
    updates, inserts = {}, {}
    for position, column in enumerate(table.columns):
        value = f"s.{fold.values[position]}"
        flag = fold.kept_by_target.get(position)
        updates[column.name] = inserts[column.name] = value
        if flag is not None:
            key = (f"s.{name}" for name in fold.keys.values())
            updates[column.name] = toast.updated(table, position, f"s.{flag}", value)
            inserts[column.name] = toast.inserted(table, position, f"s.{flag}", value, key)
    commit = {COMMIT_LSN: "s.commit_lsn", COMMIT_TS: "s.commit_ts"}
    updates |= {**commit, UNREPRESENTABLE: _kept_texts(table, fold)}
    inserts |= {**commit, UNREPRESENTABLE: "s.lost"}
    source = fold.query
    if known:
        source = f"SELECT /*+ BROADCAST(f) */ *\nFROM (\n  {block(source, 2)}\n) AS f"
    return Upsert(
        source,
        tuple(conditions),
        updates=((None, updates),),
        inserts=inserts,
        # A window that only changes existing rows needs no WHEN NOT MATCHED. Without the clause Delta uses
        # inner joins, so Spark broadcasts a small fold to the target's rows. With the clause, Delta uses an
        # outer join from the fold, and Spark shuffles and sorts the target's rows.
        inserted=None if known else "s.action = 'upsert'",
        deleted="s.action = 'delete'",
        independent=not known and not leaves and not fold.kept_by_target,
    )


def in_ranges(table: SilverTable, ranges: Mapping[int, tuple[str, str]]) -> list[str]:
    """Return conditions on the target ``t`` alone: keys within literal ranges."""
    conditions = []
    for position, (low, high) in ranges.items():
        column = table.columns[position]
        bounds = f"{_typed(low, column.spark_type)} AND {_typed(high, column.spark_type)}"
        conditions.append(f"t.{quote(column.name)} BETWEEN {bounds}")
    return conditions


def _typed(value: str, spark_type: str) -> str:
    return literal(value) if spark_type == "STRING" else f"CAST({literal(value)} AS {spark_type})"


def _kept_texts(table: SilverTable, fold: Fold) -> str:
    """Return `_unrepresentable` of an updated row: a value that stays keeps its text."""
    losable = [
        f"name = {literal(table.columns[position].name)} AND s.{flag}"
        for position, flag in fold.kept_by_target.items()
        if not table.columns[position].reading.exact
    ]
    if not losable:
        return "s.lost"
    old = f"map_filter(t.{quote(UNREPRESENTABLE)}, (name, text) -> {' OR '.join(losable)})"
    empty = f"CAST(map() AS {OWN_COLUMNS[UNREPRESENTABLE]})"
    texts = f"map_concat(coalesce(s.lost, {empty}), {old})"
    return (
        f"CASE WHEN t.{quote(UNREPRESENTABLE)} IS NULL THEN s.lost "
        f"WHEN cardinality({texts}) > 0 THEN {texts} END"
    )
