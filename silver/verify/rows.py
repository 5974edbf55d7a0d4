"""Build queries that compare a silver table with the source's rows at an LSN. Pure text, no Spark.

Both sides are typed rows: the source's rows passed through the value path of a snapshot (`silver.fold.fold`).
So the queries compare a value, and its text in ``_unrepresentable``, in silver's own form.

**Digests first.** Each key falls into one of `RANGES` ranges by a hash. For each range both sides count their
rows and add up the hashes of their rows. No row leaves its task, and memory is the memory of `RANGES` sums.
Only ranges with different sums are compared row by row. Equal sums could hide a difference only if the 64-bit
hashes of different rows cancelled out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.silver.schema.catalog import COMMIT_LSN, UNREPRESENTABLE, VALID_FROM_LSN, VALID_TO_LSN
from deltasmelt.silver.schema.live_rows import is_live
from deltasmelt.silver.sql import as_json, comma, literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deltasmelt.silver.schema.catalog import SilverTable

RANGES: Final = 256
"""Number of parts of a table by the hash of its keys."""

MOST_TEXT: Final = 120
"""Number of characters of a value that messages show."""

KINDS: Final = {
    "twice": "exists more than once",
    "doubled": "exists more than once at the source: the key is not unique",
    "missing": "is missing",
    "surplus": "does not exist at the source",
    "differs": "differs",
    "lsn": "has a _commit_lsn that is missing or after the compared LSN",
    "versions": "has versions that overlap, or that end before they begin",
    "unexplained": "is among keys whose digests differ, although no row of these keys differs",
}
"""Possible faults of a row, or of a row's versions."""

_NESTED: Final = ("ARRAY", "STRUCT", "MAP", "VARIANT")
_FLOATING: Final = frozenset({"FLOAT", "DOUBLE"})


def digests_query(table: SilverTable, source: str, silver: str, lsn: int) -> str:
    """Return a query for each range (``part``): rows on both sides, and whether the sides differ.

    `source` and `silver` are the rows of both sides as Spark SQL, in the shape of `table`.
    """
    late = f"coalesce({COMMIT_LSN} > {int(lsn)}L, true)"
    # The digests compare live rows; `doubled_query` and `versions_query` check deleted rows and versions.
    sides = [_hashed(table, source, 1, "true", "false"), _hashed(table, silver, -1, is_live(table), late)]
    union = "\nUNION ALL\n".join(sides)
    return (
        "SELECT part, count_if(side = 1) AS source_rows, count_if(side = -1) AS silver_rows,\n"
        "  sum(side) <> 0 OR sum(side * (digest & 4294967295L)) <> 0\n"
        "    OR sum(side * shiftright(digest, 32)) <> 0 OR bool_or(late) AS differs\n"
        f"FROM (\n{union}\n)\nGROUP BY part"
    )


def wrong_query(table: SilverTable, source: str, silver: str, lsn: int, parts: Iterable[int]) -> str:
    """Return a query for wrong keys (``k0``, ``k1`` …) of some ranges (`parts`), each with its ``kind``."""
    keys = _numbered(table)
    in_parts = f"{_part(table)} IN ({', '.join(str(int(part)) for part in sorted(parts))})"
    listed, live = comma((f"{name} AS {alias}" for name, alias in keys), 2), is_live(table)
    grouped = ", ".join(quote(name) for name in table.key)
    late = f"coalesce({COMMIT_LSN} > {int(lsn)}L, true)"
    # In a history each key has one live version; in other tables each key has one row, live or not.
    counted = f"count_if({live})" if table.history else "count(*)"
    in_silver = (
        f"SELECT {listed},\n  {counted} AS times,\n"
        f"  max(CASE WHEN {live} THEN {_digest(table)} END) AS digest,\n"
        f"  bool_or({late}) AS late\nFROM {silver}\nWHERE {in_parts}\nGROUP BY {grouped}"
    )
    at_source = (
        f"SELECT {listed},\n  count(*) AS times, max({_digest(table)}) AS digest\n"
        f"FROM {source}\nWHERE {in_parts}\nGROUP BY {grouped}"
    )
    kind = (
        "CASE WHEN s.times > 1 THEN 'doubled'\n  WHEN t.times > 1 THEN 'twice'\n"
        "  WHEN s.digest IS NOT NULL AND t.digest IS NULL THEN 'missing'\n"
        "  WHEN s.digest IS NULL AND t.digest IS NOT NULL THEN 'surplus'\n"
        "  WHEN s.digest <> t.digest THEN 'differs'\n  WHEN t.late THEN 'lsn' END"
    )
    columns = ", ".join(f"coalesce(s.{alias}, t.{alias}) AS {alias}" for _, alias in keys)
    condition = " AND ".join(f"s.{alias} = t.{alias}" for _, alias in keys)
    joined = f"(\n{at_source}\n) AS s FULL JOIN (\n{in_silver}\n) AS t ON {condition}"
    return f"SELECT * FROM (\nSELECT {columns}, {kind} AS kind\nFROM {joined}\n)\nWHERE kind IS NOT NULL"


def doubled_query(table: SilverTable, silver: str) -> str:
    """Return a query for keys with several rows, live or deleted, which no digest of live rows shows."""
    keys = _numbered(table)
    listed, grouped = ", ".join(f"{name} AS {alias}" for name, alias in keys), ", ".join(n for n, _ in keys)
    # After a change of the key, rows deleted before may have no value in the new key.
    present = " AND ".join(f"{name} IS NOT NULL" for name, _ in keys)
    return (
        f"SELECT {listed}, 'twice' AS kind\nFROM {silver}\nWHERE {present}\nGROUP BY {grouped}\n"
        "HAVING count(*) > 1"
    )


def versions_query(table: SilverTable, silver: str) -> str:
    """Return a query for keys of a history whose versions overlap, or end before they begin."""
    keys = _numbered(table)
    listed, order = ", ".join(f"{name} AS {alias}" for name, alias in keys), ", ".join(n for n, _ in keys)
    following = (
        f"SELECT {listed}, {VALID_FROM_LSN} AS begins, {VALID_TO_LSN} AS ends,\n"
        f"  lead({VALID_FROM_LSN}) OVER (PARTITION BY {order} ORDER BY {VALID_FROM_LSN}) AS next\n"
        f"FROM {silver}"
    )
    aliases = ", ".join(alias for _, alias in keys)
    is_wrong = "begins IS NULL OR begins >= ends OR next IS NOT NULL AND coalesce(ends > next, true)"
    return f"SELECT DISTINCT {aliases}, 'versions' AS kind\nFROM (\n{following}\n)\nWHERE {is_wrong}"


def shown_query(table: SilverTable, first: str, source: str, silver: str) -> str:
    """Return a query for some wrong keys as JSON (``key``), with both sides' values as JSON.

    `first` is a view of keys and kinds.
    """
    keys = _numbered(table)
    key = as_json(f"f.{alias} AS {quote(name)}" for (_, alias), name in zip(keys, table.key, strict=True))
    aliases = [alias for _, alias in keys]
    listed = ", ".join(f"{name} AS {alias}" for name, alias in keys)

    def values(rows: str, condition: str) -> str:
        row = as_json([*(quote(column.name) for column in table.columns), UNREPRESENTABLE])
        semi = " AND ".join(f"r.{name} = f.{alias}" for name, alias in keys)
        return (
            f"SELECT {listed}, {row} AS row FROM {rows} AS r LEFT SEMI JOIN {first} AS f ON {semi}\n"
            f"WHERE {condition}"
        )

    def same_key(side: str) -> str:
        return " AND ".join(f"f.{alias} = {side}.{alias}" for alias in aliases)

    grouped = ", ".join(f"f.{alias}" for alias in aliases)
    return (
        f"SELECT {key} AS key, f.kind, any_value(s.row) AS source, any_value(t.row) AS silver\n"
        f"FROM {first} AS f\nLEFT JOIN (\n{values(source, 'true')}\n) AS s ON {same_key('s')}\n"
        f"LEFT JOIN (\n{values(silver, is_live(table))}\n) AS t ON {same_key('t')}\n"
        f"GROUP BY {grouped}, f.kind ORDER BY {grouped}"
    )


def _numbered(table: SilverTable) -> list[tuple[str, str]]:
    """Return each key column, quoted, with its name in queries."""
    return [(quote(name), f"k{position}") for position, name in enumerate(table.key)]


def _hashed(table: SilverTable, rows: str, side: int, condition: str, late: str) -> str:
    return (
        f"SELECT {side} AS side, {_part(table)} AS part, {_digest(table)} AS digest, {late} AS late\n"
        f"FROM {rows}\nWHERE {condition}"
    )


def _part(table: SilverTable) -> str:
    return f"pmod(xxhash64({', '.join(map(quote, table.key))}), {RANGES})"


def _digest(table: SilverTable) -> str:
    # Spark's hash ignores NULLs, also within arrays, and treats 0.0 and -0.0 as equal. So each value is
    # followed by a flag for NULL, floating-point numbers are hashed as text, and nested values as JSON.
    hashed = [part for column in table.columns for part in _hash_input(quote(column.name), column.spark_type)]
    # A column that the source has dropped may have left an entry in the map.
    names = ", ".join(literal(column.name) for column in table.columns)
    lost = f"map_filter({UNREPRESENTABLE}, (name, text) -> name IN ({names}))"
    entries = f"array_sort(map_entries({lost}))"
    hashed.append(f"CASE WHEN cardinality({lost}) > 0 THEN {as_json([f'{entries} AS lost'])} END")
    return f"xxhash64({', '.join(hashed)})"


def _hash_input(column: str, spark_type: str) -> Sequence[str]:
    if any(kind in spark_type for kind in _NESTED):
        return (f"CASE WHEN {column} IS NOT NULL THEN {as_json([column])} END", f"{column} IS NULL")
    text = f"CAST({column} AS STRING)" if spark_type in _FLOATING else column
    return (text, f"{column} IS NULL")
