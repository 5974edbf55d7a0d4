"""Reading a Delta table of few bytes right from its files, at a version.

For each table that a statement reads, Delta replays the log, keeps its state and filters its files by their
statistics: some jobs and plans, whatever the table holds. Of a document over nine tables of some hundred rows
that is two thirds of the work (`docs/performance.md`). The log says the same in some milliseconds through
`deltalake`, which reads no row.

A version *is* the files that its log names, all rows of them, so both ways give the same rows:

* Where a file alone does not say which of its rows count (deletion vectors), or holds values in another type
  than the table (type widening), Delta reads. So it does where the protocol asks for something that is not
  known here, where the table is partitioned, and in an object store, where each look costs a request.
* Columns are stored under names of their own (`column mapping
  <https://github.com/delta-io/delta/blob/master/PROTOCOL.md#column-mapping>`_). They are read by these, and
  named as the table names them. A column that a file lacks is NULL in it, as Delta has it.
* Files never change once they are written. One that is gone by now ends the statement, with Delta or without.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import DeltaError
from deltasmelt.bronze.lake.parquet import file_system
from deltasmelt.silver.spark.access import access_of
from deltasmelt.silver.spark.tuning import on_databricks
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

    from deltasmelt.bronze.lake.location import Lake, Layer

MOST_BYTES: Final = 32 * 2**20
"""Of files, up to which leaving out some by their statistics saves less than asking for them costs."""

_FILES: Final = 32
"""Files that Spark lists in the driver; for more it runs a job."""

_FEATURES: Final = frozenset({"columnMapping", "deletionVectors", "timestampNtz", "typeWidening"})
"""What a reader must know of a table that is read here: the files and the schema tell whether it is used."""

_TYPES: Final = frozenset(
    {
        "boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary", "date",
        "timestamp", "timestamp_ntz",
    }
)  # fmt: skip
"""Types besides decimals. Of others (the NULLs of a document) Spark reads no column from a file by itself."""

_PATTERNS: Final = frozenset("*?[]{}\\%")
"""Characters that Spark takes for a pattern in a path, or the log has encoded."""

_PHYSICAL: Final = "delta.columnMapping.physicalName"
_NESTED: Final = {"array": ("elementType",), "map": ("keyType", "valueType")}
_MAY_BE_NULL: Final = {"array": "containsNull", "map": "valueContainsNull"}


@dataclass(frozen=True, slots=True)
class PlainFiles:
    """The files that are a table at a version.

    Attributes:
        paths: where they lie.
        size: their bytes.
        fields: the table's columns, as the log has them.
    """

    paths: tuple[str, ...]
    size: int
    fields: tuple[dict[str, Any], ...]

    def frame(self, spark: SparkSession) -> DataFrame:
        """Their rows under the table's names; the columns keep their comments."""
        from pyspark.sql.functions import col, lit  # noqa: PLC0415 - a cycle without work loads no Spark
        from pyspark.sql.types import StructType  # noqa: PLC0415

        named = StructType.fromJson({"type": "struct", "fields": [_nullable(one) for one in self.fields]})
        if not self.paths:
            nothing = (lit(None).cast(one.dataType).alias(one.name, metadata=one.metadata) for one in named)
            return spark.range(0).select(*nothing)
        stored = StructType.fromJson({"type": "struct", "fields": [_stored(one) for one in self.fields]})
        rows = spark.read.schema(stored).parquet(*self.paths).toDF(*named.names)
        if all(old.dataType == new.dataType for old, new in zip(stored, named, strict=True)):
            return rows
        # A struct keeps its values and takes the other names: they are in the same order.
        renamed = (
            col(quote(new.name)).cast(new.dataType).alias(new.name, metadata=new.metadata)
            if old.dataType != new.dataType
            else col(quote(new.name))
            for old, new in zip(stored, named, strict=True)
        )
        return rows.select(*renamed)


def plain_files(lake: Lake, layer: Layer, name: str, version: int) -> PlainFiles | None:
    """The files of a table at a version; None where Delta has to read it."""
    if lake.folder is None or on_databricks():
        return None
    folder = lake.uri(layer, name)
    said = _all_rows_count(folder, version)
    if said is None or said[0] > _FILES or said[1] > MOST_BYTES:
        return None
    try:
        table = delta.open_at(folder, version)
        files = pa.table(table.get_add_actions())
        fields = json.loads(table.schema().to_json())["fields"]
        plain = _is_plain(table, fields)
    except DeltaError:  # Spark tells better what is wrong
        return None
    names, size = files["path"].to_pylist(), sum(files["size_bytes"].to_pylist())
    paths = tuple(f"{folder}/{path}" for path in names)
    if plain and said == (len(names), size) and all(map(_is_below, names)) and all(map(_is_readable, paths)):
        return PlainFiles(paths, size, tuple(fields))
    return None


def table_at(spark: SparkSession, lake: Lake, layer: Layer, name: str, version: int) -> DataFrame:
    """A table's rows at a version, right from its files where these are few.

    Raises:
        PySparkException: there is no such version.
    """
    plain = plain_files(lake, layer, name, version) if access_of(spark).may_read_files else None
    if plain is not None:
        return plain.frame(spark)
    return spark.sql(f"SELECT * FROM {lake.sql(layer, name)} VERSION AS OF {version}")


def _all_rows_count(folder: str, version: int) -> tuple[int, int] | None:
    """How many files a version has, and their bytes, if none has a deletion vector; None otherwise.

    So says the version's `checksum file
    <https://github.com/delta-io/delta/blob/master/PROTOCOL.md#version-checksum-file>`_, which is read in one
    go, however long the log is. Of deletion vectors, `deltalake` tells nothing where types can be widened.
    """
    try:
        with file_system(folder).open_input_file(f"_delta_log/{version:020}.crc") as file:
            checksum = json.loads(file.read())
        marked = checksum["numDeletionVectorsOpt"] or checksum["numDeletedRecordsOpt"]
        listed = any(one.get("deletionVector") for one in checksum.get("allFiles") or ())
        said = int(checksum["numFiles"]), int(checksum["tableSizeBytes"])
    except (OSError, ValueError, LookupError, TypeError):  # there need not be one, or not all of it
        return None
    return said if marked == 0 and not listed else None


def _is_plain(table: DeltaTable, fields: list[dict[str, Any]]) -> bool:
    """Whether files hold the table's columns and nothing else: all of them, by name, in their own types."""
    metadata = table.metadata()
    mapped = metadata.configuration.get("delta.columnMapping.mode", "none")
    named = not any(_PHYSICAL in one["metadata"] for field in fields for one in _all_fields(field))
    return (
        set(table.protocol().reader_features or ()) <= _FEATURES
        and not metadata.partition_columns
        and (mapped == "name" or (mapped == "none" and named))
        and all(map(_is_as_stored, fields))
    )


def _is_below(path: str) -> bool:
    """Whether a file lies in the table's folder; those of a shallow clone lie in another's."""
    return ":" not in path and not path.startswith("/")


def _is_readable(path: str) -> bool:
    """Whether Spark takes a path for itself; files with such first letters it leaves out without a word."""
    return not _PATTERNS & set(path) and PurePosixPath(path).name[0] not in "_."


def _is_as_stored(field: dict[str, Any]) -> bool:
    """Whether files hold a column's values in its type; a widened one says so, also for what is in it."""
    return not any("delta.typeChanges" in one["metadata"] for one in _all_fields(field)) and all(
        kind in _TYPES or kind.startswith("decimal(") for kind in _atomic(field["type"])
    )


def _atomic(type_: str | dict[str, Any]) -> list[str]:
    """The types within a type that have none in them."""
    if isinstance(type_, str):
        return [type_]
    if type_["type"] == "struct":
        return [one for field in type_["fields"] for one in _atomic(field["type"])]
    return [one for part in _NESTED[type_["type"]] for one in _atomic(type_[part])]


def _all_fields(field: dict[str, Any]) -> list[dict[str, Any]]:
    """A column and the fields of the structs in it."""
    inner = [_all_fields(one) for struct in _structs(field["type"]) for one in struct["fields"]]
    return [field, *(one for some in inner for one in some)]


def _structs(type_: str | dict[str, Any]) -> list[dict[str, Any]]:
    """The outermost structs of a type."""
    if isinstance(type_, str):
        return []
    if type_["type"] == "struct":
        return [type_]
    return [one for part in _NESTED[type_["type"]] for one in _structs(type_[part])]


def _stored(field: dict[str, Any]) -> dict[str, Any]:
    """A column as the files have it, with what the table says of it."""
    name = field["metadata"].get(_PHYSICAL, field["name"])
    return {
        "name": name,
        "type": _type(field["type"], stored=True),
        "nullable": True,
        "metadata": _said(field),
    }


def _nullable(field: dict[str, Any]) -> dict[str, Any]:
    """A column as the table has it, without what is Delta's own; NULL may be anywhere, as in every file."""
    type_ = _type(field["type"], stored=False)
    return {"name": field["name"], "type": type_, "nullable": True, "metadata": _said(field)}


def _said(field: dict[str, Any]) -> dict[str, Any]:
    """What a table says of a column, without what is Delta's own."""
    return {name: value for name, value in field["metadata"].items() if not name.startswith("delta.")}


def _type(type_: str | dict[str, Any], *, stored: bool) -> str | dict[str, Any]:
    if isinstance(type_, str):
        return type_
    kind = type_["type"]
    if kind == "struct":
        return {"type": kind, "fields": [(_stored if stored else _nullable)(one) for one in type_["fields"]]}
    parts = {part: _type(type_[part], stored=stored) for part in _NESTED[kind]}
    return {**type_, **parts, _MAY_BE_NULL[kind]: True}
