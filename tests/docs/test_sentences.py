"""The pages are plain English: no sentence is long, nor a part between colons and semicolons."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pytest

from tests.docs.blocks import ROOT, pages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONGEST: Final = 30
_NOT_PROSE: Final = re.compile(r"^( *)```.*?^\1```|<!--.*?-->|^(?:    [^\n]*\n)+", re.MULTILINE | re.DOTALL)
_NEW: Final = re.compile(r"\n\s*\n|\n(?=\s*(?:[*-] |\d+\. |\||#))|\|")
_END: Final = re.compile(r"(?<=[.!?:;])[\s*)]+")


def sentences(text: str) -> Iterator[str]:
    """Return the sentences of a page; code counts as one word, a link as its text."""
    prose = re.sub(r"`[^`]*`", "code", _NOT_PROSE.sub("\n\n", text))
    for part in _NEW.split(re.sub(r"\]\([^)]*\)", "]", prose)):
        yield from _END.split(" ".join(part.split()))


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_sentence_of_a_page_is_long(path: Path) -> None:
    listed = sentences(path.read_text(encoding="utf-8"))
    long = [text for text in listed if sum(1 for word in text.split() if re.search(r"\w", word)) > LONGEST]
    assert long == []


def test_a_long_sentence_is_found_wherever_it_stands() -> None:
    words = "word " * 31
    for text in (words, f"* {words}", f"| a | {words} |", f"Short. {words}.", f"# Title\n{words}"):
        assert max(len(sentence.split()) for sentence in sentences(text)) > LONGEST, text
    assert max(len(sentence.split()) for sentence in sentences(f"```sh\n{words}\n```\n\n    {words}\n")) == 0
