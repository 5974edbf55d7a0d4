"""Unchanged TOAST values: what a column holds after an update that did not send it. Pure text, no Spark.

PostgreSQL keeps large values out of line, by TOAST. An update that leaves such a value alone does not write
it to the log. So pgoutput sends the column without its value, as "unchanged TOASTed value": kind ``u`` of
TupleData among the protocol's `message formats`_; see also `TOAST`_. Bronze names these columns in
``unchanged`` and has NULL in their place; a NULL that was sent is not named.

For each such column (`unchanged_toast`) of a row, the value is the first of these:

1. **The newest value sent since the row arrived**, by an insert, a snapshot or an update of this window
   (`newest_sent`). Under REPLICA IDENTITY FULL the old tuple is the whole row and counts as sent
   (`sent_tuple`). Under any other, NULL in it means "not part of the identity", and it gives no value.
2. **The value where the row moved from**, if an update changed its key: sent at an earlier key in this
   window, or held by the target at the first of them (`silver.fold.moved_rows`, `resolved_text`).
3. **The target's own value**, where the row has been at its key since before the window (`kept_by_target`).
   MERGE keeps it (`updated`); a table of versions takes the version before (`silver.fold.row_versions`).
4. **Else the error** ``value-missing`` (`missing`): the table keeps its last version, and nothing is guessed.

.. _message formats: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
.. _TOAST: https://www.postgresql.org/docs/current/storage-toast.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.silver.errors import marker
from deltasmelt.silver.schema.catalog import UNREPRESENTABLE
from deltasmelt.silver.sql import key_text, literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deltasmelt.silver.fold.column_mapping import ColumnMapping
    from deltasmelt.silver.schema.catalog import SilverTable

NOT_IN_OLD_TUPLE: Final = "CASE WHEN old_is_key = false THEN NULL ELSE unchanged END"
"""Names of columns with unchanged TOAST that `sent_tuple` does not fill either."""


def unchanged_toast(shapes: Iterable[ColumnMapping], names: frozenset[str], keys: Iterable[int]) -> list[int]:
    """Positions of columns that some update left as unchanged TOAST, ascending.

    Args:
        shapes: of the window's rows.
        names: of such columns, as the rows that were written with these shapes call them.
        keys: positions of key columns; their value is in the old tuple, so they are never among them.
    """
    found = {
        position
        for shape in shapes
        for position, at in enumerate(shape.positions)
        if at is not None and shape.names[at] in names
    }
    return sorted(found - set(keys))


def is_unchanged_toast(table: SilverTable, position: int, alias: str = "") -> str:
    """Whether an event left the column as unchanged TOAST."""
    return f"coalesce(array_contains({alias}unchanged, {literal(table.columns[position].name)}), false)"


def sent_tuple(table: SilverTable) -> str:
    """The new tuple; its unchanged TOAST from an old tuple that is the full row (REPLICA IDENTITY FULL)."""
    names = ", ".join(literal(column.name) for column in table.columns)
    cell = "CASE WHEN array_contains(unchanged, c) THEN old[i] ELSE new[i] END"
    filled = f"transform(array({names}), (c, i) -> {cell})"
    return f"CASE WHEN old_is_key = false AND unchanged IS NOT NULL THEN {filled} ELSE new END"


def newest_sent(table: SilverTable, positions: Sequence[int], place: str) -> list[str]:
    """Rule 1, over events grouped by key: when the row arrived, and the newest text sent of each column.

    Args:
        table: the table.
        positions: `unchanged_toast`.
        place: an event's place in the log.

    Returns:
        ``arrived``, NULL for a row that was there before; ``toast_<position>``, a struct of ``place`` and
        ``text``.
    """
    if not positions:
        return []
    return [
        f"max({place}) FILTER (WHERE kind = 'arrive') AS arrived",
        *(
            f"max_by(struct({place} AS place, image[{position}] AS text), {place})"
            f" FILTER (WHERE kind <> 'leave' AND NOT {is_unchanged_toast(table, position)})"
            f" AS toast_{position}"
            for position in positions
        ),
    ]


def resolved_text(
    table: SilverTable, position: int, keys: dict[int, str], *, moved: bool, home: bool, from_empty: bool
) -> list[str]:
    """Rules 1, 2 and 4, over ``folded AS f``: the text of a column that some update left unchanged.

    Args:
        table: the table.
        position: the column.
        keys: name of each key column in the query, by its position.
        moved: ``origins AS o`` is joined: what was found where rows moved from.
        home: ``home`` is joined, too: the target's row at the first key of a row that moved.
        from_empty: the target has no rows that count, so nothing is kept by it (rule 3).

    Returns:
        ``text_<position>``, NULL where `kept_by_target`, of a row that leaves, and of a NULL. Before it, with
        `home`, the flag ``at_home_<position>`` and the target's value there, ``home_<position>``; unless
        `from_empty`, the flag `kept_by_target`.
    """
    name, sent, columns = table.columns[position].name, f"f.toast_{position}", []
    since_arrival = f"{sent} IS NOT NULL AND (f.arrived IS NULL OR {sent}.place >= f.arrived)"
    stays = f"NOT ({'gained < 1' if from_empty else 'gained = -1'})"
    cases = [f"WHEN {since_arrival} THEN {sent}.text"]
    if moved:
        cases.append(f"WHEN o.toast_{position} IS NOT NULL THEN o.toast_{position}.text")
    if moved and home:
        there = f"home.{quote(table.columns[next(iter(keys))].name)} IS NOT NULL"
        cases.append(f"WHEN {there} THEN home.{quote(UNREPRESENTABLE)}[{literal(name)}]")
        at_home = f"NOT ({since_arrival}) AND o.toast_{position} IS NULL AND {there}"
        columns += [f"{at_home} AS at_home_{position}", f"home.{quote(name)} AS home_{position}"]
    if not from_empty:
        columns.append(f"f.arrived IS NULL AND {sent} IS NULL AND {stays} AS {kept_by_target(position)}")
        stays += " AND f.arrived IS NOT NULL"
    cases.append(f"WHEN {stays} THEN {missing(table, position, (f'f.{key}' for key in keys.values()))}")
    return [*columns, f"CASE {' '.join(cases)} END AS text_{position}"]


def kept_by_target(position: int) -> str:
    """Name of the flag of rule 3: the row has not moved, nothing was sent, so the target's value stays."""
    return f"kept_by_target_{position}"


def updated(table: SilverTable, position: int, kept: str, value: str) -> str:
    """Rule 3 in MERGE: the value of a column of a row ``t`` that the target has.

    Args:
        table: the table.
        position: the column.
        kept: `kept_by_target` of the fold's row.
        value: of the fold's row.
    """
    return f"CASE WHEN {kept} THEN t.{quote(table.columns[position].name)} ELSE {value} END"


def inserted(table: SilverTable, position: int, kept: str, value: str, key: Iterable[str]) -> str:
    """Rule 4 in MERGE: the target should have kept a value, but does not have the row; see `updated`."""
    return f"CASE WHEN {kept} THEN {missing(table, position, key)} ELSE {value} END"


def missing(table: SilverTable, position: int, key: Iterable[str]) -> str:
    """Rule 4: stops the statement, and the table, with the error ``value-missing``.

    Args:
        table: the table.
        position: the column.
        key: the row's key, as SQL.
    """
    return marker("value-missing", literal(f"column {table.columns[position].name}, row "), key_text(key))
