"""Statements that would write, which `smelt sql` refuses: by their words, before Spark sees them. Pure.

What shows a lake must not change one: it holds no lock of the lake and no lease, and Delta takes a path
(``delta.`lake/silver/orders```) past every view. Nor is anything kept that a statement makes in the schemas
of such a session. So a statement may make temporary views and variables, and nothing that lasts.

Spark says what else is wrong with a statement: a word that is unknown here is left to Spark.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from bronze.errors import DefiniteError

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECE: Final = re.compile(
    r"""\s*(?: (?P<skipped>--(?:\\\r?\n|[^\n])*) | (?P<comment>/\*)
      | [rR](?:'[^']*'|"[^"]*") | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `(?:[^`]|``)*` | \w+ | . )""",
    re.VERBOSE | re.DOTALL,
)
_BRACKET: Final = re.compile(r"/\*|\*/")
_WRITES: Final = frozenset(
    """alter analyze apply call clone comment convert copy create deny drop export fsck generate grant import
    insert load merge msck optimize delete reorg repair replace restore revoke sync truncate undrop update
    vacuum""".split()  # noqa: SIM905
)
"""First words of statements that leave something behind."""
_IN_QUERIES: Final = frozenset(("insert", "delete", "update", "merge"))
"""Those that may follow a list of WITH."""
_TEMPORARY: Final = re.compile(
    r"create (?:or replace )?(?:global )?temp(?:orary)? |drop (?:temporary |view (?:if exists )?\S+\Z)"
)
_BEGINS_ANOTHER: Final = frozenset((";", "begin", "then", "else", "do", "loop", "repeat"))
"""Words and signs of SQL scripts before a statement."""
REMEDY: Final = (
    "--to FILE keeps the rows of a query, and CREATE TEMPORARY VIEW names them for later statements; write "
    "other tables in a Spark session of your own"
)


def refuse_writing(statement: str) -> None:
    """Refuse a statement that would write.

    Raises:
        DefiniteError: ``sql-writes``.
    """
    found = writing_word(statement)
    if found:
        raise DefiniteError(
            f"statements over the lake only read, and {found.upper()} writes",
            code="sql-writes",
            where="SQL",
            remedy=REMEDY,
        )


def writing_word(statement: str) -> str:
    """Return the word by which a statement would write; empty where it does not."""
    pieces = list(_pieces(statement))
    words = [piece for piece, _ in pieces]
    depths = [depth for _, depth in pieces]
    first = words[0] if words else ""
    if first in _WRITES:
        begins = " ".join(re.sub(r"\A`.*`\Z", "name", word, flags=re.DOTALL) for word in words)
        return "" if _TEMPORARY.match(begins) else first
    for before, word, depth in zip(words, words[1:], depths[1:], strict=False):
        after_queries = first in {"with", "("} and before == ")" and depth == 0 and word in _IN_QUERIES
        into = first == "from" and word == "insert" and depth == 0
        if after_queries or into or ("begin" in words[:4] and before in _BEGINS_ANOTHER and word in _WRITES):
            return word
    return ""


def _pieces(statement: str) -> Iterator[tuple[str, int]]:
    """Yield words in small letters, names, texts and signs, each with the parentheses that are open there."""
    at = depth = 0
    while (found := _PIECE.match(statement, at)) is not None:
        at = found.end()
        if found["comment"]:
            at = _after_comment(statement, at)
        elif not found["skipped"]:
            piece = found[0].strip().lower()
            depth -= piece == ")"
            yield piece, depth
            depth += piece == "("


def _after_comment(statement: str, at: int) -> int:
    """Return where a comment in brackets ends, within which others may be."""
    depth = 1
    for found in _BRACKET.finditer(statement, at):
        depth += 1 if found[0] == "/*" else -1
        if depth == 0:
            return found.end()
    return len(statement)
