"""Keep one row of each key if a table with soft deletes gets another key. Pure text.

Rows that silver keeps as deleted are unique by their former key. By the new key several of these rows, or a
deleted row and a live row, may be equal. A MERGE by the new key would match both, and give both the values of
the live row.

A table with soft deletes therefore records in a property by which columns its rows are unique. If the
property names other columns, a statement removes deleted rows whose new key another row has. Silver then sets
the property, before the next MERGE. If the process dies in between, the next cycle repeats the statement,
which then finds no row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.silver.schema.catalog import COMMIT_LSN, DELETED
from deltasmelt.silver.schema.live_rows import IS_LIVE
from deltasmelt.silver.sql import as_json, block, literal, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deltasmelt.silver.schema.catalog import SilverTable
    from deltasmelt.silver.schema.fields import DeltaColumn

KEY_PROPERTY: Final = "deltasmelt.key"
"""Table property: attnums of the columns by which rows, including deleted rows, are unique."""


def properties(table: SilverTable) -> dict[str, str]:
    """Return the property of a table whose rows are unique by the key; none without soft deletes."""
    return {KEY_PROPERTY: ",".join(map(str, _attnums(table)))} if table.soft else {}


def is_rekeyed(table: SilverTable, known: Mapping[str, str]) -> bool:
    """Check whether a table's property names columns other than the key."""
    return any(known.get(name, value) != value for name, value in properties(table).items())


def merged(
    target: str,
    table: SilverTable,
    actual: Sequence[DeltaColumn],
    known: Mapping[str, str],
    *,
    finds: Callable[[str], bool] | None = None,
) -> list[str]:
    """Return the statements after which rows are unique by the table's key.

    `known` are the properties that the table has. `finds` checks whether a query finds a row in the table at
    present; None: rows may change before the statements run.
    """
    target_properties = properties(table)
    if not target_properties.items() - known.items():
        return []
    names = {field.attnum: field.name for field in actual if field.attnum is not None}
    key = [quote(names[attnum]) for attnum in _attnums(table) if attnum in names]
    soft = any(field.attnum is None and field.name == DELETED for field in actual)
    statements = []
    # A table made by an earlier version of deltasmelt has no property, and mostly no rows with equal new
    # keys. The keys alone show whether some key has several rows; only the rows of such keys are ranked.
    # Without such keys the statement is omitted.
    may_repeat = soft and len(key) == len(table.key)
    if may_repeat and (finds is None or finds(_doubled(target, key))):
        statements.append(_removed(target, key, [quote(field.name) for field in actual]))
    key_property = f"{literal(KEY_PROPERTY)} = {literal(target_properties[KEY_PROPERTY])}"
    return [*statements, f"ALTER TABLE {target} SET TBLPROPERTIES ({key_property})"]


def _attnums(table: SilverTable) -> list[int | None]:
    return [table.column(name).attnum for name in table.key]


def _doubled(target: str, key: Sequence[str]) -> str:
    """Return a query for keys with several rows."""
    # Deleted rows with NULL in the new key match no row of the source and stay.
    listed, present = ", ".join(key), " AND ".join(f"{name} IS NOT NULL" for name in key)
    return f"SELECT {listed} FROM {target} WHERE {present} GROUP BY {listed} HAVING count(*) > 1"


def _removed(target: str, key: Sequence[str], columns: Sequence[str]) -> str:
    """Return a MERGE that deletes deleted rows whose key a live row has, or a row deleted later."""
    # The MERGE finds a row by all values: the former key is among the values, so no two rows are equal.
    listed, row = ", ".join(key), as_json(columns)
    order = f"{IS_LIVE} DESC, {COMMIT_LSN} DESC, {row}"
    ranked = f"""\
SELECT {listed}, {row} AS row, row_number() OVER (PARTITION BY {listed} ORDER BY {order}) AS place
FROM {target}
WHERE ({listed}) IN ({_doubled(target, key)})"""
    condition = " AND ".join(f"t.{name} = s.{name}" for name in key)
    return f"""\
MERGE INTO {target} AS t
USING (
  SELECT * FROM (
    {block(ranked, 4)}
  )
  WHERE place > 1
) AS s
ON {condition} AND t.{DELETED} AND {as_json(f"t.{name}" for name in columns)} = s.row
WHEN MATCHED THEN DELETE"""
