"""Find unchanged TOAST of moved rows: the key changed while a TOAST value did not. Pure text.

Such an update means "the row at the old key is now at the new key". The value is with the row at the old key:
in an earlier change of this window, or in the target. A row may move several times, so the moves form a chain
of *links* (`links`), which `shortened` follows to the end. The target's row at the *home* key has the values
that the end of the chain lacks.

Under deferred constraints two rows may be at the old key, and the older row leaves (see
`silver.fold.by_key`). So a number identifies the row that left. With *before* rows in the target at this key,
the n-th leave takes the (n - before)-th arrival; number 0 is the target's row.

These statements run only in windows with an update that has both an old tuple and unchanged TOAST.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltasmelt.silver.fold.toast import is_unchanged_toast
from deltasmelt.silver.fold.window import times_emptied
from deltasmelt.silver.sql import comma, quote

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltasmelt.silver.fold.window import Window
    from deltasmelt.silver.schema.catalog import SilverTable


def same_key(left: str, right: str, names: Iterable[str]) -> str:
    """Return the condition that two key structs or rows are equal."""
    return " AND ".join(f"{left}.{name} = {right}.{name}" for name in names)


def target_key(alias: str, table: SilverTable, keys: dict[int, str], struct: str) -> str:
    """Return the condition that a row of the target has the key of a struct."""
    return " AND ".join(
        f"{alias}.{quote(table.columns[position].name)} = {struct}.{name}" for position, name in keys.items()
    )


def links(
    table: SilverTable, window: Window, keys: dict[int, str], columns: list[int], *, target: str
) -> list[tuple[str, str]]:
    """Return common table expressions over ``events`` that end in ``origins``.

    ``origins`` has for each link:

    * ``place``, the link's own place;
    * ``toast_<n>``, a struct of a text, for each column found at the row's old key;
    * ``parent``, the place of the arrival that brought the row to the old key;
    * ``home``, the old key: without a parent, the target's row at this key has the other values.

    `columns` are the positions of columns that some update left as unchanged TOAST; `target` is the target
    before the window, as SQL.
    """
    names = keys.values()
    moved = (
        f"SELECT struct(commit_lsn, seq) AS place, before, {times_emptied(window, 'commit_lsn')} AS emptied\n"
        "FROM events\n"
        "WHERE kind = 'arrive' AND before IS NOT NULL AND unchanged IS NOT NULL"
    )
    if window.from_empty:
        sources = "SELECT DISTINCT before AS here, emptied, 0 AS initial\nFROM links"
    else:
        first = quote(table.columns[next(iter(keys))].name)
        sources = (
            "SELECT links.before AS here, links.emptied, "
            f"max(CASE WHEN t.{first} IS NULL THEN 0 ELSE 1 END) AS initial\n"
            f"FROM links LEFT JOIN {target} AS t ON links.emptied = 0"
            f" AND {target_key('t', table, keys, 'links.before')}\n"
            "GROUP BY links.before, links.emptied"
        )
    # Only events at the keys from which rows moved: the join reads no other key.
    history = (
        "SELECT struct(e.commit_lsn, e.seq) AS place, e.kind, e.image, e.unchanged,\n"
        "  s.here, s.emptied, s.initial,\n"
        "  count_if(e.kind = 'arrive') OVER so_far AS arrivals,\n"
        "  count_if(e.kind = 'leave') OVER so_far AS leaves\n"
        f"FROM events AS e JOIN sources AS s ON {same_key('e', 's.here', names)}"
        f" AND s.emptied = {times_emptied(window, 'e.commit_lsn')}\n"
        "WINDOW so_far AS (\n"
        "  PARTITION BY s.here, s.emptied ORDER BY e.commit_lsn, e.seq ROWS UNBOUNDED PRECEDING\n)"
    )
    # The number of the row that left: its arrival at this key, or 0 for the target's row.
    departed = (
        "SELECT h.place, h.here, h.emptied, h.leaves - h.initial AS occupant\n"
        "FROM history AS h LEFT SEMI JOIN links ON links.place = h.place\n"
        "WHERE h.kind = 'leave'"
    )
    # The row's values are the values sent between its arrival at the old key and its leave.
    moves = [
        f"max_by(struct(h.image[{position}] AS text), h.place)"
        f" FILTER (WHERE h.kind <> 'leave' AND NOT {is_unchanged_toast(table, position, 'h.')})"
        f" AS toast_{position}"
        for position in columns
    ]
    # No value of the target survives a TRUNCATE, so a link after a TRUNCATE has no home.
    origins = (
        "SELECT d.place, CASE WHEN d.emptied = 0 THEN d.here END AS home,\n"
        "  max(h.place) FILTER (WHERE h.kind = 'arrive') AS parent,\n"
        f"  {comma(moves, 2)}\n"
        "FROM departed AS d\n"
        "LEFT JOIN history AS h ON h.here = d.here AND h.emptied = d.emptied"
        " AND h.arrivals = d.occupant AND h.place < d.place\n"
        "GROUP BY d.place, d.here, d.emptied"
    )
    return [
        ("links", moved),
        ("sources", sources),
        ("history", history),
        ("departed", departed),
        ("origins", origins),
    ]


def shortened(columns: list[int], origins: str) -> str:
    """Return one round of pointer doubling over the table `origins`: a link inherits its parent's values.

    The caller repeats rounds until no link has a parent: a row that moved n times needs log2(n) rounds of one
    small statement. A table keeps the links, because a query that contains itself twice grows exponentially.
    """
    inherited = [
        f"coalesce(o.toast_{position}, p.toast_{position}) AS toast_{position}" for position in columns
    ]
    return f"""\
SELECT o.place, CASE WHEN o.parent IS NULL THEN o.home ELSE p.home END AS home, p.parent,
  {comma(inherited, 2)}
FROM {origins} AS o LEFT JOIN {origins} AS p ON p.place = o.parent"""
