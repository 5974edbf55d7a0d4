"""Quality's tables in a catalog: expiring results, and constraints after a kill between change and record."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.catalog import commits
from deltasmelt.pipelines.quality import results
from deltasmelt.pipelines.quality.constraints import (
    CONSTRAINTS,
    Constraints,
    record_constraints,
    recorded_constraints,
)
from deltasmelt.pipelines.quality.results import KEPT, append_results, history
from tests.gold.catalog_world import lake_in_catalog
from tests.pipelines.quality.test_quality_report import FAILS, HOLDS, NOW, result
from tests.silver.killed import EndedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Lake


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with lake_in_catalog(spark, tmp_path_factory.mktemp("lake")) as lake_made:
        yield lake_made


def test_old_runs_go_also_those_with_examples(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_TIDY_EVERY", 1)
    for number, at in enumerate([NOW, NOW + KEPT / 2, NOW + KEPT + timedelta(seconds=1)]):
        append_results(lake, replace(result(HOLDS, FAILS), run_id=f"run {number}", run_at=at))
    assert [run.run_id for run in history(lake, 9).runs] == ["run 1", "run 2"]


def test_a_record_that_was_killed_between_its_two_statements_is_made_by_the_next_run(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise EndedError

    recorded = Constraints(NOW, enum_labels={7: ("sad", "ok")})
    with monkeypatch.context() as during:
        during.setattr(commits, "overwrite", killed)
        with pytest.raises(EndedError):
            record_constraints(lake, recorded)
    assert delta.open_table(lake.uri("quality", CONSTRAINTS)) is not None
    assert recorded_constraints(lake) is None
    record_constraints(lake, recorded)
    assert recorded_constraints(lake) == recorded
