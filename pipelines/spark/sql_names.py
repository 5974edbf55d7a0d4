"""Tables in a statement whose names Spark's own catalog does not take, or cannot distinguish. Pure.

`smelt sql` shows a table as a view ``silver.orders``. The name of a view in a schema may hold letters, digits
and underscores of ASCII alone, and case does not count. A temporary view takes any name, but is in no schema.

So a table of another name becomes a temporary view. A statement that names it as Spark SQL names such a table
(``silver.`Order Details```) gets the view's name instead.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

from bronze.lake.folders import folder_name
from silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bronze.lake.location import Layer

TableAddress: TypeAlias = "tuple[Layer, str]"

_TAKEN: Final = re.compile(r"[A-Za-z0-9_]+")
_NAME: Final = r"(?:`(?:[^`]|``)*`|\w+)"
_PIECE: Final = re.compile(
    rf"""[rR]'[^']*' | [rR]"[^"]*" | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | --[^\n]* | /\*.*?\*/
       | (?P<layer>{_NAME})\s*\.\s*(?P<name>{_NAME}) | {_NAME}""",
    re.VERBOSE | re.DOTALL,
)
"""What may hold a name, and what only looks as if it did: texts and comments."""


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


def _meant(written: str) -> str:
    return written[1:-1].replace("``", "`") if written.startswith("`") else written
