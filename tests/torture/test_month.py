"""A short `make bench-month` with fewer tables: nothing grows after the first week."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.benchmarks.jumping_clock import is_possible
from tests.benchmarks.month_measures import growing

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.torture
@pytest.mark.process
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not is_possible(), reason="needs Linux and a C compiler")
def test_nothing_grows_after_the_first_week(tmp_path: Path) -> None:
    """PostgreSQL, the reader and a run stay up while the wall clock jumps from day to day."""
    measures = tmp_path / "month.csv"
    words = ["--days", "18", "--tables", "12", "--seconds", "3", "--rest", "2", "--csv", str(measures)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.bench_month", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert len(measures.read_text().splitlines()) == 1 + 18


def test_only_lasting_growth_counts_as_growth() -> None:
    """A saw and a late outlier are flat; a leak of 4 MiB a day, and a file more a table and day, are not."""
    days = [float(day) for day in range(1, 19)]
    saw = [{"day": day, "run MiB": 450 + day % 4, "data files": 300 + 40 * (day % 5)} for day in days]
    assert not growing([*saw[:-1], {**saw[-1], "run MiB": 700.0}])
    leaking = [{**row, "run MiB": row["run MiB"] + 4 * row["day"]} for row in saw]
    assert set(growing(leaking)) == {"run MiB"}
    littering = [{**row, "data files": row["data files"] + 16 * row["day"]} for row in saw]
    assert set(growing(littering)) == {"data files"}
    # What gone tables leave on purpose, and more than that.
    marks = [{"day": day, "marks of bronze": 100 + 4 * day} for day in days]
    assert not growing(marks)
    assert growing([{**row, "marks of bronze": row["marks of bronze"] + 2 * row["day"]} for row in marks])
