"""Completions of Tab: keywords, functions, schemas, tables, columns, meta-commands. The choice is pure.

A statement is incomplete while typed, so completion does not parse the statement. The words before the cursor
decide.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from prompt_toolkit.completion import Completer, Completion

from deltasmelt.pipelines.sql_shell.catalog import sql_identifier
from deltasmelt.pipelines.sql_shell.meta_commands import COMPLETED
from deltasmelt.pipelines.sql_shell.splitting import split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

KEYWORDS: Final = tuple(
    re.findall(
        r"\w+",
        """
        ALL AND ANTI ARRAY AS ASC BETWEEN BY CACHE CASE CAST COLUMNS CREATE CROSS CUBE CURRENT DATABASES
        DECIMAL DESC DESCRIBE DISTINCT DROP ELSE END EXCEPT EXISTS EXPLAIN EXTENDED FALSE FILTER FIRST
        FOLLOWING FROM FULL FUNCTIONS GROUP GROUPING HAVING ILIKE IN INNER INTERSECT INTERVAL INTO IS JOIN
        LAST LATERAL LEFT LIKE LIMIT MAP NATURAL NOT NULL NULLS OFFSET ON OR ORDER OUTER OVER PARTITION
        PIVOT PRECEDING QUALIFY RANGE REPLACE RIGHT RLIKE ROLLUP ROW ROWS SELECT SEMI SET SETS SHOW SORT
        STRUCT TABLE TABLES TABLESAMPLE TEMPORARY THEN TIMESTAMP TRUE UNBOUNDED UNION UNPIVOT USE USING
        VALUES VIEW WHEN WHERE WINDOW WITH
        """,
    )
)
_PIECE: Final = re.compile(
    r"""`(?:[^`]|``)*`? | \w+ | \. | (?P<other>'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | --[^\n]* | .)""",
    re.VERBOSE | re.DOTALL,
)
_PART: Final = re.compile(r"`((?:[^`]|``)*)`?|(\w+)")
_NAME: Final = r"(?:`(?:[^`]|``)*`|\w+)"
_TABLES: Final = re.compile(
    rf"\b(?:from|join|table|describe|into|update)\s+({_NAME}(?:\s*\.\s*{_NAME})?)(?:\s+(?:as\s+)?({_NAME}))?",
    re.IGNORECASE,
)
_TABLE_NEXT: Final = re.compile(
    r"\b(?:from|join|table|describe|desc|into|update)\s+(?:extended\s+)?$", re.IGNORECASE
)
_LISTED: Final = re.compile(r"\bfrom\b[^()]*,\s*$", re.IGNORECASE)


@dataclass(slots=True)
class Names:
    """Names for completion: columns by ``layer.name``, and Spark's functions."""

    tables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    functions: tuple[str, ...] = ()


def candidates(before: str, names: Names) -> tuple[list[str], int]:
    """Return replacements for the word before the cursor, and the number of characters that they replace.

    `before` is the text before the cursor.
    """
    if before.lstrip().startswith("\\"):
        return _of_meta(before.lstrip(), names)
    parts = split(before)
    statement = "" if parts.rest is None else parts.rest.text + before[len(before.rstrip()) :]
    if parts.unclosed is not None and not parts.unclosed[0].startswith("name"):
        return [], 0
    word = ""
    for piece in _PIECE.finditer(statement):
        word = "" if piece["other"] else word + piece[0]
    scope, dot, typed = word.rpartition(".")
    head = statement[: len(statement) - len(word)]
    # After a dot follow the members of the schema, table or alias.
    words = _members(scope, statement, names) if dot else _words(head, statement, typed, names)
    prefix = typed.lstrip("`").lower()
    return [proposal for proposal in words if proposal.lstrip("`").lower().startswith(prefix)], len(typed)


def _of_meta(line: str, names: Names) -> tuple[list[str], int]:
    command, blank, argument = line.partition(" ")
    if not blank:
        return [word for word in COMPLETED if word.startswith(command)], len(command)
    offered: Iterable[str] = COMPLETED.get(command, ())
    if command == "\\d":
        offered = names.tables
    return [word for word in offered if word.startswith(argument)], len(argument)


def _members(scope: str, statement: str, names: Names) -> list[str]:
    """Return the members of a schema, a table or an alias."""
    parts = _parts(scope)
    in_schema = [name for name in names.tables if len(parts) == 1 and name.lower().startswith(f"{parts[0]}.")]
    if in_schema:
        return [sql_identifier(name.partition(".")[2]) for name in in_schema]
    return [sql_identifier(column) for column in _columns(parts, statement, names)]


def _columns(parts: list[str], statement: str, names: Names) -> Iterator[str]:
    name = ".".join(parts)
    for table, alias in _named(statement):
        if name in {alias, table, table.rpartition(".")[2]}:
            yield from _columns_of(table, names)
            return
    yield from _columns_of(name, names)


def _columns_of(table: str, names: Names) -> tuple[str, ...]:
    return next((columns for name, columns in names.tables.items() if name.lower() == table), ())


def _words(head: str, statement: str, typed: str, names: Names) -> list[str]:
    """Return the words possible at the begin of a name."""
    schemas = sorted({name.partition(".")[0] for name in names.tables})
    # After FROM and similar words follow tables.
    if _TABLE_NEXT.search(head) or _LISTED.search(head):
        tables = [
            f"{schema}.{sql_identifier(name)}"
            for schema, _, name in (table.partition(".") for table in names.tables)
        ]
        return [*(f"{schema}." for schema in schemas), *tables]
    columns = {
        sql_identifier(column): None for table, _ in _named(statement) for column in _columns_of(table, names)
    }
    lower = typed.islower()
    keywords = [word.lower() if lower else word for word in KEYWORDS]
    functions = [name for name in names.functions if name.lower() not in columns] if typed else []
    return [*columns, *keywords, *(f"{schema}." for schema in schemas), *functions]


def _named(statement: str) -> list[tuple[str, str]]:
    """Return the tables in a statement, in small letters, with their aliases."""
    keywords = {word.lower() for word in KEYWORDS}
    tables = []
    for table, alias in _TABLES.findall(statement):
        short = ".".join(_parts(alias))
        tables.append((".".join(_parts(table)), "" if short in keywords else short))
    return tables


def _parts(name: str) -> list[str]:
    return [(quoted.replace("``", "`") or plain).lower() for quoted, plain in _PART.findall(name)]


class LakeCompleter(Completer):
    """Tab at the prompt; `names` is called at each Tab, because the names may change with the cut."""

    def __init__(self, names: Callable[[], Names]) -> None:
        self._names = names

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002
        """Yield the possible words at the cursor."""
        words, length = candidates(document.text_before_cursor, self._names())
        return [Completion(word, start_position=-length) for word in words]
