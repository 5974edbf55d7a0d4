"""Reads of a small Delta table directly from its files, at a version.

For each table of a statement, Delta replays the log, caches the state and filters files by statistics. The
work takes some jobs and plans, however few rows the table has: for a document over nine tables of some
hundred rows, two thirds of the work. `deltalake` reads the log in some milliseconds, and reads no row.

Measured: a preview of one document over nine tables takes 0.53 of the CPU, `smelt verify` 0.49.

A version *is* the files in its log, all rows included, so both ways return the same rows. A written file
never changes. A missing file fails the statement, with Delta and without. Delta reads the table where a file
alone does not show the valid rows (deletion vectors), or holds values in another type than the table (type
widening). Delta also reads tables with partitions, tables whose protocol demands an unknown feature, and
tables in an object store, where each read costs a request.
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
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from deltasmelt.bronze.lake.location import Lake, Layer
    from deltasmelt.bronze.lake.table import Table

MOST_BYTES: Final = 32 * 2**20
"""Bytes of files up to which a direct read is cheaper than Delta's filter by statistics."""

_FILES: Final = 32
"""Limit on files for a listing in Spark's driver; for more files Spark runs a job."""

_FEATURES: Final = frozenset({"columnMapping", "deletionVectors", "timestampNtz", "typeWidening"})
"""Reader features of tables for a direct read; the files and the schema show whether a table uses one."""

_TYPES: Final = frozenset(
    {
        "boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary", "date",
        "timestamp", "timestamp_ntz",
    }
)  # fmt: skip
"""Types that a direct read supports, in addition to decimals.

Spark cannot read a column of any other type, as the NULLs of a document, from a file alone.
"""

_PATTERNS: Final = frozenset("*?[]{}\\%")
"""Characters that Spark reads as a pattern in a path, or the log encodes."""

_PHYSICAL: Final = "delta.columnMapping.physicalName"
_NESTED: Final = {"array": ("elementType",), "map": ("keyType", "valueType")}
_MAY_BE_NULL: Final = {"array": "containsNull", "map": "valueContainsNull"}


@dataclass(frozen=True, slots=True)
class PlainFiles:
    """The files of a table at a version: full paths, bytes in all, and the table's columns as in the log."""

    paths: tuple[str, ...]
    size: int
    fields: tuple[dict[str, Any], ...]

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the rows under the table's column names; the columns keep their comments."""
        from pyspark.sql.functions import col, lit  # noqa: PLC0415 - a cycle without work loads no Spark
        from pyspark.sql.types import StructType  # noqa: PLC0415

        named = StructType.fromJson({"type": "struct", "fields": _fields(self.fields, stored=False)})
        if not self.paths:
            nothing = (lit(None).cast(one.dataType).alias(one.name, metadata=one.metadata) for one in named)
            return spark.range(0).select(*nothing)
        # Files store columns under physical names
        # (https://github.com/delta-io/delta/blob/master/PROTOCOL.md#column-mapping). A column that a file
        # lacks is NULL, as in Delta.
        stored = StructType.fromJson({"type": "struct", "fields": _fields(self.fields, stored=True)})
        rows = spark.read.schema(stored).parquet(*self.paths).toDF(*named.names)
        if all(old.dataType == new.dataType for old, new in zip(stored, named, strict=True)):
            return rows
        # A cast renames a struct's fields by position, and keeps the values.
        renamed = (
            col(quote(new.name)).cast(new.dataType).alias(new.name, metadata=new.metadata)
            if old.dataType != new.dataType
            else col(quote(new.name))
            for old, new in zip(stored, named, strict=True)
        )
        return rows.select(*renamed)


def plain_files(lake: Lake, layer: Layer, name: str, version: int) -> PlainFiles | None:
    """Return the files of a table at a version; None where Delta must read the table."""
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
    except DeltaError:  # Spark reports the cause better
        return None
    names, size = files["path"].to_pylist(), sum(files["size_bytes"].to_pylist())
    paths = tuple(f"{folder}/{path}" for path in names)
    if plain and said == (len(names), size) and all(map(_is_below, names)) and all(map(_is_readable, paths)):
        return PlainFiles(paths, size, tuple(fields))
    return None


def table_at(spark: SparkSession, lake: Lake, layer: Layer, name: str, version: int) -> DataFrame:
    """Return a table's rows at a version, directly from the files of a small table."""
    plain = plain_files(lake, layer, name, version) if access_of(spark).may_read_files else None
    if plain is not None:
        return plain.frame(spark)
    return spark.sql(f"SELECT * FROM {lake.sql(layer, name)} VERSION AS OF {version}")


def rows_of_files(
    spark: SparkSession, folder: str, names: Sequence[str], columns: Mapping[str, str]
) -> DataFrame | None:
    """Return rows directly from files whose rows are all valid; None if Delta has to read the table.

    `names` are the files' paths below the table's folder; `columns` have their types in Spark SQL.
    """
    paths = [f"{folder}/{name}" for name in names]
    if not paths or not access_of(spark).may_read_files or not all(map(_is_readable, paths)):
        return None
    schema = ", ".join(f"{name} {type_}" for name, type_ in columns.items())
    return spark.read.schema(schema).parquet(*paths)


def _all_rows_count(folder: str, version: int) -> tuple[int, int] | None:
    """Return the number and bytes of a version's files, if no file has a deletion vector; None otherwise.

    The source is the version's `checksum file
    <https://github.com/delta-io/delta/blob/master/PROTOCOL.md#version-checksum-file>`_: one read, however
    long the log is. `deltalake` does not show deletion vectors of tables with type widening.
    """
    try:
        with file_system(folder).open_input_file(f"_delta_log/{version:020}.crc") as file:
            checksum = json.loads(file.read())
        marked = checksum["numDeletionVectorsOpt"] or checksum["numDeletedRecordsOpt"]
        listed = any(one.get("deletionVector") for one in checksum.get("allFiles") or ())
        said = int(checksum["numFiles"]), int(checksum["tableSizeBytes"])
    except (OSError, ValueError, LookupError, TypeError):  # the file, or an entry of the file, may be missing
        return None
    return said if marked == 0 and not listed else None


def _is_plain(table: Table, fields: list[dict[str, Any]]) -> bool:
    """Check whether files hold exactly the table's columns: all columns, by name, in the table's types."""
    metadata = table.metadata()
    mapped = metadata.configuration.get("delta.columnMapping.mode", "none")
    named = not any(_PHYSICAL in one["metadata"] for field in fields for one in _all_fields(field))
    return (
        table.is_plain(_FEATURES)
        and (mapped == "name" or (mapped == "none" and named))
        and all(map(_is_as_stored, fields))
    )


def _is_below(path: str) -> bool:
    """Check whether a file lies in the table's folder; files of a shallow clone lie in a different folder."""
    return ":" not in path and not path.startswith("/")


def _is_readable(path: str) -> bool:
    """Check whether Spark reads a path as given; Spark skips names that begin with ``_`` or a dot."""
    return not _PATTERNS & set(path) and PurePosixPath(path).name[0] not in "_."


def _is_as_stored(field: dict[str, Any]) -> bool:
    """Check whether files hold a column's values in the column's type."""
    # Metadata states the widening of a type, and of each type inside.
    return not any("delta.typeChanges" in one["metadata"] for one in _all_fields(field)) and all(
        kind in _TYPES or kind.startswith("decimal(")
        for kind in _inside(field["type"])
        if isinstance(kind, str)
    )


def _all_fields(field: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a column and the fields of all structs inside."""
    return [field, *(one for one in _inside(field["type"]) if not isinstance(one, str))]


def _inside(type_: str | dict[str, Any]) -> Iterator[str | dict[str, Any]]:
    """Yield the atomic types and the fields within a type."""
    if isinstance(type_, str):
        yield type_
    elif type_["type"] == "struct":
        for field in type_["fields"]:
            yield field
            yield from _inside(field["type"])
    else:
        for part in _NESTED[type_["type"]]:
            yield from _inside(type_[part])


def _fields(fields: Iterable[dict[str, Any]], *, stored: bool) -> list[dict[str, Any]]:
    """Return fields with their names in files (`stored`) or in the table, without Delta's own metadata."""
    return [
        {
            "name": field["metadata"].get(_PHYSICAL, field["name"]) if stored else field["name"],
            "type": _type(field["type"], stored=stored),
            "nullable": True,  # as in files
            "metadata": {n: value for n, value in field["metadata"].items() if not n.startswith("delta.")},
        }
        for field in fields
    ]


def _type(type_: str | dict[str, Any], *, stored: bool) -> str | dict[str, Any]:
    if isinstance(type_, str):
        return type_
    kind = type_["type"]
    if kind == "struct":
        return {"type": kind, "fields": _fields(type_["fields"], stored=stored)}
    parts = {part: _type(type_[part], stored=stored) for part in _NESTED[kind]}
    return {**type_, **parts, _MAY_BE_NULL[kind]: True}
