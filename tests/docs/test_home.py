"""The site's home shows the README's quick start, guarantees and comparison, which stand in one place."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT
from tests.docs.test_site import site_module


def test_home_shows_quick_start_guarantees_and_comparison() -> None:
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    home = site_module("home").with_readme(index, (ROOT / "README.md").read_text(encoding="utf-8"))
    headings = re.findall(r"^## (.+)$", home, re.MULTILINE)
    assert headings[:4] == ["Quick start", "Your own database", "What it guarantees", "Compared with others"]
    assert "are in the [README]" not in home
    first = re.search(r"^```\w*\n(.*?)^```", home, re.MULTILINE | re.DOTALL)
    assert first is not None
    assert first[1] == "make demo\n", "the first block is one command to copy"
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", home)
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
