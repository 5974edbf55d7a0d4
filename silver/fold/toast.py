"""Resolve unchanged TOAST: a column's value after an update that did not send the value. Pure text.

PostgreSQL stores large values out of line, by TOAST. An update that leaves such a value alone does not write
the value to the log. So pgoutput sends the column without a value, as "unchanged TOASTed value": kind ``u``
of TupleData among the protocol's `message formats`_; see also `TOAST`_. Bronze names these columns in
``unchanged`` and writes NULL in their place; ``unchanged`` never names a column whose NULL was sent.

For each such column (`unchanged_toast`) of a row, the value is the first of:

1. **The newest value sent since the row arrived**, by an insert, a snapshot or an update of this window
   (`newest_sent`). A full old tuple also counts as sent (`sent_tuple`).
2. **The value at the key from which the row moved**, if an update changed the key (`silver.fold.moved_rows`,
   `resolved_text`).
3. **The target's own value**, if the row has been at its key since before the window (`kept_by_target`).
   MERGE keeps the value (`updated`); a table of versions uses the version before
   (`silver.fold.row_versions`).
4. **Else the error** ``value-missing`` (`missing`): the table keeps its last version, and silver guesses
   nothing.

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
"""Names of columns with unchanged TOAST that `sent_tuple` cannot fill."""


def unchanged_toast(shapes: Iterable[ColumnMapping], names: frozenset[str], keys: Iterable[int]) -> list[int]:
    """Return positions of columns that some update left as unchanged TOAST, ascending.

    `names` are the columns' names in the shapes of their rows. Key columns (`keys`) never count: the old
    tuple has their value.
    """
    positions = {
        position
        for shape in shapes
        for position, at in enumerate(shape.positions)
        if at is not None and shape.names[at] in names
    }
    return sorted(positions - set(keys))


def is_unchanged_toast(table: SilverTable, position: int, alias: str = "") -> str:
    """Return the condition that an event left the column as unchanged TOAST."""
    return f"coalesce(array_contains({alias}unchanged, {literal(table.columns[position].name)}), false)"


def sent_tuple(table: SilverTable) -> str:
    """Return the new tuple, with unchanged TOAST filled from a full old tuple (REPLICA IDENTITY FULL)."""
    names = ", ".join(literal(column.name) for column in table.columns)
    cell = "CASE WHEN array_contains(unchanged, c) THEN old[i] ELSE new[i] END"
    filled = f"transform(array({names}), (c, i) -> {cell})"
    # Under REPLICA IDENTITY FULL the old tuple is the whole row. Under any other identity, NULL in the old
    # tuple means "not part of the identity" and gives no value.
    return f"CASE WHEN old_is_key = false AND unchanged IS NOT NULL THEN {filled} ELSE new END"


def newest_sent(table: SilverTable, positions: Sequence[int], place: str) -> list[str]:
    """Apply rule 1 over events grouped by key: the row's arrival, and the newest text sent of each column.

    Returns:
        ``arrived``, NULL for a row that existed before; ``toast_<position>``, a struct of ``place`` (in the
        log) and ``text``.
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
    """Apply rules 1, 2 and 4 over ``folded AS f``: the text of a column that some update left unchanged.

    Args:
        table: the table in its present shape.
        position: the position of the column.
        keys: name of each key column in the query, by its position.
        moved: the query joins ``origins AS o``, the values found at keys from which rows moved.
        home: the query also joins ``home``, the target's row at the first key of a moved row.
        from_empty: no row of the target counts, so the target keeps no value (rule 3).

    Returns:
        ``text_<position>``, NULL if `kept_by_target`, for a row that leaves, and for a NULL. Before it, with
        `home`, the flag ``at_home_<position>`` and the target's value at home, ``home_<position>``; unless
        `from_empty`, the flag `kept_by_target`.
    """
    name, sent, columns = table.columns[position].name, f"f.toast_{position}", []
    since_arrival = f"{sent} IS NOT NULL AND (f.arrived IS NULL OR {sent}.place >= f.arrived)"
    unmoved = f"NOT ({'gained < 1' if from_empty else 'gained = -1'})"
    cases = [f"WHEN {since_arrival} THEN {sent}.text"]
    if moved:
        cases.append(f"WHEN o.toast_{position} IS NOT NULL THEN o.toast_{position}.text")
    if moved and home:
        in_home = f"home.{quote(table.columns[next(iter(keys))].name)} IS NOT NULL"
        cases.append(f"WHEN {in_home} THEN home.{quote(UNREPRESENTABLE)}[{literal(name)}]")
        at_home = f"NOT ({since_arrival}) AND o.toast_{position} IS NULL AND {in_home}"
        columns += [f"{at_home} AS at_home_{position}", f"home.{quote(name)} AS home_{position}"]
    if not from_empty:
        columns.append(f"f.arrived IS NULL AND {sent} IS NULL AND {unmoved} AS {kept_by_target(position)}")
        unmoved += " AND f.arrived IS NOT NULL"
    cases.append(f"WHEN {unmoved} THEN {missing(table, position, (f'f.{key}' for key in keys.values()))}")
    return [*columns, f"CASE {' '.join(cases)} END AS text_{position}"]


def kept_by_target(position: int) -> str:
    """Return the name of rule 3's flag: the row did not move, no value was sent, the target's value stays."""
    return f"kept_by_target_{position}"


def updated(table: SilverTable, position: int, flag: str, value: str) -> str:
    """Apply rule 3 in MERGE: the value of a column of an existing row ``t`` of the target.

    `flag` is the `kept_by_target` of the fold's row, `value` the value in the fold's row.
    """
    return f"CASE WHEN {flag} THEN t.{quote(table.columns[position].name)} ELSE {value} END"


def inserted(table: SilverTable, position: int, flag: str, value: str, key: Iterable[str]) -> str:
    """Apply rule 4 in MERGE: the target should have kept a value but lacks the row; see `updated`."""
    return f"CASE WHEN {flag} THEN {missing(table, position, key)} ELSE {value} END"


def missing(table: SilverTable, position: int, key: Iterable[str]) -> str:
    """Return the marker of rule 4: the error ``value-missing`` stops the statement, and the table."""
    return marker("value-missing", literal(f"column {table.columns[position].name}, row "), key_text(key))
