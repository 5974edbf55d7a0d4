"""A repeatedly dying reader process is restarted only while the reader makes progress."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.pipelines.runtime.reader_supervision import ReaderProcess
from deltasmelt.pipelines.settings import load_pipeline
from tests.patience import runs, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.process

MORTAL = """#!{python}
import json, os, pathlib, signal
lives = pathlib.Path({lives!r})
life = len(lives.read_text()) if lives.exists() else 0
lives.write_text("x" * (life + 1))
tables = {{"public.a": {{"rows": {rows}, "done": {done}}}}}
print(json.dumps({{"event": "progress", "durable": 100, "snapshots": {{}}}}), flush=True)
print(json.dumps({{"event": "progress", "durable": {durable}, "snapshots": tables}}), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def lives_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, most: int, **values: str
) -> tuple[int, DefiniteError | None]:
    """Return how often a dying reader was started, and the error if the run gave the reader up."""
    lives, program = tmp_path / "lives", tmp_path / "mortal"
    program.write_text(MORTAL.format(python=sys.executable, lives=str(lives), **values))
    program.chmod(0o700)
    (tmp_path / "shop.yml").write_text(
        "pipeline: shop\nsource: {slot: s, publication: p}\nlake: {path: ./lake}\n"
    )
    monkeypatch.setenv("SMELT_LOGS", str(tmp_path))
    monkeypatch.setattr("deltasmelt.pipelines.runtime.reader_supervision._PAUSE_SECONDS", 0.001)
    pipeline = load_pipeline(tmp_path / "shop.yml")
    reader = ReaderProcess(pipeline)
    monkeypatch.setattr(sys, "executable", str(program))
    deadline = time.monotonic() + 60

    def started() -> int:
        return len(lives.read_text()) if lives.exists() else 0

    reader.start()
    try:
        while started() <= most:
            assert time.monotonic() < deadline
            reader.check()
            time.sleep(0.01)
    except DefiniteError as error:
        return started(), error
    finally:
        reader.stop()
    return started(), None


def test_reader_dying_at_same_place_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lives, error = lives_of(
        tmp_path, monkeypatch, most=9, durable="100 + min(life, 1)", rows="0", done="True"
    )
    assert lives == 6, "the second brought something new, and is the first of five"
    assert error is not None
    assert error.code == "reader-died"
    assert "smelt.log" in str(error.where)


def test_reader_progressing_with_stream_is_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, error = lives_of(tmp_path, monkeypatch, most=9, durable="101 + life", rows="5", done="True")
    assert error is None


def test_reader_dying_of_copy_is_abandoned_despite_streaming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives, error = lives_of(tmp_path, monkeypatch, most=9, durable="101 + life", rows="5", done="False")
    assert error is not None
    assert lives == 5


def test_one_whose_copy_gets_on_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, error = lives_of(tmp_path, monkeypatch, most=9, durable="100", rows="5 * (life + 1)", done="False")
    assert error is None


def test_slowly_dying_reader_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that ends the process after a quarter of an hour ends each new process again."""
    clock = itertools.count(step=900.0)
    monkeypatch.setattr(
        "deltasmelt.pipelines.runtime.reader_supervision.time", SimpleNamespace(monotonic=lambda: next(clock))
    )
    lives, error = lives_of(tmp_path, monkeypatch, most=9, durable="100", rows="0", done="True")
    assert lives == 5
    assert error is not None
    assert error.code == "reader-died"


TALKER = """#!{python}
import json
for number in range(3000):
    event = {{"event": "progress", "durable": number, "snapshots": {{}}, "said": "x" * 100}}
    print(json.dumps(event), flush=True)
print(json.dumps({{"event": "end", "stopped": False}}), flush=True)
"""


def reader_of(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tell: Callable[[dict[str, Any]], None],
    text: str = TALKER,
) -> ReaderProcess:
    """Return a reader whose program prints reports, and ends."""
    program = tmp_path / "talker"
    program.write_text(text.format(python=sys.executable))
    program.chmod(0o700)
    (tmp_path / "shop.yml").write_text(
        "pipeline: shop\nsource: {slot: s, publication: p}\nlake: {path: ./lake}\n"
    )
    monkeypatch.setenv("SMELT_LOGS", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(program))
    return ReaderProcess(load_pipeline(tmp_path / "shop.yml"), on_progress=tell)


def test_reader_output_is_drained_without_report_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command's standard error may be closed. A pipe that is no longer read would block the reader."""
    calls: list[int] = []

    def tell(event: dict[str, Any]) -> None:
        calls.append(event["durable"])
        raise BrokenPipeError

    reader = reader_of(tmp_path, monkeypatch, tell)
    reader.start()
    try:
        deadline = time.monotonic() + 30
        while not reader.finished:
            assert time.monotonic() < deadline, "the reader waits for somebody who reads"
            reader.check()
            time.sleep(0.01)
    finally:
        reader.stop()
    assert len(calls) == 1


def test_blocking_report_delays_neither_reader_nor_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-S at a terminal or a pager would block the reader, and the slot would retain WAL."""
    sent, released = list[int](), threading.Event()

    def tell(event: dict[str, Any]) -> None:
        sent.append(event["durable"])
        released.wait(60)

    reader = reader_of(tmp_path, monkeypatch, tell)
    reader.start()
    try:
        wait_for(lambda: reader.finished, 20)
    finally:
        start = time.monotonic()
        reader.stop()
        assert time.monotonic() - start < 10
        assert len(sent) == 1
        released.set()
    wait_for(lambda: len(sent) == 2, 10)
    assert sent[-1] == 2999, "the newest"


def test_failure_during_report_ends_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the reader would block on a pipe without a reader, and still seem alive."""

    def tell(event: dict[str, Any]) -> None:
        raise KeyError(f"no lag in report {event['durable']}")

    reader = reader_of(tmp_path, monkeypatch, tell)
    reader.start()
    with pytest.raises(KeyError, match="no lag in report"):
        wait_for(reader.check, 30)
    reader.stop()
    assert reader.restarts == 0


DEAF = """#!{python}
import pathlib, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "300"], stdout=subprocess.DEVNULL)
pathlib.Path(__file__).with_name("child").write_text(str(child.pid))
print('{{"event": "progress", "durable": 1, "snapshots": {{}}}}', flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize(("limit", "least"), [(None, 1.9), (0.3, 0.3)])
def test_unresponsive_reader_is_killed_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float | None, least: float
) -> None:
    """A person at a terminal has less patience: `limit`. The child is the JVM of a snapshot by Spark."""
    heard = threading.Event()
    reader = reader_of(tmp_path, monkeypatch, lambda _: heard.set(), DEAF)
    monkeypatch.setattr("deltasmelt.pipelines.runtime.reader_supervision.STOP_SECONDS", 2.0)
    reader.start()
    assert heard.wait(30)
    stop_time = time.monotonic()
    reader.request_end(limit=limit)
    due = reader._kill_at
    time.sleep(0.5)  # silver and gold end
    reader.stop()
    assert due is not None
    assert due - stop_time >= least, "counted from the moment when it was asked"
    assert least < time.monotonic() - stop_time < 60, "the reader itself would run for minutes"
    wait_for(lambda: not runs(int((tmp_path / "child").read_text())), 60)
