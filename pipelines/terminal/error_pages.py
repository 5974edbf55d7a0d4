"""The pages about errors, one for each code: in the wheel, or in ``docs/errors`` of a source tree."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

_LINK: Final = re.compile(r"\[([^\]]*)\]\(([^)]*)\)")


@cache
def folder() -> Path:
    """Return the folder of the pages."""
    packages = Path(__file__).resolve().parents[1]
    packaged = packages / "error_pages"
    return packaged if packaged.is_dir() else packages.parent / "docs" / "errors"


def codes() -> list[str]:
    """Return every code with a page, sorted."""
    return sorted(path.stem for path in folder().glob("*.md") if path.name != "README.md")


def has_page(code: str) -> bool:
    """Check whether the code has a page."""
    return (folder() / f"{code}.md").is_file()


def page(code: str) -> str:
    """Return the page in Markdown; links become plain text, as their targets are not installed.

    Raises:
        FileNotFoundError: the code has no page.
    """
    return _LINK.sub(r"\1", (folder() / f"{code}.md").read_text(encoding="utf-8"))


def meaning_of(code: str) -> str:
    """Return the error's meaning in one sentence."""
    text = page(code).partition("**Meaning.**")[2].partition("\n\n")[0]
    return re.split(r"(?<=[.:])\s", " ".join(text.split()))[0]
