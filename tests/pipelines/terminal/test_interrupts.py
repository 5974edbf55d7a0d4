"""Interrupts at moments when Python cannot raise them, and in the first process of a container."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deltasmelt import __main__ as entry
from deltasmelt.pipelines.terminal.interrupts import Terminated, terminable
from tests.patience import runs, wait_for


class Dying:
    """An object whose finalization is interrupted."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def __del__(self) -> None:
        signal.raise_signal(self.number)
        for _ in range(1000):  # handlers run between two instructions
            pass


@pytest.mark.parametrize(
    ("number", "kind"),
    [(signal.SIGTERM, Terminated), (signal.SIGHUP, Terminated), (signal.SIGINT, KeyboardInterrupt)],
)
def test_interruption_inside_destructor_is_not_lost(
    number: signal.Signals, kind: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    hook, handler = sys.unraisablehook, signal.getsignal(number)
    went_on: list[float] = []

    def clean_up() -> None:
        victim = Dying(number)
        del victim
        went_on.append(time.monotonic())
        time.sleep(5)

    with pytest.raises(kind) as caught, terminable():
        clean_up()
    assert time.monotonic() - went_on[0] < 4
    if isinstance(caught.value, Terminated):
        assert caught.value.number == number
    assert (sys.unraisablehook, signal.getsignal(number)) == (hook, handler)
    assert "Exception ignored" not in capfd.readouterr().err


def test_other_errors_of_destructor_are_reported_normally(monkeypatch: pytest.MonkeyPatch) -> None:
    values: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: values.append(lost.exc_value))

    class Broken:
        def __del__(self) -> None:
            raise ValueError("x")

    with terminable():
        broken = Broken()
        del broken
    assert [type(error) for error in values] == [ValueError]


def test_first_container_process_ends_by_sigterm_while_loading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[int] = []
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr("deltasmelt.pipelines.cli.main", lambda: signal.raise_signal(signal.SIGTERM))
    try:
        entry.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended == [143]


STARTS = """
import pathlib
from pyspark import SparkConf
from deltasmelt.pipelines.spark.launch import launch
launch(SparkConf(loadDefaults=False), pathlib.Path("spark.log"))
"""


def test_ctrl_c_does_not_await_starting_jvm(tmp_path: Path) -> None:
    """A JVM under load reports its port late, and a JVM of this test never."""
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text("#!/bin/sh\necho $$ > started\nexec cat\n")
    submit.chmod(0o755)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", STARTS],
        cwd=tmp_path,
        env={
            **os.environ,
            "SPARK_HOME": str(tmp_path),
            "TMPDIR": str(temporary),
            "PYTHONPATH": str(Path(__file__).parents[3]),
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        started = tmp_path / "started"
        wait_for(lambda: started.exists() and started.read_text(), 120)
        jvm = int(started.read_text())
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert said.splitlines()[-1] == "KeyboardInterrupt"
    assert list(temporary.iterdir()) == []
    wait_for(lambda: not runs(jvm), 120)  # its standard input is closed


def test_end_of_process_collects_no_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    at_exit: list[object] = []
    monkeypatch.setattr("deltasmelt.pipelines.cli.main", lambda: sys.exit(130))
    monkeypatch.setattr(atexit, "register", at_exit.append)
    with pytest.raises(SystemExit):
        entry.main()
    assert at_exit == [gc.freeze], "not before: a job runner may go on"
