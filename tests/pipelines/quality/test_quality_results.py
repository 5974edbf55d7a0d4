"""Results of earlier runs: the newest results are found among many, without reading the rest."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from deltasmelt.bronze.lake import control_table
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.pipelines.quality import results
from deltasmelt.pipelines.quality.examples import visible_form
from deltasmelt.pipelines.quality.masking import Masks
from deltasmelt.pipelines.quality.results import KEPT, append_results, history, identity, newest_run
from tests.pipelines.quality.test_quality_report import ERROR, FAILS, HOLDS, NOW, result

if TYPE_CHECKING:
    from pathlib import Path


def test_newest_runs_are_selected_in_any_file_layout(tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path))
    assert not history(lake, 5).runs
    assert newest_run(lake) is None

    def append(number: int) -> None:
        at = NOW + timedelta(seconds=number, microseconds=999_000 + number)
        append_results(lake, replace(result(HOLDS, FAILS), run_id=f"run {number}", run_at=at))

    for number in range(12):
        append(number)
    DeltaTable(str(tmp_path / "quality" / "results")).optimize.compact()
    for number in range(12, 15):
        append(number)
    for limit in (1, 3, 5, 99):
        runs = history(lake, limit)
        assert [run.run_id for run in runs.runs] == [f"run {number}" for number in range(15)][-limit:]
        assert {(run.passed, run.failed, run.errors) for run in runs.runs} == {(1, 1, 0)}
        assert len(runs.trends[identity(HOLDS.expectation)]) == min(limit, 15)
    assert newest_run(lake) == NOW + timedelta(seconds=14, microseconds=999_014)


def test_warnings_pass_and_older_severities_are_recognized(tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path))
    failed = [
        replace(FAILS, expectation=replace(FAILS.expectation, severity=severity))
        for severity in ("error", "warning", "info")
    ]
    append_results(lake, result(HOLDS, *failed, ERROR))
    table = DeltaTable(str(tmp_path / "quality" / "results"))
    rows = table.to_pyarrow_table()
    critical = pc.replace_substring(rows["severity"], "error", "critical")
    older = rows.set_column(rows.schema.get_field_index("severity"), "severity", critical)
    write_deltalake(table, older.set_column(0, "run_id", pa.array(["older"] * len(rows))), mode="append")
    assert [
        (run.run_id, run.passed, run.failed, run.warned, run.errors) for run in history(lake, 9).runs
    ] == [("abc", 1, 1, 2, 1), ("older", 1, 1, 2, 1)]


@pytest.mark.parametrize(
    ("observed", "percent", "kept", "trend"),
    [
        (Decimal("12.50"), None, '"12.50"', 12.5),
        (float("nan"), None, None, None),
        (float("inf"), 2.5, None, 97.5),
        (None, float("nan"), None, None),
        ([1.5, float("nan")], None, "[1.5, null]", None),
        ({date(2026, 1, 2): Decimal("NaN")}, None, '{"2026-01-02": null}', None),
        ("NaN", None, '"NaN"', None),
        ("many", 10.0, '"many"', 90.0),
        (True, None, "true", None),
    ],
)
def test_non_numbers_become_null_and_decimals_become_numbers(
    tmp_path: Path, observed: object, percent: float | None, kept: str | None, trend: float | None
) -> None:
    lake = Lake(path=str(tmp_path))
    held_result = replace(HOLDS, observed=observed, unexpected_percent=percent)
    append_results(lake, result(held_result))
    (row,) = DeltaTable(str(tmp_path / "quality" / "results")).to_pyarrow_table().to_pylist()
    assert row["observed"] == kept
    (point,) = history(lake, 9).trends[identity(HOLDS.expectation)]
    assert point.value == trend
    failed = replace(held_result, success=False)
    assert "NaN" not in json.dumps(result(failed).to_dict()).replace('"NaN"', "")


def test_many_files_become_few_and_old_runs_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(path=str(tmp_path))
    monkeypatch.setattr(control_table, "COMPACT_ABOVE", 8)
    monkeypatch.setattr(results, "_TIDY_EVERY", 5)
    for number in range(30):
        at = NOW + number * KEPT / 20
        append_results(lake, replace(result(HOLDS, FAILS), run_id=f"run {number:02}", run_at=at))
    assert len(DeltaTable(str(tmp_path / "quality" / "results")).file_uris()) <= 9
    runs = [run.run_id for run in history(lake, 99).runs]
    assert runs[-21:] == [f"run {number:02}" for number in range(9, 30)]
    assert "run 00" not in runs


def test_first_of_many_observed_values_are_stored() -> None:
    distinct = replace(HOLDS, observed={"values": list(range(99)), "text": "x" * 999})
    observed = visible_form(distinct, Masks({})).observed
    assert observed["values"] == [*range(20), "… 79 more"]
    assert len(observed["text"]) == 200
