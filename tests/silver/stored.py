"""Read the rows of a silver or gold table at a version from the files in its log, without Spark.

A test that lets Spark read each of its tables at the end may read earlier versions in this way: with Spark, a
plan and some jobs for a few rows cost a hundred times as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

from deltasmelt.silver.spark.small_reads import plain_files
from tests.fix_spark import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Lake, Layer

_PHYSICAL = "delta.columnMapping.physicalName"


def stored_rows(
    lake: Lake, name: str, version: int, *, layer: Layer = "silver"
) -> list[dict[str, Any]] | None:
    """Return rows by the table's names, moments in UTC without a zone; None if files alone do not suffice."""
    plain = plain_files(lake, layer, name, version)
    if plain is None:
        return None
    struct = {"type": "struct", "fields": list(plain.fields)}
    return [
        _named(row, struct)
        for path in plain.paths
        for row in pq.ParquetFile(path, coerce_int96_timestamp_unit="us").read().to_pylist()
    ]


def rows_by_spark(spark: SparkSession, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table, or of a view, in the form of `stored_rows`."""
    rows = rows_of(spark, f"SELECT * FROM {table}", without_zones=True)
    return [row.asDict(recursive=True) for row in rows]


def rows_at(
    spark: SparkSession, lake: Lake, name: str, version: int, *, layer: Layer = "silver"
) -> list[dict[str, Any]]:
    """Return a version's rows: from its files, or by Spark if Delta has to read them."""
    rows = stored_rows(lake, name, version, layer=layer)
    if rows is None:
        rows = rows_by_spark(spark, f"{lake.sql(layer, name)} VERSION AS OF {version}")
    return rows


def cells_at(
    spark: SparkSession, lake: Lake, name: str, columns: str, version: int | None = None
) -> list[tuple[Any, ...]]:
    """Return some columns of a silver table's rows, sorted, NULL first."""
    if version is None:
        version = DeltaTable(lake.uri("silver", name)).version()
    rows = rows_at(spark, lake, name, version)
    wanted = (tuple(row[column] for column in columns.split(", ")) for row in rows)
    return sorted(wanted, key=lambda cells: [(cell is not None, cell) for cell in cells])


def _named(value: Any, type_: str | dict[str, Any]) -> Any:
    """Return a value with the table's names: files have separate names for columns and fields."""
    if value is None:
        return None
    if isinstance(type_, str):
        return value.replace(tzinfo=None) if type_ == "timestamp" else value
    if type_["type"] == "struct":
        return {
            field["name"]: _named(value.get(field["metadata"].get(_PHYSICAL, field["name"])), field["type"])
            for field in type_["fields"]
        }
    if type_["type"] == "array":
        return [_named(item, type_["elementType"]) for item in value]
    return {_named(key, type_["keyType"]): _named(item, type_["valueType"]) for key, item in value}
