"""Where a moved row's unchanged TOAST is: rows whose key changed while a TOAST value did not. Pure text.

Such an update says "the row at the old key is now at the new one", and the value is with the row at the old
key: in an earlier change of this window, or in the target. Rows may move several times, so this is a chain.
Under deferred constraints two rows may be at the old key, of which the older one leaves (see
`silver.fold.by_key`).

Each such *link* finds the row that left by number. With *before* rows in the target at that key, the n-th
leave takes the (n - before)-th arrival; the 0-th is the target's row. Its values are what was sent between
that arrival and the leave. What is still missing then is with the parent link, the arrival itself.

Chains are shortened by pointer doubling, one small statement a round, until no link has a parent: a row that
moved n times needs log2(n) rounds. The links are kept between rounds (a query that contains itself twice
grows exponentially). What the end of the chain lacks is in the target's row at its *home* key.

All of this runs only in windows where an update has both an old tuple and unchanged TOAST. It reads only
events at those keys.
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
    """Equality of two key structs or rows."""
    return " AND ".join(f"{left}.{name} = {right}.{name}" for name in names)


def target_key(alias: str, table: SilverTable, keys: dict[int, str], struct: str) -> str:
    """Equality of a row of the target and a key struct."""
    return " AND ".join(
        f"{alias}.{quote(table.columns[position].name)} = {struct}.{name}" for position, name in keys.items()
    )


def links(
    table: SilverTable, window: Window, keys: dict[int, str], columns: list[int], *, target: str
) -> list[tuple[str, str]]:
    """Common table expressions over ``events`` that end in ``origins``.

    ``origins`` has for each link:

    * ``place``, its own;
    * ``toast_<n>``, a struct of a text, for each column found where the row was;
    * ``parent``, the place of the arrival that brought it there;
    * ``home``, the key where it was: if there is no parent, the target's row there has the rest. It is NULL
      after a TRUNCATE, which no value crosses.

    Args:
        table: the table.
        window: its changes.
        keys: name of each key column, by position.
        columns: positions of columns that some update left as unchanged TOAST.
        target: the target before the window as SQL.
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
    departed = (
        "SELECT h.place, h.here, h.emptied, h.leaves - h.initial AS occupant\n"
        "FROM history AS h LEFT SEMI JOIN links ON links.place = h.place\n"
        "WHERE h.kind = 'leave'"
    )
    found = [
        f"max_by(struct(h.image[{position}] AS text), h.place)"
        f" FILTER (WHERE h.kind <> 'leave' AND NOT {is_unchanged_toast(table, position, 'h.')})"
        f" AS toast_{position}"
        for position in columns
    ]
    origins = (
        "SELECT d.place, CASE WHEN d.emptied = 0 THEN d.here END AS home,\n"
        "  max(h.place) FILTER (WHERE h.kind = 'arrive') AS parent,\n"
        f"  {comma(found, 2)}\n"
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
    """One round of pointer doubling over the table `origins`: what a link lacks, its parent may have."""
    inherited = [
        f"coalesce(o.toast_{position}, p.toast_{position}) AS toast_{position}" for position in columns
    ]
    return f"""\
SELECT o.place, CASE WHEN o.parent IS NULL THEN o.home ELSE p.home END AS home, p.parent,
  {comma(inherited, 2)}
FROM {origins} AS o LEFT JOIN {origins} AS p ON p.place = o.parent"""
