"""Parse the small notations of a document file: names, orderings, targets of aggregates."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
    WithJsonSchema,
)

from deltasmelt.bronze.identifiers import TableName

NAME: Final = "[A-Za-z][A-Za-z0-9_]{0,99}"


_ORDERING: Final = re.compile(
    r"""\s*(?:`(?P<quoted>[^`]+)`|(?P<plain>\S+))
        (?:\s+(?P<direction>asc|desc))?
        (?:\s+nulls\s+(?P<nulls>first|last))?\s*""",
    re.IGNORECASE | re.VERBOSE,
)


_NAME_PART: Final = re.compile(r'(?:"(?:[^"]|"")+"|[^".\s]+)')


# The pattern excludes characters that Parquet and Delta reject in names of unmapped columns, and characters
# that every query would have to quote.
FIELD_NAME: Final = re.compile(r"[^\s,;{}()=.`]+")


def _table(text: str) -> str:
    TableName.parse(text)
    return text


def _ordering(text: str) -> str:
    parse_ordering(text)
    return text


def _field_name(text: str) -> str:
    if not FIELD_NAME.fullmatch(text):
        raise ValueError(
            f"{text!r} cannot be the name of a field: spaces and , ; {{ }} ( ) = . ` are not allowed"
        )
    return text


Name: TypeAlias = Annotated[str, StringConstraints(min_length=1)]


FieldName: TypeAlias = Annotated[
    str,
    AfterValidator(_field_name),
    WithJsonSchema({"type": "string", "pattern": f"^{FIELD_NAME.pattern}$"}),
]


TableText: TypeAlias = Annotated[
    str, AfterValidator(_table), WithJsonSchema({"type": "string", "pattern": r"^.+\..+$"})
]


Conditions: TypeAlias = Annotated[dict[Name, Name], Field(min_length=1)]


Ordering: TypeAlias = Annotated[str, AfterValidator(_ordering)]


Orderings: TypeAlias = Annotated[list[Ordering], Field(min_length=1)]


Elements: TypeAlias = Annotated[int, Field(ge=1, le=1_000_000)]


Levels: TypeAlias = Annotated[int, Field(ge=2, le=16)]


Snippet: TypeAlias = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]


@dataclass(frozen=True, slots=True)
class OrderedColumn:
    """An entry of `order_by`. By default NULLs are placed as in PostgreSQL: last ascending, else first."""

    column: str
    descending: bool = False
    nulls_first: bool = False


def parse_ordering(text: str) -> OrderedColumn:
    """Read ``column [asc|desc] [nulls first|last]``, the name in backticks if it has spaces.

    Raises:
        ValueError: the text has another form.
    """
    match = _ORDERING.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an ordering (expected: column [asc|desc] [nulls first|last])")
    descending = (match["direction"] or "asc").lower() == "desc"
    nulls_first = descending if match["nulls"] is None else match["nulls"].lower() == "first"
    return OrderedColumn(match["quoted"] or match["plain"], descending, nulls_first)


def parse_target(text: str) -> tuple[TableName, str | None]:
    """Read ``schema.table`` or ``schema.table.column``; raise a ValueError for any other form."""
    parts = _NAME_PART.findall(text)
    if ".".join(parts) != text or len(parts) not in {2, 3}:
        raise ValueError(f"{text!r} is not a table or column (expected schema.table or schema.table.column)")
    table = TableName.parse(".".join(parts[:2]))
    if len(parts) == 2:
        return table, None
    column = parts[2]
    return table, column[1:-1].replace('""', '"') if column.startswith('"') else column
