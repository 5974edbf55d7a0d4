"""Commits to a catalog's tables: rows and marks in one, from Arrow, through a Spark session.

**At once.** A commit's marks are its ``userMetadata``, a part of the very log entry that names its files.

**Of two writers one.** A commit is refused where an id among its marks was written since the handle's
version, as `deltalake` refuses it. The history shows that before the commit. For the moment between, an id
that every commit of such a writer carries (`_ALONE`) is Delta's own ``txn`` action besides. Delta refuses a
commit when another one with that action came about meanwhile. It skips one whose number is not above the
newest, and says nothing: so each such commit is looked up afterwards. The numbers are versions, which grow.

**An answer that was lost.** A call that fails may have come about. Whoever commits looks at the table again
before doing anything, as with `deltalake`.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from bronze.lake.client import CommitFailedError
from bronze.lake.named import said
from bronze.lake.named.place import address_of
from bronze.lake.named.sql import failures, literal, make_schema, quoted, run, session_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from bronze.lake.named.table import NamedTable

_LOOKED_AT: Final = 16
_ALONE: Final = ("deltasmelt.reader", "deltasmelt.compaction")
"""Ids of `bronze.store.marks` that all commits of one kind carry: of two at once only one comes about."""


def create(uri: str, schema: pa.Schema, description: str, properties: Mapping[str, str]) -> None:
    """Make a table; nothing where it is there. The schema it lies in is made, too.

    Raises:
        OSError: Spark, or the catalog, refuses.
    """
    options = ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())
    make_schema(uri)
    with failures(uri):
        spark = session_for(uri)
        columns = ", ".join(f"{quoted(field.name)} {sql_type(field.type)}" for field in schema)
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {address_of(uri)} ({columns}) USING DELTA "
            f"COMMENT {literal(description)}" + (f" TBLPROPERTIES ({options})" if options else "")
        )


def append(table: NamedTable, rows: pa.Table, marks: Mapping[str, int]) -> None:
    """Add rows, with marks, in one commit; the handle stays at its version.

    Args:
        table: open at the version that the caller knows.
        rows: to add; none where marks alone are written.
        marks: version by application id.

    Raises:
        CommitFailedError: one of these ids was written since the handle's version.
        OSError: Spark cannot write; whether the commit came about is then not known.
    """
    _write(table, rows, marks, replacing=False)


def overwrite(table: NamedTable, rows: pa.Table, marks: Mapping[str, int]) -> None:
    """Replace all rows, with marks, in one commit; see `append`."""
    _write(table, rows, marks, replacing=True)


def _write(table: NamedTable, rows: pa.Table, marks: Mapping[str, int], *, replacing: bool) -> None:
    uri, name = table.table_uri, uuid.uuid4().hex
    _require_unwritten(table, marks)
    app = next((one for one in _ALONE if one in marks), None)
    with failures(uri):
        frame = _frame(session_for(uri), _plain(rows))
        writer = frame.writeTo(address_of(uri)).option("userMetadata", said.said(marks, commit=name))
        if app is not None or (marks and not rows.num_rows):
            # Without rows Delta makes no commit, unless it has an action of its own to write.
            writer = writer.option("txnAppId", app or f"deltasmelt.said:{name}")
            writer = writer.option("txnVersion", str(table.version() + 1))
        if replacing:
            writer.overwritePartitions()
        else:
            writer.append()
    if app is not None and not _came_about(uri, name):
        raise CommitFailedError(f"{address_of(uri)}: another writer came first")


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


def _require_unwritten(table: NamedTable, marks: Mapping[str, int]) -> None:
    """Refuse where one of the marks' ids was written since the handle's version."""
    if not marks:
        return
    entries = run(table.table_uri, f"DESCRIBE HISTORY {{}} LIMIT {_LOOKED_AT}").collect()
    later = [said.read(row.asDict()).marks for row in entries if row["version"] > table.version()]
    if any(marks.keys() & one.keys() for one in later) or len(later) == _LOOKED_AT:
        raise CommitFailedError(f"{address_of(table.table_uri)}: another writer came first")


def _came_about(uri: str, name: str) -> bool:
    entries = run(uri, f"DESCRIBE HISTORY {{}} LIMIT {_LOOKED_AT}").select("userMetadata").collect()
    return any(said.read(row.asDict()).more.get("commit") == name for row in entries)


def _plain(rows: pa.Table) -> pa.Table:
    """Rows without dictionaries, which Spark does not take."""
    schema = pa.schema(
        [
            field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
            for field in rows.schema
        ]
    )
    return rows.cast(schema)
