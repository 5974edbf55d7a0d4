"""The one Spark session of a test run, and how tests read by it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

import pytest

from pipelines.session import spark_session
from silver.sessions import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Row, SparkSession

SECRET: Final = {"spark.hadoop.fs.s3a.secret.key": f"a {uuid.uuid4().hex}\\"}
"""A setting that no other account may see."""

_READING: Final = {
    # A test's SELECT is run once over few rows: code made for it would cost more than all of them.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.files.minPartitionNum": "1",
}


def rows_of(spark: SparkSession, query: str) -> list[Row]:
    """What a test looks at: the rows of a query of its own, which is interpreted."""
    with settings(spark, _READING):
        return spark.sql(query).collect()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session the product itself would start, on two cores."""
    session = spark_session({"spark.driver.memory": "3g", "spark.master": "local[2]", **SECRET})
    yield session
    session.stop()
