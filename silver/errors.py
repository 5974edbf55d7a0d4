"""Definite errors that only the data can show: raised inside a query, told as a `TableError` outside.

A query that meets what it must not guess about calls ``raise_error`` with a marker. The statement then fails
as a whole and writes nothing, so the table keeps its last version, and the marker's code finds message and
remedy here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from bronze.errors import TableError
from silver.sql import literal

if TYPE_CHECKING:
    from bronze.identifiers import TableName

_PREFIX: Final = "deltasmelt:"
_SUFFIX: Final = ":deltasmelt"
_MARKER: Final = re.compile(rf"{_PREFIX}([a-z-]+):(.*?){_SUFFIX}", re.DOTALL)
_DETAIL_LENGTH: Final = 300
_RETAKE: Final = "take the table again: smelt snapshot FILE {table}"

_MEANINGS: Final = {
    "key-unrepresentable": (
        "a key value does not fit its Spark type ({detail})",
        "read the column as text: in the pipeline file, silver.types: {{{table}.<column>: string}}",
    ),
    "key-missing": (
        "a change came without its key",
        "let the replica identity cover the key: ALTER TABLE {table} REPLICA IDENTITY DEFAULT or FULL; then "
        + _RETAKE,
    ),
    "key-not-unique": (
        "two rows have the key ({detail})",
        "source.keys must name columns that are unique and not null; correct it, then " + _RETAKE,
    ),
    "row-missing": (
        "a change concerns a row that silver does not have (key {detail})",
        _RETAKE,
    ),
    "value-missing": (
        "an out-of-line value that PostgreSQL did not send is not in silver either (key {detail})",
        _RETAKE,
    ),
    "unknown-shape": (
        "a change was written with columns that no version of the table's shape has ({detail})",
        _RETAKE,
    ),
}


CODES: Final = frozenset(
    (
        *_MEANINGS,
        "identity-missing",
        "column-retyped",
        "table-recreated",
        "table-renamed",
        "column-name-reserved",
        "silver-name-clash",
    )
)
"""Codes of the errors that silver records."""


def marker(code: str, *details: str) -> str:
    """SQL that stops the statement with this code; `details` are SQL of strings."""
    if code not in _MEANINGS:
        raise ValueError(code)
    known = (f"coalesce({detail}, 'NULL')" for detail in details)
    parts = ", ".join([literal(f"{_PREFIX}{code}:"), *known, literal(_SUFFIX)])
    return f"raise_error(concat({parts}))"


def table_error(table: TableName, message: str) -> TableError | None:
    """The error that a failed statement's message carries; None where it failed for another reason."""
    found = _MARKER.search(message)
    if found is None:
        return None
    code, detail = found[1], found[2][:_DETAIL_LENGTH]
    meaning, remedy = _MEANINGS[code]
    return TableError(
        table, meaning.format(detail=detail, table=table), code=code, remedy=remedy.format(table=table)
    )
