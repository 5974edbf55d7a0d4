"""What the rows of a window do to a table, and the two ways to have it done. Pure text, no Spark.

An `Upsert` says which row of the table each row of a source meets, and what it then does: delete, update or
insert. It has two targets:

* `as_merge`: MERGE, one Delta commit. That is how a cycle carries a table.
* `rows_after`: a query that gives the rows which the table would have. It writes nothing. That is how a table
  is read at the log's head, before the next cycle (`silver.fresh`).

Both follow the SQL standard's MERGE as Delta has it: a row of the table meets at most one of the source; of
several clauses the first whose condition holds counts. A column that an update does not name stays, and one
that an insert does not name is NULL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltasmelt.silver.sql import block, comma, quote

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Upsert:
    """What the rows ``s`` of a source do to the rows ``t`` of a table.

    Attributes:
        source: the query that gives the rows.
        on: conditions under which two rows meet; all must hold.
        updates: what becomes of a row that is met, by column, with the condition on ``s`` under which; the
            last one has none. The first that holds counts.
        deleted: condition on ``s`` under which the row that is met goes instead.
        inserts: the row, by column, that a row of the source adds if it meets none.
        inserted: condition on ``s`` under which it does; None: never.
        independent: whether each row of the source either deletes or leaves the values that `inserts` says,
            whatever it meets. A column of which nothing is said there keeps its value even so.
    """

    source: str
    on: tuple[str, ...]
    updates: tuple[tuple[str | None, Mapping[str, str]], ...]
    inserts: Mapping[str, str]
    inserted: str | None
    deleted: str | None = None
    independent: bool = False


def as_merge(target: str, upsert: Upsert) -> str:
    """The MERGE into a table.

    Args:
        target: the table as Spark SQL.
        upsert: what is done to it.
    """
    lines = [
        f"MERGE INTO {target} AS t",
        f"USING (\n  {block(upsert.source, 2)}\n) AS s",
        f"ON {(chr(10) + '  AND ').join(upsert.on)}",
    ]
    if upsert.deleted is not None:
        lines.append(f"WHEN MATCHED AND {upsert.deleted} THEN DELETE")
    for condition, values in upsert.updates:
        when = "MATCHED" if condition is None else f"MATCHED AND {condition}"
        sets = comma((f"t.{quote(name)} = {value}" for name, value in values.items()), 2)
        lines.append(f"WHEN {when} THEN UPDATE SET\n  {sets}")
    if upsert.inserted is not None:
        names, values_ = ", ".join(map(quote, upsert.inserts)), ", ".join(upsert.inserts.values())
        lines.append(f"WHEN NOT MATCHED AND {upsert.inserted} THEN INSERT\n  ({names})\n  VALUES ({values_})")
    return "\n".join(lines)


def changed_rows(before: str, columns: Mapping[str, str], upsert: Upsert, *, source: str) -> str:
    """The rows that the source leaves in a table: those that it updates, and those that it adds.

    Args:
        before: the table's rows as Spark SQL.
        columns: type of each of its columns, by name.
        upsert: what is done to it.
        source: a view of the rows of ``upsert.source``.
    """
    added = f"SELECT {cells(columns, upsert.inserts)}\nFROM {source} AS s"
    if upsert.independent and columns.keys() <= upsert.inserts.keys():
        return f"{added}\nWHERE {upsert.inserted}"
    on = " AND ".join(upsert.on)
    goes = "" if upsert.deleted is None else f"\nWHERE NOT ({upsert.deleted})"
    updated = cells(columns, _updated(columns, upsert))
    met = f"SELECT {updated}\nFROM {before} AS t JOIN {source} AS s ON {on}{goes}"
    if upsert.inserted is None:
        return met
    return f"{met}\nUNION ALL\n{added} LEFT ANTI JOIN {before} AS t ON {on}\nWHERE {upsert.inserted}"


def rows_after(before: str, columns: Mapping[str, str], upsert: Upsert, *, source: str, changed: str) -> str:
    """The rows that a table would have.

    Args:
        before: the table's rows as Spark SQL.
        columns: type of each of its columns, by name.
        upsert: what is done to it.
        source: a view of the rows of ``upsert.source``.
        changed: `changed_rows`, or a view of them.
    """
    names = ", ".join(f"t.{quote(name)}" for name in columns)
    on = " AND ".join(upsert.on)
    return f"""\
SELECT {names}
FROM {before} AS t LEFT ANTI JOIN {source} AS s ON {on}
UNION ALL
SELECT {", ".join(map(quote, columns))}
FROM {changed}"""


def _updated(columns: Mapping[str, str], upsert: Upsert) -> dict[str, str]:
    """The values of a row of the table that one of the source meets."""
    found = {}
    for name in columns:
        own = f"t.{quote(name)}"
        *first, (_, last) = [(condition, values.get(name, own)) for condition, values in upsert.updates]
        whens = " ".join(f"WHEN {condition} THEN {value}" for condition, value in first)
        found[name] = f"CASE {whens} ELSE {last} END" if whens else last
    return found


def cells(columns: Mapping[str, str], values: Mapping[str, str]) -> str:
    """A row's values in the order and with the types of a table's columns; those that lack are NULL."""
    return ", ".join(
        f"CAST({values.get(name, 'NULL')} AS {type_}) AS {quote(name)}" for name, type_ in columns.items()
    )
