"""Definite errors that only the data can show: raised inside a query, reported as a `TableError` outside.

A query that meets what it must not guess about calls ``raise_error`` with a marker. The statement then fails
as a whole and writes nothing, so the table keeps its last version. The marker's code finds message and remedy
here.

Whatever else ends a table's statement is a failure of that table too, as long as Spark answers at all. It is
reported in Spark's own words (`failure`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import SmeltError, TableError, resnapshot_remedy
from deltasmelt.silver.sql import literal

if TYPE_CHECKING:
    from deltasmelt.bronze.identifiers import TableName

_PREFIX: Final = "deltasmelt:"
_SUFFIX: Final = ":deltasmelt"
_MARKER: Final = re.compile(rf"\[USER_RAISED_EXCEPTION\] {_PREFIX}([a-z-]+):(.*?){_SUFFIX}", re.DOTALL)
"""As `raise_error` says it. A message that quotes the statement or its plan has the marker as well."""
_NAME_REFUSED: Final = re.compile(
    r"\[(?:INVALID_SCHEMA_OR_RELATION_NAME|INVALID_TABLE_NAME|UC_INVALID_NAME)[\].]"
    r"|is not a valid (?:name for tables|object name)|InvalidObjectException"
)
"""What Spark's session catalog, the Hive metastore and Unity Catalog say of a name."""
_DETAIL_LENGTH: Final = 300
_CONDITION: Final = re.compile(r"\[([A-Z0-9.]+_[A-Z0-9_.]+)\] (.*?)(?: SQLSTATE:|\n\s*at |\Z)", re.DOTALL)
_THROWN: Final = re.compile(r"^(?:Caused by: |: )((?:[a-z]\w*\.)+\w+.*)$", re.MULTILINE)
"""As Py4J prints what was thrown in the JVM, the innermost one last; a message may have such lines, too."""
_RESNAPSHOT: Final = resnapshot_remedy("{table}")

_MEANINGS: Final = {
    "key-unrepresentable": (
        "a key value does not fit its Spark type ({detail})",
        "read the column as text: in the pipeline file, silver.types: {{{table}.<column>: string}}",
    ),
    "key-missing": (
        "a change has no key",
        "make the replica identity cover the key: ALTER TABLE {table} REPLICA IDENTITY DEFAULT or FULL; then "
        + _RESNAPSHOT,
    ),
    "key-not-unique": (
        "two rows have the key ({detail})",
        "source.keys must name columns that are unique and not null; correct it, then " + _RESNAPSHOT,
    ),
    "row-missing": (
        "a change concerns a row that silver does not have (key {detail})",
        _RESNAPSHOT,
    ),
    "value-missing": (
        "an unchanged TOAST value, which PostgreSQL did not send, is not in silver either (key {detail})",
        _RESNAPSHOT,
    ),
    "unknown-shape": (
        "a change was written with columns that no version of the table's shape has ({detail})",
        _RESNAPSHOT,
    ),
}


CODES: Final = frozenset(
    (
        *_MEANINGS,
        "identity-missing",
        "column-retyped",
        "table-recreated",
        "table-renamed",
        "silver-settings-clash",
        "table-failed",
        "table-written-by-others",
        "type-override",
        "catalog-name",
        "catalog-name-taken",
        "log-entry-torn",
        "marks-gone",
        "key-type",
        "lake-commit-lost",
        "table-put-back",
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
        return name_refused(table, f"silver.{table.silver_name}") if _NAME_REFUSED.search(message) else None
    code, detail = found[1], found[2][:_DETAIL_LENGTH]
    meaning, remedy = _MEANINGS[code]
    return TableError(
        table, meaning.format(detail=detail, table=table), code=code, remedy=remedy.format(table=table)
    )


def name_refused(table: TableName, name: str, why: str = "") -> TableError:
    """A table that the lake's catalog gives no name.

    Args:
        table: the source's.
        name: that it would have.
        why: if it is not the name alone.
    """
    return TableError(
        table,
        f"the catalog takes no table {name}{why or ': it knows fewer names than PostgreSQL'}",
        code="catalog-name",
        remedy="rename the table at the source, or leave it out with source.exclude; or give lake.path, "
        "where any name can be",
    )


def failure(table: TableName, error: Exception) -> TableError:
    """The table's error where no rule knows what ended its statement."""
    if isinstance(error, TableError):
        return error
    if isinstance(error, SmeltError):
        return TableError(table, error.message, code=error.code, remedy=error.remedy)
    return TableError(
        table,
        f"the table could not be updated: {cause(error)}",
        code="table-failed",
        remedy="it is retried automatically, after growing pauses; if something else changed its silver "
        f"table, undo that; or {_RESNAPSHOT.format(table=table)}",
    )


def cause(error: Exception) -> str:
    """What Spark, or else the JVM, says of the innermost failure; of another one its kind and first line."""
    whole = str(error)
    found, thrown = _CONDITION.findall(whole), _THROWN.findall(whole)
    if found:
        condition, said = found[-1]
        text = f"[{condition}] {' '.join(said.split())}"
    elif thrown and whole.startswith("An error occurred while calling"):
        text = thrown[-1]
    else:
        text = f"{type(error).__name__}: {whole.strip().partition(chr(10))[0]}"
    return text if len(text) <= _DETAIL_LENGTH else f"{text[:_DETAIL_LENGTH]}…"
