"""Commits to a catalog's tables: rows and marks in one, from Arrow, through a Spark session.

**At once.** A commit's marks are its ``userMetadata``, a part of the very log entry that names its files.

**Of two writers one.** A commit is refused where an id among its marks was written since the handle's
version, as `deltalake` refuses it. The history shows that before the commit. For the moment between, an id
that every commit of such a writer carries (`_ALONE`) is Delta's own ``txn`` action besides; all other commits
with marks have one in common (`_OTHERS`). Its number is the count of these commits, which stands beside the
mark: one more than was seen. So of two that know the same count, both try the same number. Delta refuses the
second where it began before the first was there. Where it began later, Delta skips it, and says nothing: so
each such commit is looked up afterwards. One that lost is over, where the id is a writer's own. Of the others
it may have lost to marks of other ids, so it looks, counts and tries again.

**A property that was set meanwhile** makes Delta refuse an append, whatever the property. The history is then
looked at again, and the same commit is tried again.

**An answer that was lost.** A call that fails may have come about. Whoever commits looks at the table again
before doing anything, as with `deltalake`.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from deltasmelt.bronze.lake.catalog import commit_marks
from deltasmelt.bronze.lake.catalog.session import is_local
from deltasmelt.bronze.lake.catalog.sql import (
    TableBeingMadeError,
    TableChangedError,
    failures,
    make_schema,
    run,
    session_for,
)
from deltasmelt.bronze.lake.client import CommitFailedError
from deltasmelt.bronze.lake.location import address_of, literal, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from deltasmelt.bronze.lake.catalog.table import CatalogTable

_LOOKED_AT: Final = (16, 1000)
"""Newest commits among which something is looked for; mostly it is among the first."""
_ATTEMPTS: Final = 10
_LOOKS: Final = 20
"""At a table that another process makes, `_LOOK_SECONDS` apart."""
_LOOK_SECONDS: Final = 0.5
_ALONE: Final = ("deltasmelt.reader",)
"""Ids of `bronze.store.marks` that all commits of one kind carry: of two at once only one comes about."""
_OTHERS: Final = "deltasmelt.marks"
"""Id that commits of marks without such an id have in common."""


def create(uri: str, schema: pa.Schema, description: str, properties: Mapping[str, str]) -> None:
    """Make a table; nothing where it is there, or another process makes it at this moment.

    The schema it lies in is made, too.

    Raises:
        OSError: Spark, or the catalog, refuses.
    """
    options = ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())
    columns = ", ".join(f"{quoted(field.name)} {sql_type(field.type)}" for field in schema)
    statement = (
        f"CREATE TABLE IF NOT EXISTS {address_of(uri)} ({columns}) USING DELTA "
        f"COMMENT {literal(description)}" + (f" TBLPROPERTIES ({options})" if options else "")
    )
    make_schema(uri)
    for left in reversed(range(_LOOKS)):
        try:
            with suppress(CommitFailedError), failures(uri):
                session_for(uri).sql(statement)
        except TableBeingMadeError:
            if not left:
                raise
            time.sleep(_LOOK_SECONDS)
        else:
            return


def append(table: CatalogTable, rows: pa.Table, marks: Mapping[str, int]) -> None:
    """Add rows, with marks, in one commit; the handle stays at its version.

    Args:
        table: open at the version that the caller knows.
        rows: to add; none where marks alone are written.
        marks: version by application id.

    Raises:
        CommitFailedError: one of these ids was written since the handle's version.
        OSError: Spark cannot write; whether the commit came about is then not known.
    """
    _write(table, lambda spark: _frame(spark, plain(rows)), marks)


def append_files(table: CatalogTable, files: Sequence[Path], marks: Mapping[str, int]) -> None:
    """Add the rows of local Parquet files, which Spark reads by itself (`sees_local_files`); see `append`."""
    paths = [file.as_uri() for file in files]
    _write(table, lambda spark: spark.read.parquet(*paths), marks)


def extend(uri: str, rows: pa.Table) -> None:
    """Add rows to a table that nobody else writes, and that has no marks.

    Raises:
        OSError: Spark cannot write.
    """
    with failures(uri):
        session_for(uri).createDataFrame(plain(rows)).writeTo(address_of(uri)).append()


def append_rows_of(table: CatalogTable, other: str, marks: Mapping[str, int]) -> None:
    """Add the rows of another table of the catalog; see `append`."""
    _write(table, lambda spark: spark.table(address_of(other)), marks)


def sees_local_files(uri: str) -> bool:
    """Whether a session's tasks run on this machine, where they can open its files."""
    from pyspark.sql.utils import is_remote  # noqa: PLC0415 - a lake of files needs no Spark

    if is_remote():
        return False
    with failures(uri):
        return is_local(str(session_for(uri).conf.get("spark.master", "")))


def overwrite(table: CatalogTable, rows: pa.Table, marks: Mapping[str, int]) -> None:
    """Replace all rows, with marks, in one commit; see `append`."""
    _write(table, lambda spark: _frame(spark, plain(rows)), marks, replacing=True)


def _write(
    table: CatalogTable,
    rows: Callable[[SparkSession], DataFrame],
    marks: Mapping[str, int],
    *,
    replacing: bool = False,
) -> None:
    uri = table.table_uri
    app = next((one for one in _ALONE if one in marks), _OTHERS)
    alone = app in _ALONE
    with failures(uri):
        frame = rows(session_for(uri))
    if not marks:
        _commit_alone(uri, frame, replacing=replacing)
        return
    for left in reversed(range(_ATTEMPTS)):
        name = uuid.uuid4().hex
        number = 1 + _count(table, app, _later(table, marks))
        # Without rows Delta makes no commit, unless it has an action of its own to write: this one.
        options = {
            "txnAppId": app,
            "txnVersion": str(number),
            "userMetadata": commit_marks.said({**marks, counter_of(app): number}, commit=name),
        }
        try:
            _commit(uri, frame, options, replacing=replacing)
        except TableChangedError:
            if not left:
                raise
        except CommitFailedError:
            if alone or not left:
                raise
        else:
            if _came_about(uri, name):
                return
            if alone:
                break
    raise CommitFailedError(f"{address_of(uri)}: another writer came first")


def _commit_alone(uri: str, frame: DataFrame, *, replacing: bool) -> None:
    """A commit without marks: who comes first does not matter."""
    for left in reversed(range(_ATTEMPTS)):
        try:
            _commit(uri, frame, {"userMetadata": commit_marks.said({})}, replacing=replacing)
        except TableChangedError:
            if not left:
                raise
        else:
            return


def counter_of(app: str) -> str:
    """The mark that counts the commits of an id."""
    return f"{app}.commits"


def _commit(uri: str, frame: DataFrame, options: Mapping[str, str], *, replacing: bool) -> None:
    with failures(uri):
        writer = frame.writeTo(address_of(uri))
        for option, value in options.items():
            writer = writer.option(option, value)
        if replacing:
            writer.overwritePartitions()
        else:
            writer.append()


def _frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Rows as Spark's; of none, the client of Spark Connect takes no columns."""
    if rows.num_rows:
        return spark.createDataFrame(rows)
    nothing = ", ".join(f"CAST(NULL AS {sql_type(one.type)}) AS {quoted(one.name)}" for one in rows.schema)
    return spark.sql(f"SELECT {nothing} WHERE false")


def add_columns(uri: str, fields: list[pa.Field]) -> None:
    """Give a table columns that it lacks."""
    listed = ", ".join(f"{quoted(field.name)} {sql_type(field.type)}" for field in fields)
    run(uri, f"ALTER TABLE {{}} ADD COLUMNS ({listed})")


def sql_type(type_: pa.DataType) -> str:
    """An Arrow type as Spark SQL names it, of those that bronze's own tables have.

    Raises:
        TypeError: it is another one.
    """
    if pa.types.is_list(type_):
        return f"ARRAY<{sql_type(type_.value_type)}>"
    if pa.types.is_struct(type_):
        inner = ", ".join(f"{quoted(field.name)}: {sql_type(field.type)}" for field in type_)
        return f"STRUCT<{inner}>"
    if pa.types.is_timestamp(type_):
        return "TIMESTAMP" if type_.tz is not None else "TIMESTAMP_NTZ"
    if pa.types.is_dictionary(type_):
        return sql_type(type_.value_type)
    found = _TYPES.get(str(type_))
    if found is None:
        raise TypeError(f"no column of bronze has the type {type_}")
    return found


_TYPES: Final = {
    "bool": "BOOLEAN", "int8": "TINYINT", "int16": "SMALLINT", "int32": "INT", "int64": "BIGINT",
    "float": "FLOAT", "double": "DOUBLE", "string": "STRING", "large_string": "STRING", "binary": "BINARY",
    "date32[day]": "DATE",
}  # fmt: skip


def _count(table: CatalogTable, app: str, later: Sequence[commit_marks.Said]) -> int:
    """How many commits an id has, as of the newest version that was looked at."""
    counter = counter_of(app)
    known = table.transaction_version(counter) or 0
    return max([known, *(one.marks[counter] for one in later if counter in one.marks)])


def _later(table: CatalogTable, marks: Mapping[str, int]) -> list[commit_marks.Said]:
    """What commits after the handle's version say.

    Raises:
        CommitFailedError: one of the marks' ids was written by them.
    """
    for limit in _LOOKED_AT:
        told = _newest(table.table_uri, limit)
        later = [one for one in told if one.version > table.version()]
        if len(later) < limit:
            break
    # What a property is set to says again what other commits say.
    if len(later) == limit or any(marks.keys() & one.marks.keys() for one in later if not one.complete):
        raise CommitFailedError(f"{address_of(table.table_uri)}: another writer came first")
    return later


def _came_about(uri: str, name: str) -> bool:
    return any(one.more.get("commit") == name for limit in _LOOKED_AT for one in _newest(uri, limit))


def _newest(uri: str, limit: int) -> list[commit_marks.Said]:
    """What the newest commits say, newest first."""
    with failures(uri):
        return [
            commit_marks.read(row.asDict())
            for row in run(uri, f"DESCRIBE HISTORY {{}} LIMIT {limit}").collect()
        ]


def plain(rows: pa.Table) -> pa.Table:
    """Rows without dictionaries, which Spark does not take."""
    schema = pa.schema(
        [
            field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
            for field in rows.schema
        ]
    )
    return rows.cast(schema)
