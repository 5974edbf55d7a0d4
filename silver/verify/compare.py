"""Compare a silver table with the source's rows: digests first, then the rows of ranges that differ."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from deltasmelt.silver.schema.live_rows import is_live
from deltasmelt.silver.spark.access import child_session, computed
from deltasmelt.silver.spark.tuning import settings
from deltasmelt.silver.verify.rows import (
    KINDS,
    MOST_TEXT,
    digests_query,
    doubled_query,
    shown_query,
    versions_query,
    wrong_query,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Row, SparkSession

    from deltasmelt.silver.schema.catalog import SilverTable

_DIFFERENCES: Final = "smelt_wrong"
_FIRST: Final = "smelt_first_wrong"
"""Temporary views of the session that compares."""

_ADAPTIVE: Final = {"spark.sql.adaptive.enabled": "true"}
"""A table may have few or many rows, so Spark plans each stage by the rows that the stage really gets."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A column in which a row differs; values as JSON, shortened if long."""

    column: str
    source: str | None
    silver: str | None


@dataclass(frozen=True, slots=True)
class WrongRow:
    """A key with a wrong row.

    `key` has the key's values as JSON, `kind` is a key of `silver.verify.rows.KINDS`, and `cells` are the
    columns in which a row differs.
    """

    key: str
    kind: str
    cells: tuple[Cell, ...] = ()


@dataclass(frozen=True, slots=True)
class TableComparison:
    """The result of comparing one table.

    Attributes:
        name: name of the table within silver.
        table: the table at the source.
        silver_rows: number of live rows of the table.
        counts: number of wrong keys, by kind.
        first: the first wrong keys, in order of the key.
        columns_not_compared: columns of silver that the source does not have.
        rows_not_compared: deleted rows and ended versions that silver keeps; the source has no such rows.
        rows_elsewhere: why a query at the source shows rows that were not compared; empty if the source shows
            no such rows.
        sampled: whether only the rows of some keys were compared.
    """

    name: str
    table: str
    lsn: int
    source_rows: int
    silver_rows: int
    counts: dict[str, int]
    first: tuple[WrongRow, ...]
    columns_not_compared: tuple[str, ...] = ()
    rows_not_compared: int = 0
    rows_elsewhere: str = ""
    sampled: bool = False

    @property
    def equal(self) -> bool:
        """Check whether the comparison found nothing wrong."""
        return not self.counts


def compare(
    spark: SparkSession, table: SilverTable, source: str, silver: str, lsn: int, *, most: int = 5
) -> TableComparison:
    """Compare the rows of both sides, in a new session of the same application.

    Args:
        table: the table in the shape that both sides have.
        source: a view of the source's rows, as Spark SQL.
        silver: a view of the table's rows at `lsn`; for a table that keeps deleted rows, of all its rows.
        most: the largest number of wrong keys to report one by one.

    Raises:
        PySparkException: Spark cannot read one of the sides.
    """
    with child_session(spark) as session, settings(session, _ADAPTIVE):
        parts = session.sql(digests_query(table, source, silver, lsn)).collect()
        differing = [row["part"] for row in parts if row["differs"]]
        queries = [wrong_query(table, source, silver, lsn, differing)] if differing else []
        if table.history:
            queries.append(versions_query(table, silver))
        elif table.soft:
            queries.append(f"SELECT * FROM (\n{doubled_query(table, silver)}\n)")
        counts = _counts(session, queries) if queries else {}
        ended = 0
        if table.versioned:
            ended = session.sql(f"SELECT 1 FROM {silver} WHERE NOT ({is_live(table)})").count()
        result = TableComparison(
            table.name, str(table.table), lsn, *_rows(parts), counts, (), rows_not_compared=ended
        )
        if differing and not counts:
            # The digests differ, but no row does: the table is not equal even so.
            counts = {
                "unexplained": sum(
                    max(row["source_rows"], row["silver_rows"]) for row in parts if row["differs"]
                )
            }
            return replace(result, counts=counts)
        return replace(result, first=_first(session, table, (source, silver), most) if counts else ())


def _rows(parts: Sequence[Row]) -> tuple[int, int]:
    """Return the number of rows on each side."""
    return sum(int(part["source_rows"]) for part in parts), sum(int(part["silver_rows"]) for part in parts)


def _counts(session: SparkSession, queries: list[str]) -> dict[str, int]:
    """Keep the wrong keys of the queries as a view, and return the number of keys of each kind."""
    # UNION, not UNION ALL: two of the queries find a live row that exists twice.
    computed(session.sql("\nUNION\n".join(queries))).createOrReplaceTempView(_DIFFERENCES)
    rows = session.sql(f"SELECT kind, count(*) AS times FROM {_DIFFERENCES} GROUP BY kind").collect()
    times = {row["kind"]: int(row["times"]) for row in rows}
    return {kind: times[kind] for kind in KINDS if kind in times}


def _first(
    session: SparkSession, table: SilverTable, sides: tuple[str, str], most: int
) -> tuple[WrongRow, ...]:
    """Return the first wrong keys; keys that differ come with the different columns."""
    keys = ", ".join(f"k{position}" for position in range(len(table.key)))
    wrong_rows = session.sql(f"SELECT {keys}, kind FROM {_DIFFERENCES} ORDER BY {keys} LIMIT {int(most)}")
    computed(wrong_rows).createOrReplaceTempView(_FIRST)
    rows = session.sql(shown_query(table, _FIRST, *sides)).collect()
    return tuple(
        WrongRow(
            row["key"],
            row["kind"],
            different_cells(row["source"], row["silver"]) if row["kind"] == "differs" else (),
        )
        for row in rows
    )


def different_cells(source: str, silver: str) -> tuple[Cell, ...]:
    """Return the columns in which two rows differ, both rows as JSON objects. Pure."""
    left, right = _read(source), _read(silver)
    return tuple(
        Cell(name, _text(left.get(name)), _text(right.get(name)))
        for name in dict.fromkeys([*left, *right])
        if left.get(name) != right.get(name)
    )


def _read(row: str) -> dict[str, object]:
    # Numbers stay text: 0.0 and -0.0 are different values, and so are 1.0 and 1.00.
    values: dict[str, object] = json.loads(row, parse_float=_Number)
    return values


class _Number(str):
    """A number in its written form."""

    __slots__ = ()


def _text(value: object) -> str | None:
    if value is None:
        return None
    text = str(value) if isinstance(value, _Number) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + "…"
