"""Split an expression in Spark SQL into words, numbers, texts and signs. Pure.

Each token ends where Spark's own lexer ends the token. The tokenizer refuses everything that Spark reads in
another way or drops (comments, hints), and everything that depends on Spark's settings (texts in double
quotes). So the tokenizer reads no code of Spark as a text, and no text of Spark as code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
      | (?P<text>[rR]'[^']*'|'(?:[^'\\]|\\.|'')*')
      | (?P<bytes>[xX]'[0-9a-fA-F]*')
      | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?:[bB][dD]|[lLsSyYdDfF])?(?!\w))
      | (?P<quoted>`(?:[^`]|``)+`)
      | (?P<word>[^\W\d]\w*)
      | (?P<comment>--|/\*)
      | (?P<sign><=>|->|=>|::|<>|!=|<=|>=|\|\||==|<<|>>>|>>|[-+*/%=<>(),.:\[\]&|^~!])
    """,
    re.VERBOSE | re.DOTALL,
)
_HINTS: Final = {
    '"': "write columns as plain names or in `backticks`, text in 'single quotes'",
    "'": "a text without an end",
    "`": "a name without an end",
    ";": "write only one expression",
}
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([01][0-7]{2})|(.))|''", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of an expression, as written in `text`.

    Attributes:
        kind: ``text``, ``bytes``, ``number``, ``quoted`` (a name in backticks), ``word`` or ``sign``; ``end``
            after the last.
        spaced: white space precedes the token.
    """

    kind: str
    text: str
    spaced: bool = False

    @property
    def lower(self) -> str:
        """A word or sign in small letters; empty for every other kind."""
        return self.text.lower() if self.kind in {"word", "sign"} and self.text.isascii() else ""

    @property
    def name(self) -> str:
        """The name in a word or a quoted name."""
        return self.text[1:-1].replace("``", "`") if self.kind == "quoted" else self.text

    @property
    def value(self) -> str:
        """The content of a text, escapes resolved."""
        if self.text[0] in "rR":
            return self.text[2:-1]
        return _ESCAPE.sub(_unescaped, self.text[1:-1])


END: Final = Token("end", "")


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of an expression; raise a ValueError for a forbidden sign or comment."""
    tokens: list[Token] = []
    position, spaced = 0, False
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            character = text[position]
            hint = f": {_HINTS[character]}" if character in _HINTS else ""
            raise ValueError(f"{character!r} is not allowed here{hint}")
        kind = match.lastgroup or ""
        if kind == "comment":
            raise ValueError("comments are not allowed in an expression; write them as YAML comments")
        if match[0] in {"->", "=>"}:
            raise ValueError(f"{match[0]!r}: lambdas and named arguments cannot be used")
        if match[0] == "::":
            raise ValueError("'::' cannot be used; write cast(… as …)")
        if kind in {"text", "quoted"} and len(match[0].splitlines()) > 1:
            # The compiler indents queries line by line, also within texts.
            raise ValueError(r"a text or a name over several lines: write the end of a line as '\n'")
        if kind != "space":
            tokens.append(Token(kind, match[0], spaced))
        spaced = kind == "space"
        position = match.end()
    return tokens


def _unescaped(match: re.Match[str]) -> str:
    if match[0] == "''":
        return "'"
    for digits, base in ((match[1], 16), (match[2], 16), (match[3], 8)):
        if digits:
            code = int(digits, base)
            return chr(code) if code <= 0x10FFFF else "\ufffd"
    return {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "0": "\0", "Z": "\x1a"}.get(match[4], match[4])
