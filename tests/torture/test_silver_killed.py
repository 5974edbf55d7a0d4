"""A silver process is killed at the points where a test can also end a cycle from inside."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.silver.run.test_killed import Stage

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.torture
@pytest.mark.spark
def test_silver_survives_kills_between_tables_and_around_cut(spark: SparkSession, tmp_path: Path) -> None:
    stage = Stage(spark, str(tmp_path))
    stage.write()
    stage.check(stage.silver().cycle())
    for point in ("after MERGE 1", "before CUT 1", "after CUT 1"):
        stage.write()
        before = stage.control.latest_cut("silver")
        command = [sys.executable, "-m", "tests.silver.killed", stage.path, point]
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=500)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        if point == "after CUT 1":
            stage.check(stage.control.latest_cut("silver"))
            assert stage.silver().cycle() is None
            continue
        assert stage.control.latest_cut("silver") == before
        stage.write()
        stage.check(stage.silver().cycle())
