r"""The gate of foreign text on the way to a terminal, a log, a page or a receiver of alerts.

Rows and messages of servers and libraries may contain control characters for a terminal. Such characters
clear the screen, set titles, write into the clipboard, reverse the direction of reading, or forge a line of
the log. This module writes them as ``\u001b``. JSON has the same notation, so a program still reads the
original value. Line ends and tabs stay.

A library's colours carry no meaning: `plain` removes colours from messages. Rows lose nothing.
"""

from __future__ import annotations

import re
from typing import Final

_OBEYED: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and line feed, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of reading
    "\u2028\u2029"  # line ends besides
    "\ud800-\udfff]"  # halves of pairs, which no output can encode
)
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


def visible(text: str) -> str:
    """Return the text with every control character written as an escape."""
    return _OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def plain(text: str) -> str:
    """Return a message without a library's colours."""
    return _COLOURS.sub("", text)


def in_a_line(text: str) -> str:
    """Return a message as one visible line."""
    return visible(" ".join(plain(text).split()))
