"""The fenced and indented blocks of all pages, and the commands in them. Pure."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
_FENCE: Final = re.compile(r"^( *)```([\w{}-]*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_INDENTED: Final = re.compile(r"(?:^    \S.*\n)+", re.MULTILINE)
_SPAN: Final = re.compile(r"(?<!`)`(smelt [^`\n]+(?:\n[^`\n]+)?)`(?!`)")
_SHELL: Final = frozenset({"sh", "console", "ini", "", "text"})
_END: Final = frozenset({"|", "&&", "||", ";", ">", ">>", "<", "2>", "#"})


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a page.

    Attributes:
        page: path from the repository's root.
        line: number of its first line, from 1.
        language: word after the fence; empty for an indented block.
        text: the block's text without indentation.
    """

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return every page for readers."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(path: Path) -> list[Block]:
    """Return the fenced and indented blocks of a page in order."""
    text = path.read_text(encoding="utf-8")
    page = str(path.relative_to(ROOT))
    parsed = [
        Block(page, _line(text, match.start(3)), match[2], _without_indent(match[3], match[1]))
        for match in _FENCE.finditer(text)
    ]
    unfenced_text = unfenced(text)
    parsed += [
        Block(page, _line(unfenced_text, match.start()), "", _without_indent(match[0], "    "))
        for match in _INDENTED.finditer(unfenced_text)
    ]
    return sorted(parsed, key=lambda block: block.line)


def unfenced(text: str) -> str:
    """Return a page's text with empty lines in place of fenced blocks."""
    return _FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)


def commands(block: Block) -> Iterator[list[str]]:
    """Return the words after `smelt` of each command line in a block, without the shell's syntax."""
    if block.language not in _SHELL:
        return
    for line in block.text.replace("\\\n", " ").splitlines():
        if re.search(r"(^|[\s/=])smelt ", line) and not line.startswith("#"):
            yield from _called(line)


def spans(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Return the words after `smelt` of each command in a page's text, with its line."""
    text = path.read_text(encoding="utf-8")
    for match in _SPAN.finditer(unfenced(text)):
        for words in _called(match[1].replace("\\|", "|")):
            yield _line(text, match.start()), words


def _called(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|&;><")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    try:
        words = list(lexer)
    except ValueError:  # an apostrophe in output that mentions a command
        words = line.split()
    while any(_is_smelt(word) for word in words):
        start = next(index for index, word in enumerate(words) if _is_smelt(word))
        words = words[start + 1 :]
        end = next((index for index, word in enumerate(words) if word in _END), len(words))
        yield words[:end]
        words = words[end:]


def _is_smelt(word: str) -> bool:
    return word == "smelt" or word.endswith("/bin/smelt")


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def _without_indent(text: str, indent: str) -> str:
    return "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))
