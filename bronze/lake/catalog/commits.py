"""Commits to a catalog's tables: rows and marks together, from Arrow, through a Spark session.

**Atomicity.** A commit's marks are in the commit's ``userMetadata``, in the log entry that names the files.

**Concurrent writers.** A commit is rejected if any of its marks' ids was written since the handle's version,
as in `deltalake`. The writer checks the history before the commit. For the moment in between, the commit also
carries Delta's own ``txn`` action, with an id common to all commits of a kind of writer (`_ALONE`) or to all
further commits with marks (`_OTHERS`). The number of the ``txn`` is the count of commits with the id plus 1,
which a commit stores next to the mark. Two writers with equal counts therefore try equal numbers:

* If the second writer began before the first commit existed, Delta rejects the second commit.
* If the second writer began later, Delta skips its commit without an error. The writer therefore searches the
  history for each such commit afterwards.

**Lost answers.** A failed call may have succeeded. The caller reads the table before any further step, as
with `deltalake`.
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

    from deltasmelt.bronze.lake.table import Table

# Numbers of newest commits to search, in turn; usually the first number suffices.
_LOOKED_AT: Final = (16, 1000)
_ATTEMPTS: Final = 10
# Maximum attempts while another process creates the table, `_LOOK_SECONDS` apart.
_LOOKS: Final = 20
_LOOK_SECONDS: Final = 0.5
# Ids of `bronze.store.marks` that all commits of a kind carry; of two concurrent commits one fails.
_ALONE: Final = ("deltasmelt.reader",)
# Common id of all commits that have marks, but none of the `_ALONE` ids.
_OTHERS: Final = "deltasmelt.marks"


def create(uri: str, schema: pa.Schema, description: str, properties: Mapping[str, str]) -> None:
    """Create a table and the schema; do nothing if the table exists or is being created."""
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


def append(table: Table, rows: pa.Table, marks: Mapping[str, int]) -> None:
    """Append rows (none to write only marks) with marks in one commit; the handle stays at its version.

    Raises:
        CommitFailedError: one of the marks' ids was written since the handle's version.
        OSError: Spark cannot write; whether the commit succeeded is then unknown.
    """
    _write(table, lambda spark: _frame(spark, plain(rows)), marks)


def append_files(table: Table, files: Sequence[Path], marks: Mapping[str, int]) -> None:
    """Append rows of local Parquet files, read by Spark (`sees_local_files`); see `append`."""
    paths = [file.as_uri() for file in files]
    _write(table, lambda spark: spark.read.parquet(*paths), marks)


def extend(uri: str, rows: pa.Table) -> None:
    """Append rows to a table with a single writer and without marks."""
    with failures(uri):
        session_for(uri).createDataFrame(plain(rows)).writeTo(address_of(uri)).append()


def append_rows_of(table: Table, other: str, marks: Mapping[str, int]) -> None:
    """Append the rows of another table of the catalog; see `append`."""
    _write(table, lambda spark: spark.table(address_of(other)), marks)


def sees_local_files(uri: str) -> bool:
    """Check whether a session's tasks run on this machine and can open local files."""
    from pyspark.sql.utils import is_remote  # noqa: PLC0415 - a lake of files needs no Spark

    if is_remote():
        return False
    with failures(uri):
        return is_local(str(session_for(uri).conf.get("spark.master", "")))


def overwrite(table: Table, rows: pa.Table, marks: Mapping[str, int]) -> None:
    """Replace all rows in one commit, with marks; see `append`."""
    _write(table, lambda spark: _frame(spark, plain(rows)), marks, replacing=True)


def _write(
    table: Table,
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
        # Without rows Delta commits only if there is an action to write: this txn.
        options = {
            "txnAppId": app,
            "txnVersion": str(number),
            "userMetadata": commit_marks.said({**marks, counter_of(app): number}, commit=name),
        }
        try:
            _commit(uri, frame, options, replacing=replacing)
        # Delta rejects an append if any property was set meanwhile. Check the history again, then retry.
        except TableChangedError:
            if not left:
                raise
        except CommitFailedError:
            if alone or not left:
                raise
        else:
            if _came_about(uri, name):
                return
            # A writer with an own id fails. A writer with the common id may have lost to a commit with marks
            # of different ids: the writer checks, counts and tries again.
            if alone:
                break
    raise CommitFailedError(f"{address_of(uri)}: another writer came first")


def _commit_alone(uri: str, frame: DataFrame, *, replacing: bool) -> None:
    """Commit without marks; the order of concurrent writers does not matter."""
    for left in reversed(range(_ATTEMPTS)):
        try:
            _commit(uri, frame, {"userMetadata": commit_marks.said({})}, replacing=replacing)
        except TableChangedError:
            if not left:
                raise
        else:
            return


def counter_of(app: str) -> str:
    """Return the mark that counts the commits of an id."""
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
    if rows.num_rows:
        return spark.createDataFrame(rows)
    # For zero rows, the Spark Connect client would lose the columns.
    nothing = ", ".join(f"CAST(NULL AS {sql_type(one.type)}) AS {quoted(one.name)}" for one in rows.schema)
    return spark.sql(f"SELECT {nothing} WHERE false")


def add_columns(uri: str, fields: list[pa.Field]) -> None:
    """Add missing columns to a table."""
    listed = ", ".join(f"{quoted(field.name)} {sql_type(field.type)}" for field in fields)
    run(uri, f"ALTER TABLE {{}} ADD COLUMNS ({listed})")


def sql_type(type_: pa.DataType) -> str:
    """Return the Spark SQL name of an Arrow type of bronze's own tables; raise TypeError for other types."""
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


def _count(table: Table, app: str, later: Sequence[commit_marks.Said]) -> int:
    """Return the number of commits of an id, as of the newest version in the poll."""
    counter = counter_of(app)
    known = table.transaction_version(counter) or 0
    return max([known, *(one.marks[counter] for one in later if counter in one.marks)])


def _later(table: Table, marks: Mapping[str, int]) -> list[commit_marks.Said]:
    """Return the metadata of commits after the handle's version; reject if one wrote a mark's id."""
    for limit in _LOOKED_AT:
        told = _newest(table.table_uri, limit)
        later = [one for one in told if one.version > table.version()]
        if len(later) < limit:
            break
    # A property restates the marks of other commits, so it is no new write.
    if len(later) == limit or any(marks.keys() & one.marks.keys() for one in later if not one.complete):
        raise CommitFailedError(f"{address_of(table.table_uri)}: another writer came first")
    return later


def _came_about(uri: str, name: str) -> bool:
    return any(one.more.get("commit") == name for limit in _LOOKED_AT for one in _newest(uri, limit))


def _newest(uri: str, limit: int) -> list[commit_marks.Said]:
    with failures(uri):
        return [
            commit_marks.read(row.asDict())
            for row in run(uri, f"DESCRIBE HISTORY {{}} LIMIT {limit}").collect()
        ]


def plain(rows: pa.Table) -> pa.Table:
    """Return rows without dictionaries, which Spark does not accept."""
    schema = pa.schema(
        [
            field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
            for field in rows.schema
        ]
    )
    return rows.cast(schema)
