"""Tables in a statement whose names Spark's own catalog does not take, or cannot distinguish. Pure.

`smelt sql` shows a table as a view ``silver.orders``. The name of a view in a schema may hold letters, digits
and underscores of ASCII alone, and case does not count. A temporary view takes any name, but is in no schema.

So a table of another name becomes a temporary view. A statement that names it as Spark SQL names such a table
(``silver.`Order Details```) gets the view's name instead.

In a session of somebody else's no schema is made, and no name of theirs is taken: each table is a temporary
view of a name that nobody would give (`aliased`).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

from deltasmelt.bronze.lake.location import folder_name
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from deltasmelt.bronze.lake.location import Layer

TableAddress: TypeAlias = "tuple[Layer, str]"

_TAKEN: Final = re.compile(r"[A-Za-z0-9_]+")
_NAME: Final = r"(?:`(?:[^`]|``)*`|\w+)"
_PIECE: Final = re.compile(
    rf"""[rR]'[^']*' | [rR]"[^"]*" | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | --[^\n]* | /\*.*?\*/
       | (?P<layer>{_NAME})\s*\.\s*(?P<name>{_NAME}) | {_NAME}""",
    re.VERBOSE | re.DOTALL,
)
"""What may hold a name, and what only looks as if it did: texts and comments."""

_SPACE: Final = r"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
_BEHIND: Final = re.compile(rf"{_SPACE}(?:(?P<dot>\.)|(?P<word>{_NAME}))?", re.DOTALL)
_READ: Final = re.compile(rf"(?:\b(?:from|join)|,){_SPACE}\(*{_SPACE}\Z", re.IGNORECASE | re.DOTALL)
"""What stands before a table that is read. In a list of columns a table is not named without a dot."""
_AFTER_A_TABLE: Final = re.compile(
    "where|group|having|order|sort|cluster|distribute|limit|offset|window|qualify|union|intersect|except|minus"
    "|join|inner|cross|left|right|full|semi|anti|natural|on|using|lateral|pivot|unpivot|select",
    re.IGNORECASE,
)
"""Words that are no alias. Before any other that is none either (TABLESAMPLE), no alias may stand."""


def odd_views(tables: Iterable[TableAddress]) -> dict[TableAddress, str]:
    """The temporary views, quoted, of those tables that need one."""
    known = list(tables)
    alike = Counter((layer, name.lower()) for layer, name in known)
    views = {}
    for layer, name in known:
        if alike[layer, name.lower()] > 1:
            # Not behind a dot: what is left as it is might be called so.
            views[layer, name] = quote(f"{layer}/{folder_name(name)}")
        elif not _TAKEN.fullmatch(name):
            views[layer, name] = quote(f"{layer}.{name}")
    return views


def with_views(statement: str, views: Mapping[TableAddress, str]) -> str:
    """The statement with the views in the place of their tables' names.

    Case counts only between tables whose names differ in nothing else.
    """
    if not views:
        return statement
    loosely: dict[tuple[str, str], list[str]] = {}
    for (layer, name), view in views.items():
        loosely.setdefault((layer, name.lower()), []).append(view)

    def replaced(match: re.Match[str]) -> str:
        if match["layer"] is None:
            return match[0]
        layer, name = (_meant(match[part]) for part in ("layer", "name"))
        found = [view for (of, exact), view in views.items() if (of, exact) == (layer.lower(), name)]
        found = found or loosely.get((layer.lower(), name.lower()), [])
        return found[0] if len(found) == 1 else match[0]

    return _PIECE.sub(replaced, statement)


def aliased(statement: str, views: Mapping[TableAddress, str]) -> str:
    """As `with_views`, and what a statement calls ``orders.id`` or ``silver.orders.id`` is still found.

    A table that is read under no other name gets its own as an alias.
    """
    named = [table for table in views if with_views(statement, {table: ""}) != statement]
    alike = Counter(name.lower() for _, name in named)
    for table in named:
        layer, name = table
        alias = quote(name if alike[name.lower()] == 1 else f"{layer}.{name}")
        statement = _read_as(statement, table, views[table], alias)
    return statement


def _read_as(statement: str, table: TableAddress, view: str, alias: str) -> str:
    """The statement with one table's view, under an alias where it is read without one."""
    mark = "\0"  # in no statement that Spark parses
    written: list[str] = []
    for number, piece in enumerate(with_views(statement, {table: mark}).split(mark)):
        if number:
            before, behind = "".join(written), _BEHIND.match(piece)
            if behind is not None and behind["dot"]:  # a column of it
                written.append(alias)
            elif _READ.search(before) and behind is not None and _is_end(behind["word"]):
                written.append(f"{view} AS {alias}")
            else:
                written.append(view)
        written.append(piece)
    return "".join(written)


def _is_end(word: str | None) -> bool:
    """Whether a table's name that this word follows has no alias, and may be given one."""
    return word is None or _AFTER_A_TABLE.fullmatch(word) is not None


def _meant(written: str) -> str:
    return written[1:-1].replace("``", "`") if written.startswith("`") else written
