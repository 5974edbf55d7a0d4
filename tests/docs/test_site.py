"""The site: no resource of other hosts, links and navigation that lead to pages, a film of the recording."""

from __future__ import annotations

import html
import importlib.util
import json
import os
import re
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.blocks import ROOT, pages, unfenced

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DOCS = ROOT / "docs"


def site_module(name: str) -> Any:
    """Load a module that belongs to the site's environment."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "_sphinx" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def offline() -> Any:
    """Return the module that makes the site readable offline."""
    return site_module("offline")


@pytest.fixture
def foreign(offline: Any) -> Callable[[Path], list[str]]:
    """Return the last check of `make docs`."""
    check: Callable[[Path], list[str]] = offline.foreign_resources
    return check


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/a.css">',
        '<link rel="preconnect" href="https://fonts.example">',
        '<img src="http://example/a.png">',
        '<img srcset="a.png 1x, https://example/b.png 2x">',
        '<p style="background: url(https://example/a.png)">',
    ],
)
def test_external_resource_of_page_is_detected(
    text: str, tmp_path: Path, foreign: Callable[[Path], list[str]]
) -> None:
    (tmp_path / "a.html").write_text(f"<html>{text}</html>")
    assert len(foreign(tmp_path)) == 1


def test_links_and_own_files_are_no_external_resources(
    tmp_path: Path, foreign: Callable[[Path], list[str]]
) -> None:
    page = '<link rel="canonical" href="https://a.example"><a href="https://a.example">a</a>'
    page += '<script src="a.js"></script>'
    (tmp_path / "a.html").write_text(page)
    (tmp_path / "a.css").write_text("@import url(b.css); a { background: url(../a.png) }")
    assert foreign(tmp_path) == []
    (tmp_path / "b.css").write_text("@import 'https://fonts.example/a.css';")
    assert foreign(tmp_path) == ["b.css: https://fonts.example/a.css"]


def test_links_between_pages_stay_and_external_links_count(offline: Any) -> None:
    within, outside = "[lost](../errors/slot-lost.md#x)", "[demo](../../conf/demo.sql)"
    assert (
        offline.without_outward_links("how-to/a", f"{within} {outside}") == f"{within} demo (`conf/demo.sql`)"
    )
    assert (
        offline.without_outward_links("a", "[licence](../LICENSE) [b](b.md)")
        == "licence (`LICENSE`) [b](b.md)"
    )


def test_navigation_reaches_every_page_by_short_lists() -> None:
    """No page and no caption of the home has more than seven children, and each page has one parent."""
    contents = site_module("contents").contents
    found, waiting = ["index.md"], ["index.md"]
    while waiting:
        page = DOCS / waiting.pop()
        for _, children in contents(page.read_text(encoding="utf-8")):
            assert 0 < len(children) <= 7, page
            paths = [f"{os.path.relpath(page.parent / child, DOCS)}.md" for child in children]
            found += paths
            waiting += paths
    pages_of_site = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert sorted(found) == sorted(
        page for page in pages_of_site if page == "errors/README.md" or not page.startswith("errors/")
    )


def test_lists_of_children_become_the_navigation() -> None:
    text = "<!-- pages: How to -->\n* [A](a.md): or [b](b.md)\n| x | [C](c/d.md#e) |\n\n* [F](f.md)\n"
    navigation = site_module("contents").with_navigation
    assert navigation(text) == f"{text}\n```{{toctree}}\n:hidden:\n:caption: How to\n\na\nc/d\n```\n"
    assert navigation("* [A](a.md)\n") == "* [A](a.md)\n"


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_word_of_page_is_lost_as_tag(path: Path) -> None:
    prose = re.sub(
        r"^( *)```.*?^\1```|^    .*$|``.*?``|`[^`]*`|<!--.*?-->",
        "",
        path.read_text("utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
    assert re.findall(r"<[A-Za-z/][^>\n]*>", prose) == [], "put it into backticks"


def test_no_page_is_longer_than_one_task() -> None:
    """Lists that are read by searching are longer: options, codes, the map of the code."""
    sizes = {str(path.relative_to(DOCS)): path.stat().st_size for path in DOCS.rglob("*.md")}
    long = {page for page, size in sizes.items() if size > 10_000}
    assert long == {"command-line.md", "errors/README.md", "architecture.md"}


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_file_and_heading(path: Path) -> None:
    """The anchors are those of a code host; `make docs` checks them for the site."""
    links = re.findall(
        r"\]\((?!https?:|mailto:)([^)\s]*)\)", re.sub(r"`[^`\n]*`", "", unfenced(path.read_text("utf-8")))
    )
    assert [link for link in links if not leads_somewhere(path, link)] == []


def leads_somewhere(page: Path, link: str) -> bool:
    file, _, anchor = link.partition("#")
    target = page.parent / file if file else page
    return target.exists() and (not anchor or anchor in anchors(target))


@cache
def anchors(page: Path) -> frozenset[str]:
    headings = re.findall(r"^#+ (.+)$", unfenced(page.read_text(encoding="utf-8")), re.MULTILINE)
    texts = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower() for heading in headings)
    return frozenset(re.sub(r"[^\w\- ]", "", text).replace(" ", "-") for text in texts)


def test_first_screen_of_performance_repeats_measured_figures() -> None:
    screen = (DOCS / "performance.md").read_text(encoding="utf-8")
    assert len(screen.splitlines()) <= 50
    notes = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS / "performance").glob("*.md"))
    measured = set(re.findall(r"[\d.,]*\d", notes))
    shown = re.findall(r"[\d.,]*\d", re.sub(r"`[^`]*`|\]\([^)]*\)", "", screen))
    assert len(shown) > 30
    assert [number for number in shown if number not in measured] == []


def test_film_shows_recording_and_runs_nothing() -> None:
    lines = (DOCS / "film" / "demo.cast").read_text(encoding="utf-8").splitlines()
    header = json.loads(lines[0])
    assert header["version"] == 2
    recorded = "".join(json.loads(line)[2] for line in lines[1:])
    film = (DOCS / "demo.svg").read_text(encoding="utf-8")
    assert not re.search(r"<script|<foreignObject|\son\w+=|url\(|href=\"(?!#)", film)
    words = {html.unescape(text) for text in re.findall(r"class=[^>]*>([^<]+)</text>", film)}
    assert len(words) > 100
    assert [text for text in words if text not in recorded] == []
