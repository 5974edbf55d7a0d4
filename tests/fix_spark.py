"""The one Spark session of a test run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipelines.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session the product itself would start, on two cores."""
    session = spark_session({"spark.driver.memory": "3g", "spark.master": "local[2]"})
    yield session
    session.stop()
