"""Maintenance of a lake in a catalog: beside what others have there, and where a server guards settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bronze.lake.control_tables import ControlTables
from pipelines.runtime import maintenance
from pipelines.runtime.maintenance import Maintenance
from silver.run import spark_settings
from tests.gold.catalog_world import lake_in_catalog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from bronze.lake.location import Lake

STATIC = "spark.sql.warehouse.dir"
"""What no session may set."""


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with lake_in_catalog(spark, tmp_path_factory.mktemp("lake")) as made:
        yield made


def upkeep(spark: SparkSession, lake: Lake) -> Maintenance:
    return Maintenance(spark, lake, ControlTables(lake), retention=0, documents=False)


def test_a_setting_that_a_server_guards_is_left_as_it_is(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(maintenance._SETTINGS, STATIC, "elsewhere")
    monkeypatch.setattr(spark_settings, "REFUSED", set())
    assert upkeep(spark, lake).failed == {}
    assert list(spark_settings.REFUSED) == [STATIC]
