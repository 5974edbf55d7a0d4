"""Describe the effect of a window's rows on a table, and two ways to apply the effect. Pure text, no Spark.

An `Upsert` matches each row of a source with a row of the table and then deletes, updates or inserts. A cycle
carries a table by `as_merge`, one Delta commit. Readers of the log's head (`silver.fresh`) use `rows_after`:
a query for the rows that the table would have, which writes nothing.

Both forms follow the SQL standard's MERGE as implemented by Delta. A row of the table matches at most one row
of the source. Of several clauses the first with a true condition counts. A column that an update does not
name keeps its value, and a column that an insert does not name is NULL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltasmelt.silver.sql import block, comma, quote

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Upsert:
    """The effect of the rows ``s`` of a source on the rows ``t`` of a table.

    Attributes:
        source: the query that gives the rows.
        on: conditions under which two rows match; all must hold.
        updates: new values of a matched row, by column, each with a condition on ``s``; the last has no
            condition. The first true condition counts.
        deleted: condition on ``s`` under which the upsert deletes the matched row instead.
        inserts: the row, by column, that an unmatched row of the source adds.
        inserted: condition on ``s`` under which an unmatched row is added; None: never.
        independent: whether each row of the source either deletes a row or leaves the values in `inserts`,
            matched or not. A column without a value in `inserts` keeps its value even so.
    """

    source: str
    on: tuple[str, ...]
    updates: tuple[tuple[str | None, Mapping[str, str]], ...]
    inserts: Mapping[str, str]
    inserted: str | None
    deleted: str | None = None
    independent: bool = False


@dataclass(frozen=True, slots=True)
class Insert:
    """Rows that a statement adds to a table, or puts in the place of all its rows.

    `values` are Spark SQL by column of the table, over the rows of `source`, a relation as FROM takes it.
    """

    values: Mapping[str, str]
    source: str

    def into(self, target: str, *, replaces: bool) -> str:
        """Return the INSERT into a table."""
        verb, columns = "INSERT OVERWRITE" if replaces else "INSERT INTO", ", ".join(map(quote, self.values))
        return f"{verb} {target} ({columns})\nSELECT {', '.join(self.values.values())}\nFROM {self.source}"

    def query(self) -> str:
        """Return the rows alone, under the table's names."""
        named = ", ".join(f"{value} AS {quote(name)}" for name, value in self.values.items())
        return f"SELECT {named}\nFROM {self.source}"


def as_merge(target: str, upsert: Upsert) -> str:
    """Return the MERGE into the table `target`, as Spark SQL."""
    lines = [
        f"MERGE INTO {target} AS t",
        f"USING (\n  {block(upsert.source, 2)}\n) AS s",
        f"ON {(chr(10) + '  AND ').join(upsert.on)}",
    ]
    if upsert.deleted is not None:
        lines.append(f"WHEN MATCHED AND {upsert.deleted} THEN DELETE")
    for condition, values in upsert.updates:
        match = "MATCHED" if condition is None else f"MATCHED AND {condition}"
        sets = comma((f"t.{quote(name)} = {value}" for name, value in values.items()), 2)
        lines.append(f"WHEN {match} THEN UPDATE SET\n  {sets}")
    if upsert.inserted is not None:
        names, values_ = ", ".join(map(quote, upsert.inserts)), ", ".join(upsert.inserts.values())
        lines.append(f"WHEN NOT MATCHED AND {upsert.inserted} THEN INSERT\n  ({names})\n  VALUES ({values_})")
    return "\n".join(lines)


def changed_rows(before: str, columns: Mapping[str, str], upsert: Upsert, *, source: str) -> str:
    """Return the rows that the source updates and adds, as they are in the table afterwards.

    `before` are the table's rows as Spark SQL, `columns` the table's types by name, and `source` is a view of
    the rows of ``upsert.source``.
    """
    added = f"SELECT {cells(columns, upsert.inserts)}\nFROM {source} AS s"
    # Each row of the source states all values, so the result needs no join with the table.
    if upsert.independent and columns.keys() <= upsert.inserts.keys():
        return f"{added}\nWHERE {upsert.inserted}"
    condition = " AND ".join(upsert.on)
    undeleted = "" if upsert.deleted is None else f"\nWHERE NOT ({upsert.deleted})"
    updated = cells(columns, _updated(columns, upsert))
    matched = f"SELECT {updated}\nFROM {before} AS t JOIN {source} AS s ON {condition}{undeleted}"
    if upsert.inserted is None:
        return matched
    return (
        f"{matched}\nUNION ALL\n{added} LEFT ANTI JOIN {before} AS t ON {condition}\nWHERE {upsert.inserted}"
    )


def rows_after(before: str, columns: Mapping[str, str], upsert: Upsert, *, source: str, changed: str) -> str:
    """Return the rows that the table would have; `changed` is the query of `changed_rows`, or a view."""
    names = ", ".join(f"t.{quote(name)}" for name in columns)
    condition = " AND ".join(upsert.on)
    return f"""\
SELECT {names}
FROM {before} AS t LEFT ANTI JOIN {source} AS s ON {condition}
UNION ALL
SELECT {", ".join(map(quote, columns))}
FROM {changed}"""


def _updated(columns: Mapping[str, str], upsert: Upsert) -> dict[str, str]:
    """Return the values of a table's row that matches a row of the source."""
    expressions = {}
    for name in columns:
        present = f"t.{quote(name)}"
        *first, (_, last) = [(condition, values.get(name, present)) for condition, values in upsert.updates]
        whens = " ".join(f"WHEN {condition} THEN {value}" for condition, value in first)
        expressions[name] = f"CASE {whens} ELSE {last} END" if whens else last
    return expressions


def cells(columns: Mapping[str, str], values: Mapping[str, str]) -> str:
    """Return a row's values in the order and with the types of a table's columns; missing values are NULL."""
    return ", ".join(
        f"CAST({values.get(name, 'NULL')} AS {type_}) AS {quote(name)}" for name, type_ in columns.items()
    )
