"""The end of a JVM is reported with exit code and log; every different failure keeps its own error."""

from __future__ import annotations

import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkContext

from deltasmelt.bronze.errors import DefiniteError, TransientError
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.spark.held_session import HeldSession
from deltasmelt.pipelines.spark.jvm_death import death, death_reported

if TYPE_CHECKING:
    from pathlib import Path

HEAP = {"spark.driver.memory": "3g"}


@pytest.mark.parametrize(
    ("program", "logged", "message"),
    [
        ("exit 52", "", "ran out of memory, with a heap of 3g"),
        ("exit 3", "", "ran out of memory"),
        ("exit 1", "java.lang.OutOfMemoryError: Java heap space", "ran out of memory"),
        ("kill -9 $$", "", "was killed (signal 9); the operating system does this when memory runs out"),
        # What an earlier process of the same number left in the log is not why.
        ("kill -9 $$", "java.lang.OutOfMemoryError: Java heap space", "was killed (signal 9)"),
        ("kill -6 $$", "", "ended (signal 6)"),
        ("exit 7", "", "ended (exit code 7)"),
    ],
)
def test_how_it_ended_is_told(
    program: str, logged: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "spark.log"
    log.write_text(logged)
    with subprocess.Popen(["/bin/sh", "-c", f"sleep 0.2; {program}"]) as process:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
        with pytest.raises(DefiniteError) as caught, death_reported(HEAP, log):
            raise Py4JNetworkError("Error while sending or receiving")
    assert message in caught.value.message
    assert caught.value.code == "spark-died"
    assert caught.value.where == str(log)
    assert "No data is lost" in str(caught.value.remedy)


def test_while_it_lives_every_error_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "none.log"
    with subprocess.Popen(["/bin/sleep", "30"]) as process:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
        assert death(ValueError("x"), HEAP, log) is None
        process.kill()
        process.wait()
        assert death(TransientError("x", code="lake-unreachable"), HEAP, log) is None
        assert death(ValueError("x"), HEAP, log) is not None


def test_foreign_jvm_death_is_recognized_by_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)
    death_error = death(ConnectionRefusedError(111, "Connection refused"), HEAP, tmp_path / "none.log")
    assert death_error is not None
    assert "no longer answers" in death_error.message
    # So py4j tells a connection that breaks while it waits for an answer.
    assert (
        death(Py4JError("An error occurred while calling o59.sql"), HEAP, tmp_path / "none.log") is not None
    )
    refused = Py4JError("An error occurred while calling o5. Trace:\npy4j.security.Py4JSecurityException\n")
    for of_another_kind in (refused, BrokenPipeError(32, "Broken pipe"), ValueError("x")):
        assert death(of_another_kind, HEAP, tmp_path / "none.log") is None


STOPS_A_HUNG_ONE = """
import os, signal, time
from deltasmelt.pipelines.spark.session import spark_session, stop_session
from deltasmelt.silver.spark.access import jvm_process
session = spark_session(brief=True)
os.kill(jvm_process().pid, signal.SIGSTOP)
begun = time.monotonic()
print(stop_session(session, patience=2), time.monotonic() - begun)
"""


@pytest.mark.spark
def test_unresponsive_jvm_is_killed_within_bound() -> None:
    command = [sys.executable, "-c", STOPS_A_HUNG_ONE]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    code, seconds = process.stdout.split()
    assert int(code) == -signal.SIGKILL, process.stderr
    assert float(seconds) < 10


def test_an_inner_blocks_reason_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inner block has closed the session; afterwards no process shows its exit code."""
    monkeypatch.setattr(SparkContext, "_gateway", None)
    file = tmp_path / "shop.yml"
    file.write_text("pipeline: shop\nlake: {path: lake}\nsource: {slot: s, publication: p}\n")
    held = HeldSession(load_pipeline(file))
    with pytest.raises(DefiniteError, match="ran out of memory"), held.death_reported():
        raise DefiniteError("ran out of memory", code="spark-died") from Py4JNetworkError("no answer")
    with pytest.raises(ValueError, match="a wrong value"), held.serving_tables():
        raise ValueError("a wrong value") from Py4JNetworkError("no answer")
