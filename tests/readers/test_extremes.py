"""delta-rs, DataFusion and pyarrow read every value that Spark writes, for every type and its extremes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from deltasmelt.bronze.lake.location import Lake
from tests.readers.extremes import MOMENTS, OWN_ROWS, extremes, moments
from tests.readers.values import by_arrow, by_datafusion, by_files, compared, microseconds, plain_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Layer

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(path=str(tmp_path_factory.mktemp("extremes") / "lake"))
    extremes(spark, lake)
    moments(spark, lake)
    return lake


@pytest.mark.parametrize("layer", ["silver", "gold"])
def test_every_type_is_readable_by_other_readers(layer: Layer, lake: Lake, spark: SparkSession) -> None:
    path = lake.uri(layer, "extremes")
    expected = plain_rows(pa.table(spark.sql(f"SELECT * FROM {lake.sql(layer, 'extremes')}").toArrow()))
    assert len(expected) == OWN_ROWS
    assert {row["at"] for row in expected} == {
        None,
        *(f"{microseconds(moment)} us UTC" for moment in MOMENTS),
    }
    for reader in (by_datafusion, by_files):
        assert compared(reader, path, expected, [microseconds(moment) for moment in MOMENTS]) == [], reader
    schemas = [pq.ParquetFile(file).schema for file in DeltaTable(path).file_uris()]
    types = {schema.column(at).physical_type for schema in schemas for at in range(len(schema))}
    assert "INT64" in types
    assert "INT96" not in types


def test_files_skipped_by_timestamp_lose_no_row(lake: Lake, spark: SparkSession) -> None:
    """Statistics have milliseconds: a reader that treats a statistic as the exact value misses a file."""
    path = lake.uri("silver", "moments")
    expected = plain_rows(pa.table(spark.sql(f"SELECT * FROM {lake.sql('silver', 'moments')}").toArrow()))
    assert len(DeltaTable(path).file_uris()) == len(MOMENTS)
    just_before = [microseconds(moment) - 1 for moment in MOMENTS]
    for reader in (by_datafusion, by_arrow):
        assert compared(reader, path, expected, just_before) == [], reader
