"""Refuse statements of `smelt sql` that would write: by their words, before Spark parses the statement. Pure.

A program that shows a lake must not change the lake, because the program holds no lock of the lake and no
lease. A Delta path (``delta.`lake/silver/orders```) bypasses every view. A table that a statement creates in
the session's schemas does not persist. So a statement may create temporary views and variables, and nothing
durable. Spark reports all further errors in a statement; a word that is unknown here is left to Spark.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.silver.sql import literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

LINE_COMMENT: Final = r"--(?:\\\n|[^\r\n])*"
"""Pattern of a comment to the end of the line; a backslash before the line feed continues the comment."""
_PIECE: Final = re.compile(
    rf"""\s*(?: (?P<skipped>{LINE_COMMENT}) | (?P<comment>/\*)
      | [rR](?:'[^']*'|"[^"]*") | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `(?:[^`]|``)*` | \w+ | . )""",
    re.VERBOSE | re.DOTALL,
)
_BRACKET: Final = re.compile(r"/\*|\*/")
_WRITES: Final = frozenset(
    """alter analyze apply call clone comment convert copy create deny drop export fsck generate grant import
    insert load merge msck optimize delete reorg repair replace restore revoke sync truncate undrop update
    vacuum""".split()  # noqa: SIM905
)
"""First words of statements with a durable effect."""
_IN_QUERIES: Final = {"insert": ("into", "overwrite"), "delete": ("from",), "merge": ("into",)}
"""Words that may follow the queries of WITH or FROM, each with its own next word."""
_TEMPORARY: Final = re.compile(
    r"create (?:or replace )?(?:global )?temp(?:orary)? |drop (?:temporary |view (?:if exists )?\S+(?: ;)*\Z)"
)
_NOT_BY_TEXT: Final = frozenset(("binary", "variant"))
REMEDY: Final = (
    "to store the rows of a query use --to FILE; to name them for later statements use CREATE TEMPORARY "
    "VIEW; write other tables in your own Spark session"
)


def refuse_writing(statement: str) -> None:
    """Refuse a statement that would write: ``sql-writes``."""
    found = writing_word(statement)
    if found:
        raise DefiniteError(
            f"statements on the lake may only read, and {found.upper()} writes",
            code="sql-writes",
            where="SQL",
            remedy=REMEDY,
        )


def writing_word(statement: str) -> str:
    """Return the word by which a statement would write; empty for a statement that only reads."""
    pieces = list(_pieces(statement))
    first = pieces[0].word if pieces else ""
    if first in _WRITES:
        begins = " ".join("name" if one.word.startswith("`") else one.word for one in pieces)
        return "" if _TEMPORARY.match(begins) else first
    words = [one.word for one in pieces]
    if first == "begin" or words[1:3] == [":", "begin"]:
        # Refuse a whole script: handlers, labels and loops give a writing word many places.
        return next((word for word in words if word in {*_WRITES, "execute"}), "")
    if first not in {"with", "from", "("}:
        return ""
    outside = [one.word for one in pieces if one.depth == 0]
    for before, word, following in zip(["", *outside], outside, outside[1:], strict=False):
        of_rows = following in _IN_QUERIES.get(word, ()) and (word != "delete" or before == ")")
        if of_rows or (word == "update" and "set" in outside):
            return word
    return ""


def spelled_out(statement: str, text_of: Callable[[str], str]) -> str:
    """Return the statement that an EXECUTE IMMEDIATE would run; any further statement unchanged.

    So the check sees the statement's words, and the statement's tables are found. `text_of` returns the value
    of an expression as text.

    Raises:
        DefiniteError: ``sql``: an argument is an array, a map or a struct.
    """
    pieces = list(_pieces(statement))
    if [one.word for one in pieces[:2]] != ["execute", "immediate"] or len(pieces) < 3:
        return statement
    into, using = (_first(pieces, word, len(statement)) for word in ("into", "using"))
    text = text_of(statement[pieces[1].end : min(into.start, using.start)])
    if into.word:
        return f"EXECUTE IMMEDIATE {literal(text)} {statement[into.start :]}"
    # Spark loses the arguments of USING on the way to a DataFrame. So constants replace the arguments'
    # places: an expression would find columns of the statement.
    arguments = _arguments(statement[using.end :])
    return _bound(text, [(name, _constant(value, text_of)) for name, value in arguments])


def _constant(expression: str, text_of: Callable[[str], str]) -> str:
    """Return an expression's value, computed once, as a constant of the expression's type."""
    described = f"to_json(named_struct('of', typeof({expression}), 'text', CAST({expression} AS STRING)))"
    found = json.loads(text_of(described))
    if "<" in found["of"] or found["of"] in _NOT_BY_TEXT:
        raise DefiniteError(
            f"USING does not accept a value of type {found['of']}",
            code="sql",
            where="SQL",
            remedy="write the value into the text, or run the statement in your own Spark session",
        )
    text = found.get("text")
    return f"CAST({'NULL' if text is None else literal(text)} AS {found['of']})"


def _first(pieces: Sequence[_Piece], word: str, end: int) -> _Piece:
    """Return the first occurrence of a word outside of parentheses; else an empty piece at the end."""
    return next((one for one in pieces if (one.word, one.depth) == (word, 0)), _Piece("", end, end, 0))


def _arguments(using: str) -> list[tuple[str, str]]:
    """Return USING's arguments as expressions in parentheses, each after its name or an empty text."""
    inner = re.fullmatch(r"\s*\((.*)\)\s*", using, re.DOTALL)
    listed = using if inner is None or any(one.depth < 0 for one in _pieces(inner[1])) else inner[1]
    commas = [one for one in _pieces(listed) if (one.word, one.depth) == (",", 0)]
    starts, ends = [0, *(one.end for one in commas)], [*(one.start for one in commas), len(listed)]
    found = []
    for text in (listed[start:end] for start, end in zip(starts, ends, strict=True)):
        pieces = list(_pieces(text))
        named = [one.word for one in pieces[-2:-1]] == ["as"]
        value = text[: pieces[-2].start] if named else text
        if value.strip():
            found.append((pieces[-1].word.strip("`") if named else "", f"({value.strip()})"))
    return found


def _bound(text: str, arguments: Sequence[tuple[str, str]]) -> str:
    """Return a statement with arguments in place of ``?`` and ``:name``."""
    named = {name: value for name, value in arguments if name}
    unnamed = [value for name, value in arguments if not name]
    pieces, written, at = list(_pieces(text)), list[str](), 0
    for before, one, after in zip([None, *pieces], pieces, [*pieces[1:], None], strict=False):
        marks = one.word == ":" and after is not None and (before is None or before.word != ":")
        if one.word == "?" and unnamed:
            written += [text[at : one.start], unnamed.pop(0)]
            at = one.end
        elif marks and after is not None and after.word in named:
            written += [text[at : one.start], named[after.word]]
            at = after.end
    return "".join([*written, text[at:]])


@dataclass(frozen=True, slots=True)
class _Piece:
    """A word in small letters, a name, a text or a sign, with the number of open parentheses."""

    word: str
    start: int
    end: int
    depth: int


def _pieces(statement: str) -> Iterator[_Piece]:
    """Yield the pieces of a statement, without blanks and comments."""
    at = depth = 0
    while (found := _PIECE.match(statement, at)) is not None:
        at = found.end()
        if found["comment"]:
            at = after_comment(statement, at) or len(statement)
        elif not found["skipped"]:
            piece = found[0].lstrip()
            depth -= piece == ")"
            yield _Piece(piece.lower(), at - len(piece), at, depth)
            depth += piece == "("


def after_comment(text: str, at: int) -> int | None:
    """Return the end of a bracketed comment, which may nest; None for an unclosed comment.

    `at` is the position after the comment's opening bracket.
    """
    depth = 1
    for found in _BRACKET.finditer(text, at):
        depth += 1 if found[0] == "/*" else -1
        if depth == 0:
            return found.end()
    return None
