"""The one Spark session of a test run, and how tests read by it."""

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
"""A setting that no other account may see."""

_CODE: Final = {"spark.sql.codegen.cache.maxEntries": "2000"}
"""Pieces of generated code that are kept. Spark keeps 100, and the tests' tables have some hundred shapes."""

_ZONED: Final = re.compile(r'(?<=[tT]ype":)"timestamp"')
_READING: Final = {
    # A test's SELECT is run once over few rows: code made for it would cost more than all of them.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.files.minPartitionNum": "1",
}


def rows_of(spark: SparkSession, query: str, *, without_zones: bool = False) -> list[Row]:
    """What a test looks at: the rows of a query of its own, which is interpreted.

    Args:
        spark: the session.
        query: SQL.
        without_zones: give moments in UTC without saying so; with a zone Python takes none of the year 1.
    """
    with reading(spark):
        frame = spark.sql(query)
        return (_without_zones(frame) if without_zones else frame).collect()


def reading(spark: SparkSession) -> AbstractContextManager[None]:
    """Within it the session interprets queries, also those that go through the product."""
    return settings(spark, _READING)


def signed(spark: SparkSession) -> AbstractContextManager[None]:
    """Within it statements count as the product's own: damage of which a table's log shows nothing."""
    return settings(spark, {USER_METADATA: SIGNATURE})


def _without_zones(frame: DataFrame) -> DataFrame:
    plain = _ZONED.sub('"timestamp_ntz"', frame.schema.json())
    naive = StructType.fromJson(json.loads(plain))
    return frame.select(*(col(quote(one.name)).cast(one.dataType).alias(one.name) for one in naive))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session the product itself would start, on two cores."""
    given = {"spark.driver.memory": "3g", "spark.master": "local[2]", **_CODE, **SECRET}
    session = spark_session(given)
    yield session
    stop_session(session)


@pytest.fixture
def active(spark: SparkSession) -> None:
    """Make the session this process's active one, as a notebook's is.

    A lake in a catalog writes rows by a session of its own, which `createDataFrame` makes the active one. So
    a test that ran before may have left such a session.
    """
    spark.createDataFrame([], "nothing INT")
