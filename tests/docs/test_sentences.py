"""Pages and messages are plain English: short sentences with a subject, no idiom, few pronouns.

The patterns are those of `tests.words`, which measures docstrings. Sentences that readers stumbled over show
that each claim can fail.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pytest

from tests.docs.blocks import ROOT, pages
from tests.words import CHAT, HEADLESS, IDIOM, Measure, measure, messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

LONGEST: Final = 30
PRONOUNS: Final = 75
"""Most pronouns for 1,000 words of all pages; docstrings have at most 55, but pages join their sentences."""
PRONOUNS_OF_PAGE: Final = 115
"""Most for a page of at least 150 words."""
PRONOUNS_OF_MESSAGES: Final = 55
PACKAGES: Final = ("bronze", "silver", "gold", "pipelines", "deltasmelt")
_NOT_PROSE: Final = re.compile(r"^( *)```.*?^\1```|<!--.*?-->|^(?:    [^\n]*\n)+", re.MULTILINE | re.DOTALL)
_NEW: Final = re.compile(r"\n\s*\n|\n(?=\s*(?:[*-] |\d+\. |\||#))|\|")
_END: Final = re.compile(r"(?<=[.!?:;])[\s*)]+")
_ERROR_CODE: Final = re.compile(r"\b[a-z]+(?:-[a-z0-9]+)+\b")


def sentences(text: str) -> Iterator[str]:
    """Return the sentences of a page; code counts as one word, a link as its text."""
    prose = re.sub(r"`[^`]*`", "code", _NOT_PROSE.sub("\n\n", text))
    for part in _NEW.split(re.sub(r"\]\([^)]*\)", "]", prose)):
        yield from _END.split(" ".join(part.split()))


def unplain(text: str) -> list[str]:
    """Return the idioms and chat words of a sentence, and its first word if the sentence has no subject."""
    words = CHAT.findall(text) + IDIOM.findall(text)
    begin = HEADLESS.match(text)
    # A question begins with What or Where, and so does a heading that is one.
    return [*words, begin[0]] if begin and not text.rstrip("*").endswith("?") else words


def long(listed: Iterable[str]) -> list[str]:
    """Return the sentences with too many words."""
    return [text for text in listed if sum(1 for word in text.split() if re.search(r"\w", word)) > LONGEST]


def total(listed: Iterable[str]) -> Measure:
    """Return the counts of all sentences together."""
    counts = Measure()
    for text in listed:
        counts = counts.plus(measure(text))
    return counts


def of_messages() -> Iterator[tuple[str, str]]:
    """Return each sentence of a message of the product, with its file and line."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for line, text in messages(path):
                for sentence in _END.split(" ".join(text.split())):
                    yield f"{path.relative_to(ROOT)}:{line}", sentence


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_sentence_of_a_page_is_long(path: Path) -> None:
    assert long(sentences(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_sentences_of_a_page_are_plain(path: Path) -> None:
    """No idiom, no program that says or asks, no sentence that begins with What; few pronouns."""
    listed = [_ERROR_CODE.sub("code", text) for text in sentences(path.read_text(encoding="utf-8"))]
    assert [(unplain(text), text) for text in listed if unplain(text)] == []
    counts = total(listed)
    assert counts.words < 150 or counts.rates()[0] <= PRONOUNS_OF_PAGE


def test_pages_have_few_pronouns() -> None:
    listed = (text for path in pages() for text in sentences(path.read_text(encoding="utf-8")))
    assert total(listed).rates()[0] <= PRONOUNS


def test_messages_are_plain() -> None:
    listed = list(of_messages())
    assert len(listed) > 2000
    assert [(place, text) for place, text in listed if unplain(text) or long([text])] == []
    assert total(text for _, text in listed).rates()[0] <= PRONOUNS_OF_MESSAGES


def test_a_long_sentence_is_found_wherever_it_stands() -> None:
    words = "word " * 31
    for text in (words, f"* {words}", f"| a | {words} |", f"Short. {words}.", f"# Title\n{words}"):
        assert max(len(sentence.split()) for sentence in sentences(text)) > LONGEST, text
    assert long(sentences(f"    code\n\nBelow: {words}")), "what follows indented code is prose"
    assert max(len(sentence.split()) for sentence in sentences(f"```sh\n{words}\n```\n\n    {words}\n")) == 0


@pytest.mark.parametrize(
    "text",
    [
        "A slot of another name would keep log for nobody.",
        "A table that cannot be replicated as it is stands under exclude",
        "What nobody foresaw names its log file, or is shown in full.",
        "What a server may refuse has another way.",
        "a catalog that is away",
        "The log says nothing of it.",
        "Of tables of 64 MiB and more, a line counts the files.",
        "Where it cannot be read, the command ends",
        "The stream goes on, and the position is made anew.",
        "The next start takes it for a new table.",
    ],
)
def test_sentences_that_readers_stumbled_over_are_found(text: str) -> None:
    assert unplain(text)
    assert not unplain("Where does a commit record its position?")
