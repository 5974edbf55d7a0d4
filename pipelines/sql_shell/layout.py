"""How rows become text: lines of CSV, and one value a line. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len

from pipelines.terminal.visible import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_TO_QUOTE: Final = re.compile(r'[",\r\n]|^\s|\s$')
_GAP: Final = 1
"""Blanks between the columns of a table on a terminal."""


def csv_line(values: Iterable[str | None]) -> str:
    r"""A record as RFC 4180 has it, with its line end (CR LF).

    NULL is nothing between two commas, an empty text is ``""``; so they stay two values.
    """
    return ",".join(map(_csv_field, values)) + "\r\n"


def _csv_field(value: str | None) -> str:
    if value is None:
        return ""
    if value and not _TO_QUOTE.search(value):
        return value
    return '"' + value.replace('"', '""') + '"'


def fits(columns: Sequence[str], rows: Iterable[Sequence[str | None]], width: int) -> bool:
    """Whether a table's longest values stand beside each other on a terminal."""
    longest = [cell_len(name) for name in columns]
    for row in rows:
        for index, value in enumerate(row):
            shown = "NULL" if value is None else value
            longest[index] = max(longest[index], *map(cell_len, shown.split("\n")))
    return sum(longest) + _GAP * (len(longest) - 1) <= width


def one_value_a_line(columns: Sequence[str], rows: Iterable[Sequence[str | None]]) -> Iterator[str]:
    """Rows as visible lines of a name and its value, each row under its number."""
    columns = list(map(visible, columns))
    width = max((cell_len(name) for name in columns), default=0)
    for number, row in enumerate(rows, start=1):
        yield f"-[ row {number} ]".ljust(width + 12, "-")
        for name, value in zip(columns, row, strict=True):
            first, *more = visible("NULL" if value is None else value).split("\n")
            yield f"{name}{' ' * (width - cell_len(name))} | {first}".rstrip()
            yield from (f"{' ' * width} | {line}".rstrip() for line in more)
