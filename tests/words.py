"""Measure how plainly docstrings are written: ``python -m tests.words [--limit 55 5 25] [--worst N] PATH…``.

A docstring counts without its sections (Args, Returns, Raises). The measure has three columns:

* pronouns per 1,000 words: it, that, one, what, there …;
* headless sentences per 10,000 words: sentences that begin with Who, What, Where, Of …;
* chat per 10,000 words: say, tell, ask, look, come about … of a program.

psycopg, pyiceberg, dqx, dlt and ucx have 33 to 47, 0 to 1.7 and 2 to 15. The measure is a control, not the
aim: a reader whose second language is English reads each docstring once. `tests.docs.test_sentences` applies
the same patterns to pages and to messages.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


def _pattern(words: str) -> re.Pattern[str]:
    alternatives = "|".join(word.replace("_", " ") for word in words.split())
    return re.compile(rf"\b(?:{alternatives})\b", re.IGNORECASE)


PRONOUN: Final = _pattern(
    "it its itself that this these those one ones other others another who whoever whom whose what whatever "
    "which where there here such same they them their"
)
CHAT: Final = _pattern(
    "say says said saying tell tells told telling ask asks asked look looks looked looking "
    "come_about comes_about came_about taken_for take_for takes_for took_for goes_on go_on gone_on put_back "
    "made_anew thereafter thereof beside besides nobody somebody anybody everybody of_ours of_its_own"
)
IDIOM: Final = _pattern(
    "anew for_good for_ever all_the_same in_spite_of without_a_word is_away are_away at_hand to_be_had "
    "let_go puts_back given_up heals mends lie_in lies_in stand_in stands_in stands_under stands_there "
    "stands_still stood_still as_it_is as_they_are somebody_else whoever takes_it_for take_it_for"
)
"""Idioms that pages and messages do not use."""
HEADLESS: Final = re.compile(
    r"(?:Who|Whoever|What|Whatever|Where|Whose|Those|Such|The same|Of (?:a|an|the|two|one|such|those|what|"
    r"all|each|it|some|many|more|them|ours|others?|columns|rows|tables))\b"
)
_SECTION: Final = re.compile(r"\n\s*(?:Args|Arguments|Attributes|Returns|Raises|Yields):")
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\"(])")
_PROSE: Final = re.compile(r"(?:[A-Za-z][a-z]+[ ,:;]+){3}[a-z]{2}")
_CODE: Final = re.compile(
    r"[\\|^$\n]|\b(?:AS|SELECT|FROM|WHERE|CREATE|SET|LOCK|CAST|NULL|AND|OVER|WHEN|LONG)\b"
)
_SHORT: Final = 3
"""Sentences of so few words are not listed."""


class Measure(NamedTuple):
    """Counts of a package's docstrings."""

    words: int = 0
    pronouns: int = 0
    headless: int = 0
    chat: int = 0

    def plus(self, other: Measure) -> Measure:
        """Return the sums of two measures."""
        return Measure(*map(sum, zip(self, other, strict=True)))

    def rates(self) -> tuple[float, float, float]:
        """Return pronouns per 1,000 words, headless sentences and chat per 10,000 words."""
        words = max(self.words, 1)
        return self.pronouns * 1e3 / words, self.headless * 1e4 / words, self.chat * 1e4 / words


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring in a file, attributes included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for item in body if documented else body[1:]:
            match item:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield item.lineno, text


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string of a file that reads like prose; a value in a string is one word."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    # A docstring is no message, nor is a list of words that `split` takes apart.
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr | ast.Attribute)}
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr(values=values):
                skipped.update(map(id, values))
                text = "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "value" for part in values
                )
            case ast.Constant(value=str(text)) if id(node) not in skipped:
                pass
            case _:
                continue
        if _PROSE.search(text) and not _CODE.search(text):
            yield node.lineno, text


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a docstring without its sections."""
    return _SENTENCE.split(" ".join(_SECTION.split(text, maxsplit=1)[0].split()))


def measure(sentence: str) -> Measure:
    """Measure one sentence."""
    return Measure(
        len(sentence.split()),
        len(PRONOUN.findall(sentence)),
        bool(HEADLESS.match(sentence)),
        len(CHAT.findall(sentence)),
    )


def main() -> int:
    """Print a row for each path; return 1 where a rate exceeds its limit."""
    parser = argparse.ArgumentParser(prog="python -m tests.words")
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--limit", nargs=3, type=float, default=[float("inf")] * 3)
    parser.add_argument("--worst", type=int, default=0, help="print so many of the worst sentences")
    arguments = parser.parse_args()
    above = False
    sentences: list[tuple[float, str]] = []
    for path in arguments.paths:
        total = Measure()
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            for line, text in docstrings(file):
                for sentence in sentences_of(text):
                    counts = measure(sentence)
                    total = total.plus(counts)
                    if counts.words > _SHORT:
                        bad = counts.pronouns + 2 * counts.headless + 2 * counts.chat
                        sentences.append((bad / counts.words, f"{file}:{line}: {sentence}"))
        rates = total.rates()
        above = above or any(rate > limit for rate, limit in zip(rates, arguments.limit, strict=True))
        sys.stdout.write(f"{path!s:24}{total.words:8} words{rates[0]:7.0f}{rates[1]:7.1f}{rates[2]:7.1f}\n")
    for rate, sentence in sorted(sentences, reverse=True)[: arguments.worst]:
        sys.stdout.write(f"{rate:.2f} {sentence}\n")
    if above:
        sys.stderr.write("error: the docstrings above exceed the limit; remedy: see CONTRIBUTING.md, Words\n")
    return int(above)


if __name__ == "__main__":
    sys.exit(main())
