"""The site: pages load nothing from other hosts, the index lists every page, the film shows the recording."""

from __future__ import annotations

import html
import importlib.util
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.blocks import ROOT, pages

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DOCS = ROOT / "docs"


@pytest.fixture
def offline() -> Any:
    """Load the module that makes the site readable offline; the module belongs to the site's environment."""
    spec = importlib.util.spec_from_file_location("offline", DOCS / "_sphinx" / "offline.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_every_page_is_listed_in_index() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = {line for line in index.splitlines() if (DOCS / f"{line}.md").is_file()}
    names = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")}
    assert {name for name in names if not name.startswith("errors/")} - {"index"} == listed - {
        "errors/README"
    }


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_word_of_page_is_lost_as_tag(path: Path) -> None:
    prose = re.sub(
        r"^( *)```.*?^\1```|^    .*$|``.*?``|`[^`]*`|<!--.*?-->",
        "",
        path.read_text("utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
    assert re.findall(r"<[A-Za-z/][^>\n]*>", prose) == [], "put it into backticks"


def test_links_of_the_readme_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        targets = re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8"))
        assert [target for target in targets if not (ROOT / target).exists()] == []


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
