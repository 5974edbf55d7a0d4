"""Read the tokens of an expression one by one, and write a text for each. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from deltasmelt.gold.expressions.functions import INSTEAD, REFUSED
from deltasmelt.gold.expressions.tokens import END, Token, tokens_of
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Sequence

_INTERVAL_UNITS: Final = frozenset(("year", "month", "day", "hour", "minute", "second"))
_TYPES: Final = frozenset(
    """bigint binary boolean byte char character date dec decimal double float int integer long numeric real
    short smallint string timestamp timestamp_ltz timestamp_ntz tinyint varchar variant""".split()  # noqa: SIM905
)
_CLOSERS: Final = {">": 1, ">>": 2, ">>>": 3}


@dataclass(frozen=True, slots=True)
class ColumnReference:
    """A column of the row of an expression."""

    name: str


Part: TypeAlias = "str | ColumnReference"
Parts: TypeAlias = "tuple[Part, ...]"
"""SQL text and columns, in order."""


def parts_sql(parts: Parts, alias: str) -> str:
    """Return SQL text with every column taken from `alias`."""
    return "".join(part if isinstance(part, str) else quote(alias, part.name) for part in parts)


class Scanner:
    """Reader of tokens from left to right."""

    def __init__(self, text: str) -> None:
        self._tokens = tokens_of(text)
        self._place = 0
        self._closed = 0
        self._pieces: list[tuple[Part, ...]] = []
        self._read: list[tuple[Part, ...]] = []

    @property
    def _next(self) -> Token:
        return self._tokens[self._place] if self._place < len(self._tokens) else END

    def _after(self, ahead: int = 1) -> Token:
        place = self._place + ahead
        return self._tokens[place] if place < len(self._tokens) else END

    def _take(self, instead: str | ColumnReference | None = None) -> Token:
        """Read the next token; write the token itself, or `instead`."""
        token = self._next
        if token is END:
            raise self._unexpected()
        self._pieces.append((token.text if instead is None else instead,))
        self._read.append(self._pieces[-1])
        self._place += 1
        return token

    def _around(self, start: int, before: Sequence[Part], after: Sequence[Part]) -> None:
        """Write parts before the token at a position, and parts after the last token."""
        self._pieces[start] = (*before, *self._pieces[start])
        self._pieces[-1] = (*self._pieces[-1], *after)

    @property
    def parts(self) -> Parts:
        """The parts written so far, adjacent texts joined."""
        return self._parts_between(0, self._place)

    @property
    def read(self) -> Parts:
        """The parts read so far, without the additions of `_around`."""
        return self._joined(self._read, 0, self._place)

    def _parts_between(self, start: int, end: int) -> Parts:
        """Return the parts written for the tokens between two positions."""
        return self._joined(self._pieces, start, end)

    def _joined(self, pieces: Sequence[tuple[Part, ...]], start: int, end: int) -> Parts:
        parts: list[Part] = []
        for place in range(start, end):
            spaced = (" ",) if place > start and self._tokens[place].spaced else ()
            for part in (*spaced, *pieces[place]):
                if isinstance(part, str) and parts and isinstance(parts[-1], str):
                    parts[-1] += part
                else:
                    parts.append(part)
        return tuple(parts)

    def _is(self, *words: str) -> bool:
        return self._next.lower in words

    def _may(self, *words: str) -> bool:
        """Read the next token if the token is among these words or signs; return whether it is."""
        is_next = self._is(*words)
        if is_next:
            self._take()
        return is_next

    def _must(self, word: str) -> None:
        if not self._may(word):
            raise self._unexpected(word)

    def _unexpected(self, expected: str = "") -> ValueError:
        token = self._next
        if token is END:
            missing = f"{expected!r} is missing" if expected else "a part is missing"
            return ValueError(
                f"'(' is never closed: {missing}" if expected == ")" else f"{missing} at the end"
            )
        if token.lower in {")", "]"} and expected != token.lower:
            return ValueError(f"{token.text!r} has no opening bracket")
        if token.lower in REFUSED:
            return self._refused(token)
        if token.kind == "text":
            hint = (
                ": join texts by ||" if self._place and self._tokens[self._place - 1].kind == "text" else ""
            )
            return ValueError(f"{token.text} is not allowed here{hint}")
        hint = f"; {expected!r} is expected" if expected else ""
        return ValueError(f"{token.text!r} is not allowed here{hint}")

    @staticmethod
    def _refused(token: Token) -> ValueError:
        reason = REFUSED[token.lower]
        instead = INSTEAD.get(token.lower) or INSTEAD.get(reason)
        return ValueError(
            f"{token.text!r} is not allowed here: {reason} (a field is a function of its row)"
            + (f"; {instead}" if instead else "")
        )

    # Types: a type contains no value and no column, and so needs no parser.

    def _type(self) -> str:
        start = self._place
        self._one_type()
        if self._closed:
            raise ValueError("'>' has no opening '<'")
        return "".join(token.text for token in self._tokens[start : self._place])

    def _one_type(self) -> None:
        token = self._next
        if token.lower in _TYPES:
            self._take()
            if self._may("("):
                self._number()
                while self._may(","):
                    self._number()
                self._must(")")
        elif self._may("interval"):
            self._unit()
            if self._may("to"):
                self._unit()
        elif self._may("array"):
            self._must("<")
            self._one_type()
            self._close()
        elif self._may("map"):
            self._must("<")
            self._one_type()
            self._must(",")
            self._one_type()
            self._close()
        elif self._may("struct"):
            self._must("<")
            self._typed_field()
            while self._may(","):
                self._typed_field()
            self._close()
        else:
            raise ValueError(
                f"{token.text!r} is not a type" if token.text else "a type is missing at the end"
            )

    def _typed_field(self) -> None:
        self._name()
        self._may(":")
        self._one_type()

    def _close(self) -> None:
        """Read one ``>``, which may be a part of the last sign."""
        if not self._closed:
            if self._next.lower not in _CLOSERS:
                raise self._unexpected(">")
            self._closed = _CLOSERS[self._take().lower]
        self._closed -= 1

    def _unit(self) -> None:
        if not self._may(*_INTERVAL_UNITS):
            raise self._unexpected("day")

    def _number(self) -> None:
        if self._next.kind != "number":
            raise self._unexpected("a number")
        self._take()

    def _name(self) -> str:
        """Read an alias or the name of a field, and write the name in backticks."""
        if self._next.kind not in {"word", "quoted"}:
            raise self._unexpected("a name")
        name = self._next.name
        self._take(quote(name))
        return name
