"""Columns of a silver table as Delta keeps them, and the comment that says where each comes from. Pure.

A column carries its source's attnum in its comment (``attribute 3``), inside the schema itself. So a column
is recognised after a rename, and two swapped names are distinguished from two changed types. Where the source
has a comment on the column, that comes first (``in cents (attribute 3)``).

A column that came with a value for the rows before it is added with that value in its comment, too
(``attribute 3; rows before it: 7``), until all rows have it (`silver.schema.alter`); the source's own comment
comes then.

What the source says is any text, and may look like one of ours. Ours are recognised first; a comment that
would then be taken for one stands in quotation marks, which none of ours begins with. What somebody says of
a column of his own may look like one, too: of columns that name one attnum at most one is believed.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.identifiers import folded
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deltasmelt.silver.schema.catalog import SilverColumn

_ATTRIBUTE: Final = re.compile(r"(?:attribute (\d+)(?:; |$))?(?:rows before it: (.*))?", re.DOTALL)
_COMMENTED: Final = re.compile(r".* \(attribute (\d+)\)", re.DOTALL)
_TYPES: Final = {
    "long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT", "float": "FLOAT",
    "double": "DOUBLE", "string": "STRING", "boolean": "BOOLEAN", "binary": "BINARY", "date": "DATE",
    "timestamp": "TIMESTAMP", "timestamp_ntz": "TIMESTAMP_NTZ", "variant": "VARIANT",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DeltaColumn:
    """A column that a silver table has.

    Attributes:
        attnum: of the source's column that it comes from; None for our own.
        ddl: Spark type, spelt as in `silver.schema.types.Reading`.
        missing: PostgreSQL's text of the value that the rows still have to get; None where they have theirs.
        comment: as the table has it; empty where there is none.
    """

    name: str
    attnum: int | None
    ddl: str
    missing: str | None = None
    comment: str = field(default="", compare=False)


def fields_of(schema: dict[str, Any]) -> list[DeltaColumn]:
    """The columns in a Delta schema (its JSON form)."""
    found = []
    for one in schema["fields"]:
        comment = one.get("metadata", {}).get("comment", "")
        attnum, missing = _said(comment)
        found.append(DeltaColumn(one["name"], attnum, ddl_of(one["type"]), missing, comment))
    return found


def believed(actual: Sequence[DeltaColumn], columns: Iterable[SilverColumn]) -> list[DeltaColumn]:
    """The columns where no two have the same attnum; those that are not believed are nobody's, so they stay.

    The one that has the source's name comes from the source. Where none has it, none is believed.

    Args:
        actual: the columns that a table has.
        columns: of the wanted shape.
    """
    names = {column.attnum: column.name for column in columns}
    claims: Counter[int | None] = Counter(one.attnum for one in actual if one.attnum is not None)
    lost = {one.name for one in actual if claims[one.attnum] > 1 and one.name != names.get(one.attnum)}
    return [replace(one, attnum=None, missing=None) if one.name in lost else one for one in actual]


def is_of_source(comment: str) -> bool:
    """Whether a column's comment says that it comes from the source."""
    return _said(comment)[0] is not None


def _said(comment: str) -> tuple[int | None, str | None]:
    """The attnum that a comment names, and the value that rows still have to get."""
    if match := _ATTRIBUTE.fullmatch(comment):
        return (int(match[1]) if match[1] else None), match[2]
    commented = _COMMENTED.fullmatch(comment)
    return (int(commented[1]) if commented else None), None


def ddl_of(plain: str | dict[str, Any]) -> str:
    """A type in the JSON form of a schema, as SQL names it."""
    if isinstance(plain, str):
        return _TYPES.get(plain, plain.upper())
    if plain["type"] == "array":
        return f"ARRAY<{ddl_of(plain['elementType'])}>"
    if plain["type"] == "map":
        return f"MAP<{ddl_of(plain['keyType'])}, {ddl_of(plain['valueType'])}>"
    fields = (f"{quote(one['name'])}: {ddl_of(one['type'])}" for one in plain["fields"])
    return f"STRUCT<{', '.join(fields)}>"


def definition(column: SilverColumn, *, filled: bool = True) -> str:
    """A column as CREATE TABLE and ADD COLUMNS name it; see `comment_of`."""
    comment = "" if column.attnum is None else f" COMMENT {literal(comment_of(column, filled=filled))}"
    return f"{quote(column.name)} {column.spark_type}{comment}"


def comment_of(column: SilverColumn, *, filled: bool) -> str:
    """The comment that says where a column comes from; not `filled`: and what its older rows still need."""
    own = f"attribute {column.attnum}"
    if not filled and column.missing is not None:
        return f"{own}; rows before it: {column.missing}"
    if column.comment is None:
        return own
    comment = f"{column.comment} ({own})"
    return f'"{column.comment}" ({own})' if _ATTRIBUTE.fullmatch(comment) else comment


def former_name(name: str, attnum: int | None, ddl: str) -> str:
    """The name of a column that had to make room for one of another type."""
    kind = re.sub(r"\W+", "_", ddl.lower()).strip("_")
    return f"{name}__{attnum}_{kind}"


def free_name(name: str, taken: Iterable[str]) -> str:
    """A name that no column has: this one, or with a number after it."""
    used = {folded(one) for one in taken}
    numbered = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    return next(one for one in numbered if folded(one) not in used)
