"""Statements on a catalog's tables, and what their failures mean to those who open tables.

PySpark turns only some of the JVM's exceptions into its own. Delta's conflicts, a `SparkException` of a task
and an ``IOException`` of a store come as they are, in Py4J's wrapper. So what an exception means is told by
the classes of its causes. A JVM that has ended answers nothing, and would not at the next attempt either:
that is definite. So is the end of a session at a Spark Connect server: no later statement finds it again.

Whose a catalog's table is, where the pipeline has a name in mind that somebody else has taken.

``CREATE TABLE IF NOT EXISTS`` passes over any table. So a table that is there, or is there after that, counts
as the pipeline's where it has a property that only our own CREATE gives it. Any other is left as it is.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.client import CommitFailedError, TableNotFoundError
from deltasmelt.bronze.lake.location import address_of, quoted
from deltasmelt.bronze.lake.place import catalog_of, is_named, parts_of
from deltasmelt.bronze.lake.spark_errors import SESSION_ENDED, is_broken, spark_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

MADE_PROPERTY: Final = "deltasmelt.made"
"""Table property of what has no other one that tells."""
TAKEN: Final = "catalog-name-taken"
"""Code of the error where a name is somebody else's."""


def is_made_by_us(properties: Mapping[str, str]) -> bool:
    """Whether a table that has no other property that tells is the pipeline's."""
    return MADE_PROPERTY in properties


def taken(uri: str) -> DefiniteError:
    """The error where a name that the pipeline has in mind is somebody else's: ``catalog-name-taken``."""
    return DefiniteError(
        f"{address_of(uri)} is there already, and not a table of this pipeline",
        code=TAKEN,
        where=uri,
        remedy="drop or rename that table, or choose another lake.catalog",
    )


def require_ours(uri: str, properties: Mapping[str, str], told_by: str = MADE_PROPERTY) -> None:
    """Refuse a table of a catalog that this pipeline did not make; nothing of others.

    Args:
        uri: location of the table.
        properties: that it has.
        told_by: name of the property that our own CREATE gives it.

    Raises:
        DefiniteError: ``catalog-name-taken``.
    """
    if is_named(uri) and told_by not in properties:
        raise taken(uri)


_MISSING: Final = frozenset(
    ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE")
)
_ANOTHERS: Final = frozenset(
    (
        "EXPECT_TABLE_NOT_VIEW",
        "DELTA_CANNOT_DESCRIBE_VIEW_HISTORY",
        "DELTA_ONLY_OPERATION",
        "DELTA_TABLE_ONLY_OPERATION",
    )
)
"""What is there is a view, or no table of Delta; all of ours are."""
_BEING_MADE: Final = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"
_CONFLICT: Final = re.compile(r"DELTA_CONCURRENT_|Concurrent\w*Exception$")
_CHANGED: Final = re.compile(r"DELTA_(?:METADATA|PROTOCOL)_CHANGED|(?:Metadata|Protocol)ChangedException$")
"""Names of conditions, and of Delta's classes."""
_CONDITION: Final = re.compile(r"(?:^|: )\[([A-Z][A-Z0-9_.]+)\]|\((?:io|org|com)\.([\w.]+Exception)\)")
"""In a message's first line; Spark Connect puts the class before it, in round brackets."""
_DEEPEST: Final = 20
"""Causes that are looked at: a chain may be a ring."""
_LENGTH: Final = 500


class TableChangedError(CommitFailedError):
    """Properties, columns or protocol changed while a commit was under way, which did not come about.

    The same commit may be tried again, if that does not depend on them.
    """


class TableBeingMadeError(OSError):
    """Another process is in the middle of making the table: its files are there, and no log yet."""


def session_for(uri: str) -> SparkSession:
    """Return the session of the lake that a catalog's table is in.

    Raises:
        ConfigurationError: ``catalog-session``: no session serves this lake.
    """
    return catalog_of(uri).session()


def run(uri: str, text: str) -> DataFrame:
    """A statement on a table; the first ``{}`` in it is the table's name.

    Raises:
        TableNotFoundError: there is no such table.
        CommitFailedError: another writer came first.
        OSError: Spark cannot do it.
    """
    with failures(uri):
        return session_for(uri).sql(text.replace("{}", address_of(uri), 1))


@contextmanager
def failures(uri: str) -> Iterator[None]:
    """Spark's errors as those that every table's opener knows; see `run`.

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
    """What an error of Spark means; None where it is none of Spark's."""
    if is_broken(error):
        return _died(
            uri,
            "Spark no longer answers: its JVM has ended, or cannot be reached",
            "read the log of the Spark application, then start the command again",
        )
    if not isinstance(error, spark_errors()):
        return None
    return meaning(error, uri, names_of(error))


def meaning(error: Exception, uri: str, names: Iterable[str]) -> Exception:
    """What a failed statement on a table means.

    Args:
        error: of Spark.
        uri: location of the table.
        names: conditions and classes of it and its causes.
    """
    names = list(names)
    if any(name.startswith(SESSION_ENDED) for name in names):
        return _died(
            uri,
            f"the Spark Connect server has ended our session: {_words(error)}",
            "see whether the server runs, then start the command again",
        )
    if any(name.partition(".")[0] in _MISSING for name in names):
        return TableNotFoundError(f"there is no table {address_of(uri)}")
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
    """Conditions and Java classes of an error of Spark and its causes."""
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
    except Exception:  # noqa: BLE001 - the JVM ended meanwhile: the next statement says so
        return found
    return found


def _words(error: Exception) -> str:
    """What it says, without the stack."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - Py4J asks the JVM for the text
        said = type(error).__name__
    return " ".join(said.partition("\n\tat ")[0].split())[:_LENGTH]


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
