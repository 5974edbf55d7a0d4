"""Keep a site readable offline: find addresses on foreign hosts, and replace links that leave the site."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_LOADING: Final = {
    "audio": "src", "embed": "src", "iframe": "src", "img": "src", "input": "src", "object": "data",
    "script": "src", "source": "src", "track": "src", "use": "href", "video": "src",
}  # fmt: skip
"""Elements, each with the attribute that a browser loads automatically."""

_REMOTE: Final = re.compile(r"^\s*(?:[a-z]+:)?//", re.IGNORECASE)
_IN_CSS: Final = re.compile(r"(?:url\(\s*|@import\s+)[\"']?((?:[a-z]+:)?//[^\"')\s]+)", re.IGNORECASE)
_PASSIVE: Final = {"canonical", "next", "prev", "author", "license", "search", "index"}
"""Relations of a `link` element that load nothing."""

_UPWARD: Final = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+)(?!docs/)([^)#]+)(?:#[^)]*)?\)")
"""A link to a file above the page's folder: its text, the way up, and the file."""


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        address = given.get(_LOADING.get(tag, ""), "")
        if tag == "link" and not _PASSIVE & set(given.get("rel", "").split()):
            address = given.get("href", "")
        loaded = [address, *given.get("srcset", "").split(",")]
        self.found += [each for each in loaded if _REMOTE.match(each)]
        self.found += _IN_CSS.findall(given.get("style", ""))


def foreign_resources(site: Path) -> list[str]:
    """Return `page: address` for every foreign address that pages or styles below `site` load, sorted."""
    found: list[str] = []
    for path in sorted(site.rglob("*")):
        if path.suffix == ".html":
            page = _Page()
            page.feed(path.read_text(encoding="utf-8"))
            addresses = page.found
        elif path.suffix in {".css", ".svg"}:
            addresses = _IN_CSS.findall(path.read_text(encoding="utf-8"))
        else:
            continue
        found += [f"{path.relative_to(site)}: {address}" for address in addresses]
    return found


def without_outward_links(page: str, text: str) -> str:
    """Return the page's Markdown with file names in place of links that leave the folder of the pages.

    Args:
        page: the page's name, with its folders.
        text: the Markdown of the page.
    """
    folders = page.count("/")

    def named(found: re.Match[str]) -> str:
        leads_out = found[2].count("/") > folders
        return f"{found[1]} (`{found[3]}`)" if leads_out else found[0]

    return _UPWARD.sub(named, text)
