"""Write Spark SQL as text: the only module that quotes identifiers and writes literals. Needs no Spark.

Each name and each text passes through `quote` or `literal`, so Spark cannot read the content of a name or a
text as SQL.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lake import location

if TYPE_CHECKING:
    from collections.abc import Iterable


# Line ends, and pieces of SQL that may contain a line end or a backtick.
_PIECE: Final = re.compile(
    r"""(?<!\w)[rR]'[^']*' | '(?:[^'\\]|\\.)*' | `[^`]*` | --[^\n]* | \n""", re.VERBOSE | re.DOTALL
)


JSON_OPTIONS: Final = {
    # The default cuts times off after the millisecond, and omits NULLs.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}
"""Options with which Spark writes values as JSON everywhere; by default Spark would hide smaller changes."""


def quote(*parts: str) -> str:
    """Return identifiers as a path in backticks: ``quote("t", "a`b")`` is ```t`.`a``b```."""
    return ".".join(map(location.quoted, parts))


def literal(value: str | float | None) -> str:
    """Return a string, boolean, number or NULL in the form that Spark SQL reads under default settings.

    `indented` finds no line end inside a text (`bronze.lake.location`).
    """
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return location.literal(value)
    return repr(value) if isinstance(value, float) else str(int(value))


def as_json(columns: Iterable[str], *, pretty: bool = False) -> str:
    """Return columns as the text of one JSON object."""
    options = {"pretty": "true", **JSON_OPTIONS} if pretty else JSON_OPTIONS
    pairs = ", ".join(
        f"'{name}', " + (f'"{value}"' if "'" in value else f"'{value}'") for name, value in options.items()
    )
    return f"to_json(struct({', '.join(columns)}), map({pairs}))"


def key_text(columns: Iterable[str]) -> str:
    """Return a key as text for a message."""
    return f"concat_ws(', ', {', '.join(f'CAST({column} AS STRING)' for column in columns)})"


def comma(parts: Iterable[str], indent: int = 0) -> str:
    """Join parts with commas, one part per line; indent lines after the first by `indent` spaces."""
    return (",\n" + " " * indent).join(parts)


def indented(text: str, by: str) -> str:
    r"""Put `by` before every line that is not blank; no line ends within a name."""
    # Only a line feed ends a line. Python's `splitlines`, and so `textwrap.indent`, also end a line at
    # U+2028, U+0085, vertical tabs and other characters. Texts and names contain such characters, and an
    # indent would change the texts.
    return "\n".join(f"{by}{line}" if line.strip() else line for line in _lines(text))


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if not any(line.count("`") % 2 for line in lines):
        return lines  # a name over several lines has an odd number of backticks in its first line
    ends = [match.start() for match in _PIECE.finditer(text) if match[0] == "\n"]
    return [text[start + 1 : end] for start, end in pairwise([-1, *ends, len(text)])]


def block(text: str, indent: int) -> str:
    """Indent every line after the first, to put a statement inside another."""
    return indented(text, " " * indent).lstrip()


def comment(text: str) -> str:
    """Return a comment line. No name can end the line or (by a backslash) append the next line."""
    return "-- " + "".join(
        character if character.isprintable() and character != "\\" else "\ufffd" for character in text
    )
