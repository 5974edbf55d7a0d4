"""Every kind of type, relation and change of PostgreSQL while a reader runs; contents are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.lake.location import Lake
from tests.bronze.running import Running
from tests.pipelines.whole.test_end_to_end import Flow
from tests.torture.rich import many, sections, wide

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.torture, pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(3000)]

PLAYED = {**sections(), "wide": wide(), "many": many()}


@pytest.mark.parametrize(
    "names", [[name for name in PLAYED if name != "many"], ["many"]], ids=["every kind", "many tables"]
)
def test_silver_is_the_source(spark: SparkSession, database: str, tmp_path: Path, names: list[str]) -> None:
    flow = Flow(spark, database, Lake(path=str(tmp_path / "lake")))
    try:
        for name in names:
            flow.play([PLAYED[name][0]])
            flow.note_tables(name)
        flow.compare(0, flow.carry())
        with Running(flow.source, str(flow.lake.path), pipeline="e2e") as running:
            for name in names:
                flow.play(PLAYED[name][1])
                flow.note_tables(name)
        assert running.error is None
        flow.compare(1, flow.carry())
    finally:
        flow.silver.close()
        flow.connection.close()
    errors = {error.name: f"{error.code}: {error.message}" for error in flow.control.open_errors()}
    assert (flow.differences, errors) == ({}, {})
