"""Statements on a catalog's tables, and what their failures mean to those who open tables."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from bronze.lake.client import CommitFailedError, TableNotFoundError
from bronze.lake.named.place import address_of, parts_of
from bronze.lake.named.session import session_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

_MISSING: Final = frozenset(
    ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE")
)
_CONFLICTS: Final = ("DELTA_CONCURRENT_", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED")
_OTHERS: Final = ("ConcurrentTransactionException", "ConcurrentAppendException", "ConcurrentWriteException")


def session_for(uri: str) -> SparkSession:
    """The session that knows a table's catalog."""
    return session_of(parts_of(uri)[0])


def run(uri: str, text: str) -> DataFrame:
    """A statement on a table; ``{}`` in it is the table's name.

    Raises:
        TableNotFoundError: there is no such table.
        CommitFailedError: another writer came first.
        OSError: Spark cannot do it.
    """
    with failures(uri):
        return session_for(uri).sql(text.replace("{}", address_of(uri)))


@contextmanager
def failures(uri: str) -> Iterator[None]:
    """Spark's errors as those that every table's opener knows; see `run`."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a lake of files needs no Spark

    try:
        yield
    except PySparkException as error:
        said = str(error)
        condition = error.getCondition() or ""
        if condition.partition(".")[0] in _MISSING:
            raise TableNotFoundError(f"there is no table {address_of(uri)}") from error
        if condition.startswith(_CONFLICTS) or any(name in said for name in (*_CONFLICTS, *_OTHERS)):
            raise CommitFailedError(" ".join(said.split())[:500]) from error
        raise OSError(f"{address_of(uri)}: {' '.join(said.split())[:500]}") from error


def make_schema(uri: str) -> None:
    """Make the schema that a table lies in, where it is not there.

    It is looked for first: who may use a schema may not always make one.

    Raises:
        OSError: the catalog refuses.
    """
    catalog, schema, _ = parts_of(uri)
    name = f"{quoted(catalog)}.{quoted(schema)}"
    with failures(uri):
        spark = session_for(uri)
        if not spark.catalog.databaseExists(name):
            spark.sql(f"CREATE SCHEMA IF NOT EXISTS {name}")


def quoted(name: str) -> str:
    """A name as Spark SQL writes it."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text as Spark SQL writes it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
