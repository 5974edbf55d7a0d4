"""Statements on a catalog's tables: the meaning of their failures, and the ownership of names.

**Failures.** PySpark converts only some of the JVM's exceptions into its own. Delta's conflicts, a task's
`SparkException` and a store's ``IOException`` arrive in Py4J's wrapper. This module therefore classifies an
exception by the classes of its causes.

**Ownership.** A foreign table may already have a name that the pipeline needs, and ``CREATE TABLE IF NOT
EXISTS`` ignores any existing table. An existing table therefore belongs to the pipeline only if the table has
a property that only the pipeline's own CREATE sets. The pipeline leaves every foreign table unchanged.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.client import CommitFailedError, TableNotFoundError
from deltasmelt.bronze.lake.location import address_of, quoted
from deltasmelt.bronze.lake.place import catalog_of, parts_of
from deltasmelt.bronze.lake.spark_errors import SESSION_ENDED, is_broken, spark_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

# Table property that proves ownership of tables without a more specific property.
MADE_PROPERTY: Final = "deltasmelt.made"
# Error code for a name that a foreign table already has.
TAKEN: Final = "catalog-name-taken"


def is_made_by_us(properties: Mapping[str, str]) -> bool:
    """Check whether a table belongs to the pipeline by `MADE_PROPERTY`."""
    return MADE_PROPERTY in properties


def taken(uri: str) -> DefiniteError:
    """Return the error ``catalog-name-taken`` for a name that a foreign table already has."""
    return DefiniteError(
        f"{address_of(uri)} already exists, and is not a table of this pipeline",
        code=TAKEN,
        where=uri,
        remedy="drop or rename this table, or choose another lake.catalog",
    )


def require_ours(uri: str, properties: Mapping[str, str], proof: str) -> None:
    """Reject a catalog's table that this pipeline did not create.

    Args:
        proof: name of the property that only the pipeline's own CREATE sets.

    Raises:
        DefiniteError: ``catalog-name-taken``: the table is foreign.
    """
    if proof not in properties:
        raise taken(uri)


_MISSING: Final = frozenset(
    ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE")
)
# Conditions for a view or a table of another format; the pipeline's own objects are all Delta tables.
_ANOTHERS: Final = frozenset(
    (
        "EXPECT_TABLE_NOT_VIEW",
        "DELTA_CANNOT_DESCRIBE_VIEW_HISTORY",
        "DELTA_ONLY_OPERATION",
        "DELTA_TABLE_ONLY_OPERATION",
    )
)
_BEING_MADE: Final = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"
_CONFLICT: Final = re.compile(r"DELTA_CONCURRENT_|Concurrent\w*Exception$")
# Names of conditions and of Delta's exception classes.
_CHANGED: Final = re.compile(r"DELTA_(?:METADATA|PROTOCOL)_CHANGED|(?:Metadata|Protocol)ChangedException$")
# Condition in a message's first line; Spark Connect puts the class before the condition, in brackets.
_CONDITION: Final = re.compile(r"(?:^|: )\[([A-Z][A-Z0-9_.]+)\]|\((?:io|org|com)\.([\w.]+Exception)\)")
# Maximum number of causes to follow: a chain of causes may be circular.
_DEEPEST: Final = 20
_LENGTH: Final = 500


class TableChangedError(CommitFailedError):
    """Properties, columns or protocol changed during a commit, and Delta rejected the commit.

    The caller may retry the same commit if the commit does not depend on them.
    """


class TableBeingMadeError(OSError):
    """Another process is creating the table: the table has files, but no log yet."""


def session_for(uri: str) -> SparkSession:
    """Return the session that serves the lake of a catalog's table.

    Raises:
        ConfigurationError: ``catalog-session``: no session serves this lake.
    """
    return catalog_of(uri).session()


def run(uri: str, text: str) -> DataFrame:
    """Run a statement on a table; the table's name replaces the first ``{}``.

    Raises:
        TableNotFoundError: the table does not exist.
        CommitFailedError: another writer was faster.
        OSError: Spark cannot execute the statement.
    """
    with failures(uri):
        return session_for(uri).sql(text.replace("{}", address_of(uri), 1))


@contextmanager
def failures(uri: str) -> Iterator[None]:
    """Convert Spark's errors to those that every caller of `open_table` handles; see `run`.

    Raises:
        DefiniteError: ``spark-died``: the JVM has ended, or the server has ended the session.
    """
    try:
        yield
    except Exception as error:
        told = _told(error, uri)
        if told is None:
            raise
        raise told from error


def _told(error: Exception, uri: str) -> Exception | None:
    """Return the meaning of a Spark error; None for any further error."""
    if is_broken(error):
        # Definite: a JVM that has ended answers no further statement.
        return _died(
            uri,
            "Spark no longer answers: its JVM has ended, or cannot be reached",
            "read the log of the Spark application, then start the command again",
        )
    if not isinstance(error, spark_errors()):
        return None
    return meaning(error, uri, names_of(error))


def meaning(error: Exception, uri: str, names: Iterable[str]) -> Exception:
    """Return the meaning of a failed statement on a table.

    `names` are the conditions and classes of the error and its causes.
    """
    names = list(names)
    if any(name.startswith(SESSION_ENDED) for name in names):
        # Definite: no later statement finds the session again.
        return _died(
            uri,
            f"the Spark Connect server has ended the session: {_words(error)}",
            "check whether the server runs, then start the command again",
        )
    if any(name.partition(".")[0] in _MISSING for name in names):
        return TableNotFoundError(f"the table {address_of(uri)} does not exist")
    if any(name.partition(".")[0] in _ANOTHERS for name in names):
        return taken(uri)
    if any(map(_CHANGED.search, names)):
        return TableChangedError(_words(error))
    if any(map(_CONFLICT.search, names)):
        return CommitFailedError(_words(error))
    kind = TableBeingMadeError if _BEING_MADE in names else OSError
    return kind(f"{address_of(uri)}: {_words(error)}")


def _died(uri: str, message: str, remedy: str) -> DefiniteError:
    return DefiniteError(message, code="spark-died", where=uri, remedy=remedy)


def names_of(error: Exception) -> list[str]:
    """Return conditions and Java classes of a Spark error and its causes."""
    condition = getattr(error, "getCondition", lambda: None)()
    found = [condition] if condition else []
    found += [name for pair in _CONDITION.findall(_words(error)) for name in pair if name]
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    try:
        for _ in range(_DEEPEST):
            if cause is None:
                break
            found.append(str(cause.getClass().getName()))
            cause = cause.getCause()
    except Exception:  # noqa: BLE001 - the JVM ended meanwhile: the next statement reports this
        return found
    return found


def _words(error: Exception) -> str:
    """Return the message of an error without the stack trace."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - Py4J requests the text from the JVM
        said = type(error).__name__
    return " ".join(said.partition("\n\tat ")[0].split())[:_LENGTH]


def make_schema(uri: str) -> None:
    """Create the schema of a table if the schema is missing; raise OSError if the catalog refuses."""
    catalog, schema, _ = parts_of(uri)
    name = f"{quoted(catalog)}.{quoted(schema)}"
    with failures(uri):
        spark = session_for(uri)
        # An account that may use a schema may not always create a schema.
        if not spark.catalog.databaseExists(name):
            spark.sql(f"CREATE SCHEMA IF NOT EXISTS {name}")
