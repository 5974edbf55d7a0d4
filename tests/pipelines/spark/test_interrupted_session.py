"""Ctrl-C in a command that writes: first its JVM dies, then blocks end and locks are free. Starts JVMs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deltasmelt.bronze.lake.location import Lake
from deltasmelt.pipelines.runtime.locks import writing
from tests.patience import runs

ROOT = Path(__file__).parents[3]
WRITES = """
import logging, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from deltasmelt.pipelines.commands.context import spark_for
from deltasmelt.pipelines.runtime.locks import lake_lock, writing
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.terminal.failures import report
from deltasmelt.pipelines.terminal.output import Output
from deltasmelt.silver.spark.access import jvm_process

ENDLESS = "SELECT sum(a.id * b.id) FROM range(100000000) a CROSS JOIN range(100000000) b"
logging.getLogger().addHandler(logging.NullHandler())  # as the command: py4j logs the death of its JVM
pipeline = load_pipeline(Path(sys.argv[1]))
lake = pipeline.lake_address()
pool = ThreadPoolExecutor(1)
try:
    with lake_lock(lake, ["silver"], command="smelt rebuild"), spark_for(pipeline, Output()) as spark:
        jvm = jvm_process()
        with writing(lake, "silver"):
            work = pool.submit(lambda: spark.sql(ENDLESS).collect())
            while not spark.sparkContext.statusTracker().getActiveJobsIds():
                time.sleep(0.05)
            try:
                print(jvm.pid, flush=True)
                while not work.done():  # as the commands: a wait without end may miss a signal
                    time.sleep(0.1)
                work.result()
            finally:
                # as the end of a cycle, which also asks Spark for the views to drop
                pool.shutdown(wait=True)
                print("statement ended, JVM", jvm.returncode, flush=True)
                spark.catalog.dropTempView("x")
except BaseException as error:
    print("code", report(error), flush=True)
with spark_for(pipeline, Output()) as spark:
    print(spark.sql("SELECT 1").count(), "in a new session", flush=True)
"""


@pytest.mark.spark
@pytest.mark.parametrize(
    "signals",
    [
        [signal.SIGINT],
        # Of two signals within a millisecond the second now and then interrupts the end of the block: open.
        pytest.param([signal.SIGTERM, signal.SIGINT], marks=pytest.mark.torture),
    ],
)
def test_ctrl_c_ends_jvm_before_lock(tmp_path: Path, signals: list[signal.Signals]) -> None:
    file = tmp_path / "pipeline.yml"
    file.write_text("pipeline: shop\nsource: {dsn: x, slot: s, publication: p}\nlake: {path: ./lake}\n")
    process = subprocess.Popen(
        [sys.executable, "-c", WRITES, str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SMELT_LOGS": str(tmp_path / "logs")},
    )
    with process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.strip().isdigit():
            process.kill()
            pytest.fail(f"{line}{process.stderr and process.stderr.read()}")
        for number in signals:
            process.send_signal(number)
        with writing(Lake(path=str(tmp_path / "lake")), "silver"):  # waits in the kernel
            assert not runs(int(line)), "its JVM outlives the lock"
        output, errors = process.communicate(timeout=300)
    steps = output.splitlines()
    assert steps[0] == "statement ended, JVM -9", output + errors
    assert steps[1] in {"code 130", "code 143"}, output + errors
    assert steps[2:] == ["1 in a new session"], output + errors
    assert "Traceback" not in errors
