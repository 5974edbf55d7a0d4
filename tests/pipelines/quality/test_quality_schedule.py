"""Quality in parallel with a pipeline: rate-limited, never blocking, and its failures are only reported."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from deltasmelt.pipelines.quality.results import history
from deltasmelt.pipelines.quality.run import RunEndedError, run_quality
from deltasmelt.pipelines.quality.schedule import ParallelQuality
from deltasmelt.pipelines.runtime.stages import Stages

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.pipelines.quality_lake import QualityLake

RULES = """\
table: gold.customer
expectations:
  - sql: SELECT d.id FROM {batch} AS d LEFT ANTI JOIN {silver.customers} AS c ON c.id = d.id
"""

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.usefixtures("interpreted")]


def test_a_run_runs_beside_cycles_when_due(
    spark: SparkSession,
    lake: QualityLake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("SMELT_LOGS", str(tmp_path / "logs"))
    caplog.set_level(logging.INFO, "deltasmelt.quality")
    lake.suite("rules.yml", RULES)
    messages: list[str] = []
    schedule = ParallelQuality(lake.pipeline, 3600, messages.append)
    stop = threading.Event()
    turns: list[bool] = []

    def after_cycle(session: SparkSession) -> None:
        schedule.after_cycle(session)
        turns.append(schedule.wait(0))
        if len(turns) > 2 and schedule.wait(60):
            stop.set()

    stages = Stages(spark, lake.pipeline, [], layers=("gold",), after_cycle=after_cycle)
    stages.carry(lambda: None, stop)
    assert turns[:2] == [False, False]  # the cycles went on meanwhile
    assert len(history(lake.lake, 9).runs) == 1
    (line,) = messages
    assert "expectations hold as of 0/65" in line
    assert list((tmp_path / "logs").glob("*/quality.html"))
    restarted = ParallelQuality(lake.pipeline, 3600, messages.append)  # a restart: it is not due yet
    restarted.after_cycle(spark)
    assert restarted.wait(60)
    assert len(history(lake.lake, 9).runs) == 1

    wrong = lake.pipeline.quality.model_copy(update={"masked": ["public.nothing.at_all"]})
    failing = ParallelQuality(lake.pipeline.model_copy(update={"quality": wrong}), 0.001, messages.append)
    failing.after_cycle(spark)
    assert failing.wait(60)
    assert "data quality could not be checked: quality.masked names" in messages[-1]
    assert messages[-1] in caplog.messages
    with failing:
        pass
    failing.after_cycle(spark)  # the run has ended
    assert failing.wait(0)
    assert len(messages) == 2

    pipeline = lake.alone("silver.countries")
    messages_after: list[str] = []
    with pytest.raises(RunEndedError):  # found at the end of the load, which takes seconds
        run_quality(spark, pipeline, progress=messages_after.append, ended=lambda: len(messages_after) >= 2)
    assert messages_after[-1] == "loading Great Expectations"
    with pytest.raises(RunEndedError):
        run_quality(
            spark,
            pipeline,
            progress=messages_after.append,
            ended=lambda: "checking silver.countries" in messages_after[-1],
        )
    assert len(history(lake.lake, 9).runs) == 1


def test_an_unreadable_history_stops_nothing(
    spark: SparkSession, lake: QualityLake, caplog: pytest.LogCaptureFixture
) -> None:
    place = lake.lake.uri("quality", "results")
    write_deltalake(place, pa.table({"odd": [1]}))
    messages: list[str] = []
    schedule = ParallelQuality(lake.alone("silver.countries"), 3600, messages.append)
    schedule.after_cycle(spark)
    assert schedule.wait(60)
    assert "quality.results could not be read" in caplog.text
    # The run that was begun nevertheless cannot be kept there, which is told and ends nothing.
    (line,) = messages
    assert line.startswith("data quality could not be checked: ")
