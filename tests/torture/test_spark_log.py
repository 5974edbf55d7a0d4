"""Spark's log file in a pipeline that runs for months."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAILS_OFTEN = """
import sys
from contextlib import suppress
from pathlib import Path
from pyspark.errors import PySparkException
from deltasmelt.pipelines.spark.session import spark_session, stop_session

own = {"spark.master": "local[1]", "spark.driver.memory": "1g"}
own["spark.driver.extraJavaOptions"] = "-Dsmelt.log.size=20KB"
session = spark_session(own, log=Path(sys.argv[1]), brief=True)
for _ in range(20):
    with suppress(PySparkException):
        session.sql("SELECT raise_error('a cause') FROM range(3)").collect()
stop_session(session)
"""


@pytest.mark.torture
@pytest.mark.process
def test_spark_log_is_bounded_and_private(tmp_path: Path) -> None:
    log = tmp_path / "spark-1.log"
    subprocess.run([sys.executable, "-c", FAILS_OFTEN, str(log)], cwd=ROOT, check=True, timeout=200)
    files = {path.name: path.stat() for path in tmp_path.glob("*.log*")}
    assert set(files) == {"spark-1.log", "spark-1.log.1"}
    assert all(file.st_size < 30_000 for file in files.values())
    assert all(file.st_mode & 0o777 == 0o600 for file in files.values())
