"""The site's home shows the README's commands, comparison and guarantees, which stand in one place."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT


def test_home_shows_commands_comparison_and_guarantees() -> None:
    options = dict(
        re.findall(r"^:(start-after|end-before): (.+)$", (ROOT / "docs/index.md").read_text(), re.MULTILINE)
    )
    _, begin, rest = (ROOT / "README.md").read_text().partition(options["start-after"])
    shown, end, _ = rest.partition(options["end-before"])
    assert begin
    assert end
    assert re.findall(r"^## (.+)$", shown, re.MULTILINE) == [
        "Two commands", "Your own database", "Against whom", "What it guarantees",
    ]  # fmt: skip
