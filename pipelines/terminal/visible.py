r"""The one gate of foreign text before it reaches a terminal, a log, a page or a receiver of alerts.

A row, a server or a library may hold characters that a terminal obeys: they clear the screen, set its title,
write into the clipboard, turn the direction of reading, or begin a line that looks like one of ours. Such
characters are shown, as ``\u001b``, and never sent. Within JSON that is the character's own notation, so a
program reads the value as it was. Line ends and tabs stay.

Colours that a library puts into a message are no part of what the message says: `plain` removes them. Rows
keep all that they hold, visibly.
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
    """Return text whose characters a terminal obeys are shown instead."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def plain(text: str) -> str:
    """Return a message without a library's colours."""
    return _COLOURS.sub("", text)


def in_a_line(text: str) -> str:
    """Return a message as one visible line."""
    return visible(" ".join(plain(text).split()))
