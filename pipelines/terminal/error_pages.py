"""The pages about errors, one for each code: in the wheel, or in ``docs/errors`` of a source tree."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

_LINK: Final = re.compile(r"\[([^\]]*)\]\(([^)]*)\)")


@cache
def folder() -> Path:
    """Where the pages are."""
    packages = Path(__file__).resolve().parents[1]
    packaged = packages / "error_pages"
    return packaged if packaged.is_dir() else packages.parent / "docs" / "errors"


def codes() -> list[str]:
    """Every code that has a page, sorted."""
    return sorted(path.stem for path in folder().glob("*.md") if path.name != "README.md")


def has_page(code: str) -> bool:
    """Whether there is a page about errors of this code."""
    return (folder() / f"{code}.md").is_file()


def page(code: str) -> str:
    """The page in Markdown; of its links the text alone is left, as their targets are not at hand.

    Raises:
        FileNotFoundError: there is none for this code.
    """
    return _LINK.sub(r"\1", (folder() / f"{code}.md").read_text(encoding="utf-8"))


def meaning(code: str) -> str:
    """What the error means, in one sentence."""
    text = page(code).partition("**Meaning.**")[2].partition("\n\n")[0]
    return re.split(r"(?<=[.:])\s", " ".join(text.split()))[0]
