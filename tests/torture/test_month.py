"""Two weeks of `make bench-month`, with fewer tables: nothing grows after the first week."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.benchmarks.jumping_clock import is_possible

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.torture, pytest.mark.process, pytest.mark.timeout(3600)]


@pytest.mark.skipif(not is_possible(), reason="needs Linux and a C compiler")
def test_nothing_grows_after_the_first_week(tmp_path: Path) -> None:
    """PostgreSQL, the reader and a run stay up while the wall clock jumps from day to day."""
    measures = tmp_path / "month.csv"
    words = ["--days", "16", "--tables", "16", "--seconds", "5", "--csv", str(measures)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.bench_month", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert len(measures.read_text().splitlines()) == 1 + 16
