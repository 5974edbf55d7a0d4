"""Report definite errors that only the data can show: raised inside a query, a `TableError` outside.

A query that cannot decide without a guess calls ``raise_error`` with a marker. The whole statement then fails
and writes nothing, so the table keeps its last version. The marker's code finds message and remedy in this
module.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import SmeltError, TableError, resnapshot_remedy
from deltasmelt.bronze.lake.spark_errors import cause_of
from deltasmelt.silver.sql import literal

if TYPE_CHECKING:
    from deltasmelt.bronze.identifiers import TableName

_PREFIX: Final = "deltasmelt:"
_SUFFIX: Final = ":deltasmelt"
_MARKER: Final = re.compile(rf"\[USER_RAISED_EXCEPTION\] {_PREFIX}([a-z-]+):(.*?){_SUFFIX}", re.DOTALL)
"""The marker in the form of `raise_error`: a message that quotes the statement contains the marker too."""
_NAME_REFUSED: Final = re.compile(
    r"\[(?:INVALID_SCHEMA_OR_RELATION_NAME|INVALID_TABLE_NAME|UC_INVALID_NAME)[\].]"
    r"|is not a valid (?:name for tables|object name)|InvalidObjectException"
)
"""Messages of Spark's session catalog, the Hive metastore and Unity Catalog that reject a name."""
_DETAIL_LENGTH: Final = 300
_RESNAPSHOT: Final = resnapshot_remedy("{table}")

_MEANINGS: Final = {
    "key-unrepresentable": (
        "a key value does not fit its Spark type ({detail})",
        "read the column as text: in the pipeline file, silver.types: {{{table}.<column>: string}}",
    ),
    "key-missing": (
        "a change has no key",
        "include the key in the replica identity: ALTER TABLE {table} REPLICA IDENTITY DEFAULT or FULL; then "
        + _RESNAPSHOT,
    ),
    "key-not-unique": (
        "two rows have the key ({detail})",
        "source.keys must name columns that are unique and not null; correct it, then " + _RESNAPSHOT,
    ),
    "row-missing": (
        "a change refers to a row that silver does not have (key {detail})",
        _RESNAPSHOT,
    ),
    "value-missing": (
        "PostgreSQL did not send an unchanged TOAST value, and silver does not have the value (key {detail})",
        _RESNAPSHOT,
    ),
    "unknown-shape": (
        "no version of the table's shape has the columns of a change ({detail})",
        _RESNAPSHOT,
    ),
}


# Codes of all errors recorded by silver.
CODES: Final = frozenset(
    (
        *_MEANINGS,
        "changes-removed",
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


def marker(code: str, *details: str) -> str:
    """Return SQL that stops the statement with this code; `details` are SQL of strings."""
    if code not in _MEANINGS:
        raise ValueError(code)
    texts = (f"coalesce({detail}, 'NULL')" for detail in details)
    parts = ", ".join([literal(f"{_PREFIX}{code}:"), *texts, literal(_SUFFIX)])
    return f"raise_error(concat({parts}))"


def definite(table: TableName, error: Exception) -> TableError | None:
    """Return the table's own error that ended its statement; None where no rule knows the failure."""
    if isinstance(error, TableError):
        return error
    message = str(error)
    match = _MARKER.search(message)
    if match is None:
        return name_refused(table, f"silver.{table.silver_name}") if _NAME_REFUSED.search(message) else None
    code, detail = match[1], match[2][:_DETAIL_LENGTH]
    meaning, remedy = _MEANINGS[code]
    return TableError(
        table, meaning.format(detail=detail, table=table), code=code, remedy=remedy.format(table=table)
    )


def name_refused(table: TableName, name: str, why: str = "") -> TableError:
    """Return the error of a table whose name the lake's catalog rejects, with an optional reason."""
    return TableError(
        table,
        f"the catalog rejects the table name {name}{why or ': it allows fewer names than PostgreSQL'}",
        code="catalog-name",
        remedy="rename the table at the source, or leave the table out with source.exclude; or set "
        "lake.path, where any name is allowed",
    )


def failure(table: TableName, error: Exception) -> TableError:
    """Return what ended a table's statement as the table's error, also where no rule knows the failure."""
    if isinstance(error, SmeltError) and not isinstance(error, TableError):
        return TableError(table, error.message, code=error.code, remedy=error.remedy)
    return definite(table, error) or TableError(
        table,
        f"the table could not be updated: {cause_of(error)}",
        code="table-failed",
        remedy="nothing to do at first: silver retries automatically, with growing pauses; if another "
        f"program changed the silver table, undo this change; or {_RESNAPSHOT.format(table=table)}",
    )
