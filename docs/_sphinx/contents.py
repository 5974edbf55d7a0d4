"""Read the order of the pages from the pages: a list after `<!-- pages -->` names a page's children.

One list serves two views: a code host shows the list's links, and the site's navigation follows the list.
`<!-- pages: NAME -->` gives the list a caption. The children are the first links of the list's entries, or of
a table's rows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_LISTS: Final = re.compile(r"^<!-- pages(?:: ([^>]+?))? -->\n\n?((?:(?:[*|]|  ).*(?:\n|\Z))+)", re.MULTILINE)
_FIRST: Final = re.compile(r"^[*|][^\[\n]*\[[^\]]+\]\(((?!https?:)[^)#]+)\.md(?:#[^)]*)?\)", re.MULTILINE)


class Contents(NamedTuple):
    """One list of children: its caption, empty for none, and the pages relative to the page's folder."""

    caption: str
    pages: tuple[str, ...]


def contents(text: str) -> Iterator[Contents]:
    """Yield the lists of children of a page's Markdown, each page once."""
    for found in _LISTS.finditer(text):
        yield Contents(found[1] or "", tuple(dict.fromkeys(_FIRST.findall(found[2]))))


def with_navigation(text: str) -> str:
    """Return the page's Markdown with a hidden table of contents for each of its lists of children."""
    blocks = [
        "\n```{toctree}\n:hidden:\n"
        + (f":caption: {caption}\n" if caption else "")
        + "\n"
        + "\n".join(pages)
        + "\n```\n"
        for caption, pages in contents(text)
    ]
    return text + "".join(blocks)
