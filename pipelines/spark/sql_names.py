"""Replace tables in a statement whose names Spark's own catalog refuses, or cannot distinguish. Pure.

`smelt sql` shows a table as a view ``silver.orders``. The name of a view in a schema may only hold letters,
digits and underscores of ASCII, and case does not count. A temporary view allows any name, but is in no
schema. So a table with a further kind of name becomes a temporary view, and the statement gets the view's
name in place of the table's name (``silver.`Order Details```). In a borrowed session every table is a
temporary view (`pipelines.spark.borrowed_sql`), with a unique name (`aliased`).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

from deltasmelt.bronze.lake.location import folder_name
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

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
    """Return the statement with views in place of their tables' names."""
    found = _finder(views)

    def replaced(piece: re.Match[str]) -> str:
        table = found(piece)
        return piece[0] if table is None else views[table]

    return _PIECE.sub(replaced, statement)


def named_tables(statement: str, tables: Iterable[TableAddress]) -> list[TableAddress]:
    """Return the tables that a statement names, each once."""
    found = map(_finder(tables), _PIECE.finditer(statement))
    return list(dict.fromkeys(table for table in found if table is not None))


def aliased(statement: str, tables: Collection[TableAddress], view: Callable[[TableAddress], str]) -> str:
    """Return a statement with views, in which ``orders.id`` and ``silver.orders.id`` still find columns.

    A table without an alias in the statement gets its own name as an alias. `tables` are all tables that the
    statement may name; `view` returns the name of a table's view.
    """
    found = _finder(tables)
    shows = re.match(r"\s*show\b", statement, re.IGNORECASE)  # SHOW COLUMNS FROM takes no alias
    alike = Counter(name.lower() for _, name in named_tables(statement, tables))
    written, at = "", 0
    for piece in _PIECE.finditer(statement):
        if (table := found(piece)) is None:
            continue
        layer, name = table
        alias = quote(name if alike[name.lower()] == 1 else f"{layer}.{name}")
        written += statement[at : piece.start()]
        at, behind = piece.end(), _BEHIND.match(statement, piece.end())
        if behind is not None and behind["dot"]:  # a column of the table
            written += alias
        elif not shows and _READ.search(written) and behind is not None and _is_end(behind["word"]):
            written += f"{view(table)} AS {alias}"
        else:
            written += view(table)
    return written + statement[at:]


def _finder(tables: Iterable[TableAddress]) -> Callable[[re.Match[str]], TableAddress | None]:
    """Return a function that finds the table that a piece of a statement names.

    Case counts only between tables whose names differ in nothing else.
    """
    loosely: dict[tuple[str, str], list[TableAddress]] = {}
    for layer, name in tables:
        loosely.setdefault((layer, name.lower()), []).append((layer, name))

    def found(piece: re.Match[str]) -> TableAddress | None:
        if piece["layer"] is None:
            return None
        layer, name = (_meant(piece[part]) for part in ("layer", "name"))
        alike = loosely.get((layer.lower(), name.lower()), [])
        exact = [table for table in alike if table[1] == name] or alike
        return exact[0] if len(exact) == 1 else None

    return found


def _is_end(word: str | None) -> bool:
    """Check whether a table's name before this word has no alias, and allows an alias."""
    return word is None or _AFTER_A_TABLE.fullmatch(word) is not None


def _meant(written: str) -> str:
    return written[1:-1].replace("``", "`") if written.startswith("`") else written
