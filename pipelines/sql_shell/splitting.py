"""Splitting of Spark SQL text into statements at its semicolons. Pure.

A semicolon counts only where Spark reads a semicolon: outside a text, a name in backticks or a comment, and
outside ``BEGIN … END`` of an SQL script. Comments in brackets nest. A comment after ``--`` continues over a
line end after a backslash, as in Spark's grammar.

At the begin of a statement, a line with a leading backslash is a meta-command and ends with the line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from deltasmelt.pipelines.spark.sql_writes import LINE_COMMENT, after_comment

_OPENED: Final = {"'": "text in single quotes", '"': "text in double quotes", "`": "name in backticks"}
_TOKEN: Final = re.compile(
    rf"""(?P<blank>\s+) | (?P<line>{LINE_COMMENT})
      | (?P<raw>[rR](?:'[^']*'|"[^"]*"))
      | (?P<quoted>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`)
      | (?P<bracket>/\*) | (?P<end>;) | (?P<open>[rR]?['"]|`) | (?P<word>\w+) | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_LABEL: Final = re.compile(r"\w+\s*:\s*")
_WITHOUT_COUNT: Final = frozenset({"if", "while", "loop", "repeat", "for"})
"""Words after END for blocks not counted at their begin."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, or one meta-command, that begins at a `line`, counted from 1.

    `text` has no semicolon, and no leading blanks and comments.
    """

    text: str
    line: int

    @property
    def is_meta(self) -> bool:
        """True for a meta-command."""
        return self.text.startswith("\\")


@dataclass(frozen=True, slots=True)
class Split:
    """Text as statements.

    Attributes:
        statements: statements ended by a semicolon or, for a meta-command, by the line.
        rest: text after the last statement; None for blanks and comments alone.
        unclosed: description of the construct still open at the end, with the line of its begin.
    """

    statements: tuple[Statement, ...]
    rest: Statement | None = None
    unclosed: tuple[str, int] | None = None

    @property
    def complete(self) -> bool:
        """True if the text has no open rest."""
        return self.rest is None and self.unclosed is None

    @property
    def all(self) -> tuple[Statement, ...]:
        """Return the statements, including a last statement without a semicolon."""
        return self.statements if self.rest is None else (*self.statements, self.rest)


def split(text: str) -> Split:
    """Split text into its statements."""
    return _Scan(text).run()


class _Scan:
    def __init__(self, text: str) -> None:
        self._text = text
        self._begin: int | None = None
        self._depth = 0
        self._after_end = False
        self._statements: list[Statement] = []
        self._unclosed: tuple[str, int] | None = None

    def run(self) -> Split:
        at = 0
        while at < len(self._text):
            if self._begin is None and self._text[at] == "\\":
                at = self._meta(at)
                continue
            token = _TOKEN.match(self._text, at)
            assert token is not None  # noqa: S101 - the last alternative takes any character
            at = self._bracketed(token.start()) if token["bracket"] else self._take(token)
        unfinished = None if self._begin is None else self._statement(self._begin, len(self._text))
        return Split(tuple(self._statements), unfinished, self._unclosed)

    def _meta(self, at: int) -> int:
        end = self._text.find("\n", at)
        end = len(self._text) if end < 0 else end
        self._statements.append(self._statement(at, end))
        return end

    def _take(self, token: re.Match[str]) -> int:
        """Read a token outside bracketed comments; return the begin of the next token."""
        if token["blank"] or token["line"]:
            return token.end()
        if token["open"]:
            self._open(token.start(), _OPENED[token["open"][-1]])
            return len(self._text)
        if token["end"] and self._depth == 0:
            if self._begin is not None:
                self._statements.append(self._statement(self._begin, token.start()))
            self._begin, self._after_end = None, False
            return token.end()
        if self._begin is None:
            self._begin = token.start()
        if token["word"]:
            self._word(token["word"].lower(), token.start())
        else:
            self._after_end = False
        return token.end()

    def _word(self, word: str, at: int) -> None:
        """Count the blocks of an SQL script; other statements have no blocks."""
        after_end, self._after_end = self._after_end, False
        if self._depth == 0 and not after_end and not (word == "begin" and self._is_first(at)):
            return
        self._after_end = word == "end"
        if after_end and word in _WITHOUT_COUNT:
            self._depth += 1  # END IF closed nothing that was counted
        elif word == "end":
            self._depth -= 1
        elif word == "begin" or (word == "case" and not after_end):
            self._depth += 1

    def _is_first(self, at: int) -> bool:
        """Check whether only a block's label precedes in the statement."""
        before = self._text[self._begin : at]
        return not before or _LABEL.fullmatch(before) is not None

    def _bracketed(self, start: int) -> int:
        end = after_comment(self._text, start + len("/*"))
        if end is None:
            self._open(start, "comment /*")
            return len(self._text)
        return end

    def _open(self, at: int, kind: str) -> None:
        self._begin = at if self._begin is None else self._begin
        self._unclosed = (kind, self._line(at))

    def _statement(self, start: int, end: int) -> Statement:
        return Statement(self._text[start:end].rstrip(), self._line(start))

    def _line(self, at: int) -> int:
        return self._text.count("\n", 0, at) + 1
