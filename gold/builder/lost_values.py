"""Count the values of a document's columns that silver's types cannot hold. Pure.

For a lost value (infinity, NaN, a date before our era) silver holds NULL, and the text in
``_unrepresentable``. `is null` and counts also read this text (`gold.tree.derived`). All further uses of the
column read NULL: a greatest value, a sum, an order, a join. So each build records how many lost values of
each column the build read: a full build counts all rows, an incremental build the changed rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from deltasmelt.gold.tree.derived import may_be_lost
from deltasmelt.silver.schema.catalog import UNREPRESENTABLE
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.control import Run
    from deltasmelt.gold.compile.query import TableSql
    from deltasmelt.gold.tree.nodes import Tree

LOST: Final = "values_silver_cannot_hold"
"""Key in a run's details: the count per column; absent without lost values."""


def counted(columns: Sequence[str], when: str = "true") -> list[str]:
    """Return aggregates ``lost0, lost1 …`` that count a table's lost values, column by column."""
    return [
        f"count_if({when} AND map_contains_key({UNREPRESENTABLE}, {literal(name)})) AS lost{place}"
        for place, name in enumerate(columns)
    ]


def lost_query(tree: Tree, relation: TableSql) -> str | None:
    """Return a query for ``name`` and ``lost`` (counts by column) of tables; None if no type loses values."""
    parts = []
    for name, columns in may_be_lost(tree).items():
        listed = ", ".join(f"lost{place}" for place in range(len(columns)))
        rows = f"SELECT {', '.join(counted(columns))} FROM {relation(name)}"
        parts.append(
            f"SELECT {literal(str(name))} AS name, array({listed}) AS lost\n"
            f"FROM ({rows} WHERE {quote(UNREPRESENTABLE)} IS NOT NULL)"
        )
    return "\nUNION ALL\n".join(parts) or None


def note(run: Run, table: TableName, columns: Sequence[str], counts: Iterable[Any]) -> None:
    """Record in a run's details how many values of a table were lost."""
    found: dict[str, int] = dict(run.details.get(LOST, {}))  # type: ignore[call-overload]
    found |= {f"{table}.{name}": int(times) for name, times in zip(columns, counts, strict=True) if times}
    if found:
        run.details[LOST] = found
