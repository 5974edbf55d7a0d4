"""Fold a window of raw changes to one row per key, as one Spark SQL query. Pure text, no Spark.

The query reads the changes (`silver.fold.window`) and reduces them by key (`silver.fold.by_key`) or, under
REPLICA IDENTITY FULL, by content (`silver.fold.by_content`). Unchanged TOAST follows `silver.fold.toast`.

Both folds need the target to be exactly the state at the window's start. The transaction mark guarantees this
state: silver merges each window once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltasmelt.silver.errors import marker
from deltasmelt.silver.fold import by_content, by_key
from deltasmelt.silver.fold.moved_rows import links, shortened, target_key
from deltasmelt.silver.fold.toast import kept_by_target, resolved_text
from deltasmelt.silver.fold.window import ColumnRoles, key_expression, rows_query
from deltasmelt.silver.schema.unrepresentable import lost_values
from deltasmelt.silver.sql import block, comma

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deltasmelt.silver.fold.window import Window
    from deltasmelt.silver.schema.catalog import SilverTable


@dataclass(frozen=True, slots=True)
class Fold:
    """The query and the names of its columns.

    Attributes:
        query: gives one row per key: `keys`, ``action``, ``commit_lsn``, ``commit_ts``, ``lost``, `values`,
            `kept_by_target`.
        keys, values: names in the query of the fold key's columns and of all values, by position in the
            table.
        kept_by_target: name of the flag "the target's value stays" (`silver.fold.toast`), by position of the
            columns that may be unchanged TOAST.
    """

    query: str
    keys: dict[int, str]
    values: dict[int, str]
    kept_by_target: dict[int, str]


def moves(table: SilverTable, window: Window, *, target: str) -> tuple[str, Callable[[str], str]] | None:
    """Return queries that find unchanged TOAST of moved rows (`silver.fold.moved_rows`); None without moves.

    Returns:
        A query for the links, and a function that returns one round over a table of links. The caller repeats
        rounds until no link has a ``parent``.
    """
    roles = ColumnRoles.of(table, window)
    if not roles.moved:
        return None
    parts = [
        ("changes", rows_query(table, window)),
        ("events", by_key.events(table, window, roles.keys, filled=True)),
        *links(table, window, roles.keys, roles.unchanged_toast, target=target),
    ]
    return _with(parts, ["*"], "origins"), lambda origins: shortened(roles.unchanged_toast, origins)


def fold(table: SilverTable, window: Window, *, target: str, origins: str | None = None) -> Fold:
    """Return the whole query.

    Args:
        table: the table in its shape at the window's end.
        window: the changes that the query folds.
        target: the silver table as Spark SQL, at its version before the window.
        origins: table of resolved `moves`; None if the window has none.
    """
    roles = ColumnRoles.of(table, window)
    keys, toast = roles.keys, roles.unchanged_toast
    home = None if window.from_empty or origins is None else target
    values = {position: keys.get(position, f"value_{position}") for position in range(len(table.columns))}
    flags = {} if window.from_empty else {position: kept_by_target(position) for position in toast}
    parts = [
        ("changes", rows_query(table, window)),
        *_reduced(table, window, roles),
        ("texts", _texts(table, window, roles, origins=origins, target=home)),
        # PostgreSQL's text becomes a typed value only after the reduction, once per key; keys are typed
        # before.
        ("typed", _typed(table, keys, toast if home else [], list(flags.values()))),
    ]
    selected = [*keys.values(), "action", "commit_lsn", "commit_ts"]
    selected += [name for position, name in values.items() if position not in keys]
    selected += [*flags.values(), f"{_lost(table, keys)} AS lost"]
    query = _with(parts, selected)
    if window.from_empty:
        query += "\nWHERE action = 'upsert'"
    return Fold(query, keys, values, flags)


def commits(table: SilverTable, window: Window, *, target: str, origins: str | None) -> Fold:
    """Return the effect of each transaction on each key: the fold within transactions, not over the window.

    `target` has the live rows before the window. `silver.fold.row_versions` defines ``action``. Unchanged
    TOAST of a row that existed before is `kept_by_target`. The columns ``text_<position>`` replace ``lost``.
    """
    roles = ColumnRoles.of(table, window)
    keys, toast = roles.keys, roles.unchanged_toast
    home = None if window.from_empty or origins is None else target
    flags = {position: kept_by_target(position) for position in toast}
    parts = [
        ("changes", rows_query(table, window)),
        *_reduced(table, window, roles, each_commit=True),
        ("texts", _texts(table, window, roles, origins=origins, target=home, each_commit=True)),
    ]
    typed = _typed(table, keys, toast if home else [], list(flags.values()))
    values = {position: keys.get(position, f"value_{position}") for position in range(len(table.columns))}
    return Fold(f"WITH {_expressions(parts)}\n{typed}", keys, values, flags)


def _reduced(
    table: SilverTable, window: Window, roles: ColumnRoles, *, each_commit: bool = False
) -> list[tuple[str, str]]:
    if roles.by_content:
        return by_content.netted(table, window, roles, each_commit=each_commit)
    filled = by_key.events(table, window, roles.keys, filled=bool(roles.unchanged_toast))
    folded = by_key.folded(table, roles.keys, roles.unchanged_toast, each_commit=each_commit)
    return [("events", filled), ("folded", folded)]


def unfolded(table: SilverTable, window: Window) -> Fold:
    """Return the window's rows unreduced, for a window in which no key occurs twice: no shuffle."""
    keys = {table.position(name): f"key_{table.position(name)}" for name in window.fold_key}
    values = {position: keys.get(position, f"value_{position}") for position in range(len(table.columns))}
    no_key = " OR ".join(f"{name} IS NULL" for name in keys.values())
    columns = [
        f"{key_expression(table, position, f'new[{position}]')} AS {name}" for position, name in keys.items()
    ]
    columns += ["commit_lsn", "commit_ts"]
    columns += [f"new[{position}] AS text_{position}" for position in values if position not in keys]
    texts = [f"CASE WHEN {no_key} THEN {marker('key-missing')} ELSE 'upsert' END AS action", *keys.values()]
    parts = [
        ("changes", rows_query(table, window)),
        ("folded", f"SELECT {comma(columns, 2)}\nFROM changes"),
        ("texts", f"SELECT {comma([*texts, '* EXCEPT (' + ', '.join(keys.values()) + ')'], 2)}\nFROM folded"),
        ("typed", _typed(table, keys, [], [])),
    ]
    selected = [*keys.values(), "action", "commit_lsn", "commit_ts"]
    selected += [name for position, name in values.items() if position not in keys]
    query = _with(parts, [*selected, f"{_lost(table, keys)} AS lost"])
    return Fold(f"{query}\nWHERE action = 'upsert'", keys, values, {})


def _with(parts: Sequence[tuple[str, str]], selected: Sequence[str], source: str = "typed") -> str:
    return f"WITH {_expressions(parts)}\nSELECT {comma(selected, 2)}\nFROM {source}"


def _expressions(parts: Sequence[tuple[str, str]]) -> str:
    return comma(f"{name} AS (\n  {block(query, 2)}\n)" for name, query in parts)


def _texts(
    table: SilverTable,
    window: Window,
    roles: ColumnRoles,
    *,
    origins: str | None,
    target: str | None,
    each_commit: bool = False,
) -> str:
    """Return PostgreSQL's text of each column of the row that exists at the end (of each transaction)."""
    kind, at = (by_content if roles.by_content else by_key), "last_event"
    action = kind.action(window, roles.keys)
    if each_commit:
        action, at = kind.action_at_commit(roles.keys), "f"
    known_empty = window.from_empty and not each_commit
    keys, moved = roles.keys, origins is not None
    columns = [f"f.{name}" for name in keys.values()]
    columns += [
        f"{block(action, 2)} AS action",
        f"{at}.commit_lsn",
        f"{at}.commit_ts",
    ]
    joins = ""
    if moved:
        joins = f"\nLEFT JOIN {origins} AS o ON o.place = f.arrived"
        if target is not None:
            joins += f"\nLEFT JOIN {target} AS home ON {target_key('home', table, keys, 'o.home')}"
    for position in range(len(table.columns)):
        if position in keys:
            continue
        if position not in roles.unchanged_toast:
            columns.append(f"f.image[{position}] AS text_{position}")
            continue
        columns += resolved_text(
            table, position, keys, moved=moved, home=target is not None, from_empty=known_empty
        )
    return f"SELECT {comma(columns, 2)}\nFROM folded AS f{joins}"


def _typed(table: SilverTable, keys: dict[int, str], at_home: list[int], flags: list[str]) -> str:
    """Convert text to values, one row per key."""
    columns = [*keys.values(), "action", "commit_lsn", "commit_ts", *flags]
    for position, column in enumerate(table.columns):
        if position in keys:
            continue
        value = column.reading.value(f"text_{position}", 0)
        if position in at_home:
            value = f"CASE WHEN at_home_{position} THEN home_{position} ELSE {value} END"
        columns.append(f"{value} AS value_{position}")
        if not column.reading.exact:
            columns.append(f"text_{position}")
    return f"SELECT {comma(columns, 2)}\nFROM texts"


def _lost(table: SilverTable, keys: dict[int, str]) -> str:
    return lost_values(
        [
            (column.name, f"text_{position}", f"value_{position}")
            for position, column in enumerate(table.columns)
            if position not in keys and not column.reading.exact
        ]
    )
