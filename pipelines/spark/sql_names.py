"""Replace tables in a statement whose names Spark's own catalog refuses, or cannot distinguish. Pure.

`smelt sql` shows a table as a view ``silver.orders``. The name of a view in a schema may only hold letters,
digits and underscores of ASCII, and case does not count. A temporary view allows any name, but is in no
schema.

So a table with a further kind of name becomes a temporary view. The statement gets the view's name in place
of the table's name (``silver.`Order Details```).

In a borrowed session, deltasmelt creates no schema and takes no name of the owner: each table is a temporary
view with a unique name (`aliased`).
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
"""Parts of a statement: names, and texts and comments, which may contain apparent names."""

_SPACE: Final = r"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
_BEHIND: Final = re.compile(rf"{_SPACE}(?:(?P<dot>\.)|(?P<word>{_NAME}))?", re.DOTALL)
_READ: Final = re.compile(rf"(?:\b(?:from|join)|,){_SPACE}\(*{_SPACE}\Z", re.IGNORECASE | re.DOTALL)
"""Words before a table that is read. In a list of columns, a dot follows every table's name."""
_AFTER_A_TABLE: Final = re.compile(
    "where|group|having|order|sort|cluster|distribute|limit|offset|window|qualify|union|intersect|except|minus"
    "|join|inner|cross|left|right|full|semi|anti|natural|on|using|lateral|pivot|unpivot|select",
    re.IGNORECASE,
)
"""Words that are no alias. Before any further non-alias word (TABLESAMPLE), SQL allows no alias."""


def odd_views(tables: Iterable[TableAddress]) -> dict[TableAddress, str]:
    """Return the quoted temporary views of all tables that need a temporary view."""
    known = list(tables)
    alike = Counter((layer, name.lower()) for layer, name in known)
    views = {}
    for layer, name in known:
        if alike[layer, name.lower()] > 1:
            # A slash, not a dot: a remaining table may have the name with the dot.
            views[layer, name] = quote(f"{layer}/{folder_name(name)}")
        elif not _TAKEN.fullmatch(name):
            views[layer, name] = quote(f"{layer}.{name}")
    return views


def with_views(statement: str, views: Mapping[TableAddress, str]) -> str:
    """Return the statement with views in place of their tables' names.

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
    """Return `with_views` of a statement, in which ``orders.id`` and ``silver.orders.id`` still find columns.

    A table without an alias in the statement gets its own name as an alias.
    """
    named = [table for table in views if with_views(statement, {table: ""}) != statement]
    alike = Counter(name.lower() for _, name in named)
    for table in named:
        layer, name = table
        alias = quote(name if alike[name.lower()] == 1 else f"{layer}.{name}")
        statement = _read_as(statement, table, views[table], alias)
    return statement


def _read_as(statement: str, table: TableAddress, view: str, alias: str) -> str:
    """Return the statement with one table's view, and an alias after each read without an alias."""
    mark = "\0"  # in no statement that Spark parses
    written: list[str] = []
    for number, piece in enumerate(with_views(statement, {table: mark}).split(mark)):
        if number:
            before, behind = "".join(written), _BEHIND.match(piece)
            if behind is not None and behind["dot"]:  # a column of the table
                written.append(alias)
            elif _READ.search(before) and behind is not None and _is_end(behind["word"]):
                written.append(f"{view} AS {alias}")
            else:
                written.append(view)
        written.append(piece)
    return "".join(written)


def _is_end(word: str | None) -> bool:
    """Check whether a table's name before this word has no alias, and allows an alias."""
    return word is None or _AFTER_A_TABLE.fullmatch(word) is not None


def _meant(written: str) -> str:
    return written[1:-1].replace("``", "`") if written.startswith("`") else written
