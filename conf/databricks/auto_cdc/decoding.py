"""Decode changes of one table in `bronze.changes` as events for AUTO CDC: typed columns, sequence, deletes.

The module only needs DataFrames, batch or stream, and no Lakeflow. `tables.py` declares the tables.

A row of bronze holds its values as PostgreSQL's text, in the column order of the row's shape. Columns are
found by their `attnum`, so a renamed column stays one column. A column that the row's shape lacks gets the
default of `ALTER TABLE … ADD COLUMN … DEFAULT` (`missing`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

META = ("_op", "_commit_lsn", "_seq", "_part", "_commit_ts", "_unchanged", "_shape_known")
"""Columns that AUTO CDC needs, but the target does not."""

SEQUENCE = "struct(_commit_lsn, _seq, _part)"
"""Order of a key's events: by commit, by number in the commit, and a delete before its following row."""


@dataclass(frozen=True)
class SourceTable:
    """A table of the source.

    Attributes:
        schema, name: the present name of the table.
        keys: names of the key columns.
        columns: column to a type of Spark, as `docs/silver.md` gives it. A value that the type cannot hold
            becomes NULL.
    """

    schema: str
    name: str
    keys: tuple[str, ...]
    columns: Mapping[str, str]


def decoded(changes: DataFrame, relations: DataFrame, table: SourceTable) -> DataFrame:
    """Return the events of a table.

    Args:
        changes: `bronze.changes`, from a read or a stream.
        relations: `bronze.relations`, from a plain read.
        table: the table whose events are decoded.
    """
    newest = (
        relations.where(f"table_schema = {_text(table.schema)} AND table_name = {_text(table.name)}")
        .orderBy("from_lsn", "after_lsn", ascending=False)
        .limit(1)
        .selectExpr("relation_id", "columns AS now")
    )
    following = "OVER (PARTITION BY relation_id ORDER BY from_lsn, after_lsn)"
    shapes = relations.join(newest.select("relation_id"), "relation_id", "left_semi").selectExpr(
        "relation_id AS shape_of",
        "key",
        "columns AS shape",
        "from_lsn",
        "after_lsn",
        f"lead(from_lsn) {following} AS next_from",
        f"lead(after_lsn) {following} AS next_after",
    )
    holds = """
        relation_id = shape_of
        AND (from_lsn < commit_lsn OR (from_lsn = commit_lsn AND after_lsn < lsn))
        AND (next_from IS NULL OR next_from > commit_lsn OR (next_from = commit_lsn AND next_after >= lsn))"""
    rows = changes.where("op IN ('insert', 'update', 'delete', 'snapshot')").join(newest, "relation_id")
    return (
        rows.join(shapes, _expression(holds), "left")
        .selectExpr("*", f"{_FILLED} AS filled", f"{_KEY_CHANGED} AS key_changed")
        .selectExpr("*", f"explode({_EVENTS}) AS event")
        .selectExpr(
            *(f"{_value(name, kind)} AS {_name(name)}" for name, kind in table.columns.items()),
            "event.op AS _op",
            "commit_lsn AS _commit_lsn",
            "seq AS _seq",
            "event.part AS _part",
            "commit_ts AS _commit_ts",
            f"{_UNKNOWN} AS _unchanged",
            "shape IS NOT NULL AS _shape_known",
        )
    )


_NAMES = "transform(shape, column -> column.name)"
_FILLED = f"""
    CASE WHEN unchanged IS NULL OR old IS NULL OR old_is_key THEN new
    ELSE transform({_NAMES}, (name, at) ->
      if(array_contains(unchanged, name), get(old, at), get(new, at))) END"""
"""The row after the change; unsent values come from a whole old row (REPLICA IDENTITY FULL)."""
_UNKNOWN = "CASE WHEN old IS NULL OR old_is_key THEN unchanged END"
"""Columns without a value in bronze's row: NULL in the event."""
_AT = f"CAST(array_position({_NAMES}, k) - 1 AS INT)"
_KEY_CHANGED = f"""
    op = 'update' AND old IS NOT NULL
    AND exists(key, k -> NOT coalesce(get(new, {_AT}), get(old, {_AT})) <=> get(old, {_AT}))"""
_EVENTS = """
    CASE WHEN op = 'delete' THEN array(named_struct('part', 0, 'op', 'delete', 'image', old))
    WHEN key_changed THEN array(
      named_struct('part', 0, 'op', 'delete', 'image', old),
      named_struct('part', 1, 'op', 'upsert', 'image', filled))
    ELSE array(named_struct('part', 1, 'op', 'upsert', 'image', filled)) END"""
_IDENTITY = "column -> coalesce(CAST(column.attnum AS STRING), column.name)"


def _value(name: str, kind: str) -> str:
    column = f"get(filter(now, column -> column.name = {_text(name)}), 0)"
    at = f"""array_position(
      transform(shape, {_IDENTITY}), coalesce(CAST({column}.attnum AS STRING), {column}.name))"""
    text = f"CASE WHEN {at} > 0 THEN get(event.image, CAST({at} - 1 AS INT)) ELSE {column}.missing END"
    if kind.upper() == "STRING":
        return text
    if kind.upper() == "BINARY":
        return f"unhex(substring({text}, 3))"
    return f"try_cast({text} AS {kind})"


def _expression(text: str) -> object:
    from pyspark.sql.functions import expr

    return expr(text)


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _name(value: str) -> str:
    return "`" + value.replace("`", "``") + "`"
