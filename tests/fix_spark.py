"""The Spark session of a test run, and the tests' reads through the session."""

from __future__ import annotations

import json
import re
import uuid
from typing import TYPE_CHECKING, Final

import pytest
from pyspark.sql.functions import col
from pyspark.sql.types import StructType

from deltasmelt.bronze.lake.catalog.commit_marks import USER_METADATA
from deltasmelt.bronze.lake.foreign_commits import SIGNATURE
from deltasmelt.pipelines.spark.session import spark_session, stop_session
from deltasmelt.silver.spark.tuning import settings
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, Row, SparkSession

SECRET: Final = {"spark.hadoop.fs.s3a.secret.key": f"a {uuid.uuid4().hex}\\"}
"""A setting with a value that stays hidden from all accounts but the user's."""

_CODE: Final = {"spark.sql.codegen.cache.maxEntries": "2000"}
"""How many generated classes Spark caches: 100 by default, too few for the tests' several hundred shapes."""

_ZONED: Final = re.compile(r'(?<=[tT]ype":)"timestamp"')
_INTERPRETED: Final = {
    # A statement runs once over few rows: generated code would cost more than all rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.constraintPropagation.enabled": "false",
}
_READING: Final = {
    **_INTERPRETED,
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.files.minPartitionNum": "1",
}


def rows_of(spark: SparkSession, query: str, *, without_zones: bool = False) -> list[Row]:
    """Return the rows of a test's own query, which Spark interprets instead of compiling.

    Args:
        without_zones: return timestamps without their zone, in UTC. Python raises for zoned timestamps of
            year 1.
    """
    with reading(spark):
        frame = spark.sql(query)
        return (_without_zones(frame) if without_zones else frame).collect()


def reading(spark: SparkSession) -> AbstractContextManager[None]:
    """Interpret all queries of the session within the block, the product's queries included."""
    return settings(spark, _READING)


def signed(spark: SparkSession) -> AbstractContextManager[None]:
    """Sign commits as the product's own within the block: such damage leaves no sign in a table's log."""
    return settings(spark, {USER_METADATA: SIGNATURE})


def _without_zones(frame: DataFrame) -> DataFrame:
    plain = _ZONED.sub('"timestamp_ntz"', frame.schema.json())
    naive = StructType.fromJson(json.loads(plain))
    return frame.select(*(col(quote(field.name)).cast(field.dataType).alias(field.name) for field in naive))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Start the session that the product itself would start, on two cores."""
    configuration = {"spark.driver.memory": "3g", "spark.master": "local[2]", **_CODE, **SECRET}
    session = spark_session(configuration)
    yield session
    stop_session(session)


@pytest.fixture(scope="module")
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Interpret all queries of a module's tests, the product's included: few rows, many different plans."""
    with settings(spark, _INTERPRETED):
        yield


@pytest.fixture
def active(spark: SparkSession) -> None:
    """Make the session this process's active session, as in a notebook.

    A lake in a catalog writes rows through a separate session, which `createDataFrame` makes active. An
    earlier test may have left such a session behind.
    """
    spark.createDataFrame([], "nothing INT")
