"""The results of earlier runs: the newest are found among many, and the others are not read."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from bronze.lake.location import Lake
from pipelines.quality.results import append_results, history, identity
from tests.pipelines.quality.test_quality_report import FAILS, HOLDS, NOW, result

if TYPE_CHECKING:
    from pathlib import Path


def test_the_newest_runs_are_found_among_many_in_files_of_their_own_and_in_one(tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path))
    assert not history(lake, 5).runs

    def append(number: int) -> None:
        at = NOW + timedelta(seconds=number, microseconds=999_000 + number)
        append_results(lake, replace(result(HOLDS, FAILS), run_id=f"run {number}", run_at=at))

    for number in range(12):
        append(number)
    DeltaTable(str(tmp_path / "quality" / "results")).optimize.compact()
    for number in range(12, 15):
        append(number)
    for limit in (1, 3, 5, 99):
        found = history(lake, limit)
        assert [run.run_id for run in found.runs] == [f"run {number}" for number in range(15)][-limit:]
        assert {(run.passed, run.failed, run.errors) for run in found.runs} == {(1, 1, 0)}
        assert len(found.trends[identity(HOLDS.expectation)]) == min(limit, 15)
