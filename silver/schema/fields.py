"""Read and write columns of a silver table in Delta's form, with the comment that names their source. Pure.

A column carries its source's attnum in its comment (``attribute 3``), inside the schema itself. So silver
recognises a column after a rename, and distinguishes two swapped names from two changed types. A column with
a value for older rows also has this value (``attribute 3; rows before it: 7``) until all rows have the value
(`silver.schema.alter`). Only then the source's own comment comes first (``in cents (attribute 3)``).

The source's comment is any text, and may resemble silver's own comment. Silver recognises its own forms
first. A comment that would be mistaken for an own form is in quotation marks, and no own form begins with a
quotation mark.
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

_JSON_TYPES: Final = {ddl: plain for plain, ddl in _TYPES.items()}
_WORDS: Final = "|".join([*_JSON_TYPES, "ARRAY", "MAP", "STRUCT", r"DECIMAL(?=\()"])
_TYPE: Final = re.compile(rf"({_WORDS})\b(?:\((\d+), ?(\d+)\))?")
FIELD_NAME: Final = re.compile(r"`((?:[^`]|``)*)`")


@dataclass(frozen=True, slots=True)
class DeltaColumn:
    """A column that a silver table has.

    Attributes:
        attnum: attnum of the source's column; None for deltasmelt's own column.
        ddl: Spark type, spelt as in `silver.schema.types.Reading`.
        missing: PostgreSQL's text of the value that older rows still need; None if rows need no value.
    """

    name: str
    attnum: int | None
    ddl: str
    missing: str | None = None
    comment: str = field(default="", compare=False)


def fields_of(schema: dict[str, Any]) -> list[DeltaColumn]:
    """Return the columns in a Delta schema (its JSON form)."""
    fields = []
    for entry in schema["fields"]:
        comment = entry.get("metadata", {}).get("comment", "")
        attnum, missing = _parsed(comment)
        fields.append(DeltaColumn(entry["name"], attnum, ddl_of(entry["type"]), missing, comment))
    return fields


def believed(actual: Sequence[DeltaColumn], columns: Iterable[SilverColumn]) -> list[DeltaColumn]:
    """Return the columns with every attnum at most once; further columns lose their attnum and stay.

    A user's comment on an added column may resemble an own form. The column with the source's name comes from
    the source. If no column has this name, silver believes none. `columns` are the columns of the wanted
    shape.
    """
    names = {column.attnum: column.name for column in columns}
    claims: Counter[int | None] = Counter(column.attnum for column in actual if column.attnum is not None)
    lost = {
        column.name
        for column in actual
        if claims[column.attnum] > 1 and column.name != names.get(column.attnum)
    }
    return [
        replace(column, attnum=None, missing=None) if column.name in lost else column for column in actual
    ]


def is_of_source(comment: str) -> bool:
    """Check whether a column's comment links the column to the source."""
    return _parsed(comment)[0] is not None


def _parsed(comment: str) -> tuple[int | None, str | None]:
    """Return the attnum in a comment, and the value that rows still need."""
    if match := _ATTRIBUTE.fullmatch(comment):
        return (int(match[1]) if match[1] else None), match[2]
    commented = _COMMENTED.fullmatch(comment)
    return (int(commented[1]) if commented else None), None


def ddl_of(plain: str | dict[str, Any]) -> str:
    """Return the SQL name of a type in the JSON form of a schema."""
    if isinstance(plain, str):
        return _TYPES.get(plain, plain.upper())
    if plain["type"] == "array":
        return f"ARRAY<{ddl_of(plain['elementType'])}>"
    if plain["type"] == "map":
        return f"MAP<{ddl_of(plain['keyType'])}, {ddl_of(plain['valueType'])}>"
    fields = (f"{quote(entry['name'])}: {ddl_of(entry['type'])}" for entry in plain["fields"])
    return f"STRUCT<{', '.join(fields)}>"


def json_of(ddl: str) -> str | dict[str, Any]:
    """Return a type's form in the JSON of a schema: the inverse of `ddl_of`.

    Raises:
        ValueError: the text is not a type, or a type that `_TYPES` lacks.
    """
    found, end = _json_at(ddl, 0)
    if end < len(ddl):
        raise ValueError(f"not the name of a type: {ddl}")
    return found


def _json_at(ddl: str, start: int) -> tuple[str | dict[str, Any], int]:
    """Return the JSON form of the type that begins at a position, and the position after the type."""
    word = _TYPE.match(ddl, start)
    if word is None:
        raise ValueError(f"not the name of a type: {ddl[start:]}")
    kind, end = word[1], word.end()
    if kind == "DECIMAL" and word[2]:
        return f"decimal({int(word[2])},{int(word[3])})", end
    if kind == "ARRAY":
        element, end = _json_at(ddl, _after("<", ddl, end))
        found: dict[str, Any] = {"type": "array", "elementType": element, "containsNull": True}
    elif kind == "MAP":
        key, end = _json_at(ddl, _after("<", ddl, end))
        value, end = _json_at(ddl, _after(", ", ddl, end))
        found = {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    elif kind == "STRUCT":
        fields, separator = [], "<"
        while not ddl.startswith(">", end):
            name = FIELD_NAME.match(ddl, _after(separator, ddl, end))
            if name is None:
                raise ValueError(f"not the name of a field: {ddl[end:]}")
            plain, end = _json_at(ddl, _after(": ", ddl, name.end()))
            fields.append(field_of(name[1].replace("``", "`"), plain))
            separator = ", "
        found = {"type": "struct", "fields": fields}
    else:
        return _JSON_TYPES[kind], end
    return found, _after(">", ddl, end)


def _after(expected: str, ddl: str, at: int) -> int:
    if not ddl.startswith(expected, at):
        raise ValueError(f"not the name of a type: {ddl[at:]}")
    return at + len(expected)


def field_of(name: str, plain: str | dict[str, Any], comment: str | None = None) -> dict[str, Any]:
    """Return a column, or a field of a struct, in the JSON of a schema."""
    metadata = {} if comment is None else {"comment": comment}
    return {"name": name, "type": plain, "nullable": True, "metadata": metadata}


def definition(column: SilverColumn, *, filled: bool = True) -> str:
    """Return a column's definition in CREATE TABLE and ADD COLUMNS; see `comment_of`."""
    comment = "" if column.attnum is None else f" COMMENT {literal(comment_of(column, filled=filled))}"
    return f"{quote(column.name)} {column.spark_type}{comment}"


def comment_of(column: SilverColumn, *, filled: bool) -> str:
    """Return the comment that names a column's source; unless `filled`, also the value for older rows."""
    identity = f"attribute {column.attnum}"
    if not filled and column.missing is not None:
        return f"{identity}; rows before it: {column.missing}"
    if column.comment is None:
        return identity
    comment = f"{column.comment} ({identity})"
    return f'"{column.comment}" ({identity})' if _ATTRIBUTE.fullmatch(comment) else comment


def former_name(name: str, attnum: int | None, ddl: str) -> str:
    """Return the name of a column that makes room for a column of another type."""
    kind = re.sub(r"\W+", "_", ddl.lower()).strip("_")
    return f"{name}__{attnum}_{kind}"


def free_name(name: str, names: Iterable[str]) -> str:
    """Return a name that no column has: this name, or this name with a number."""
    used = {folded(used_name) for used_name in names}
    numbered = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    return next(number_name for number_name in numbered if folded(number_name) not in used)
