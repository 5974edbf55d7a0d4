"""`deltasmelt.init`, `run` and `start` in a program that has a session: progress, errors, Ctrl-C, the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import deltasmelt
from deltasmelt.bronze.lake.control import Cut, Run
from deltasmelt.bronze.lsn import Lsn
from tests.fix_spark import reading
from tests.patience import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def interrupt_stages(others: set[threading.Thread]) -> None:
    """Send Ctrl-C to this process once silver and gold of a new run work."""
    wait_for(lambda: "stages" in {thread.name for thread in {*threading.enumerate()} - others}, 60)
    os.kill(os.getpid(), signal.SIGINT)


def test_interrupt_and_failing_progress_wait_for_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An interruption of the wait ends no run; what `progress` raises ends none, either."""
    ended: list[bool] = []
    refused: list[RuntimeError] = []
    ready = threading.Event()

    def work(*_: object, progress: Any, stop: threading.Event, **__: object) -> None:
        ready.wait(60)
        for _count in range(2):
            progress.cut(Cut("silver", Lsn(1), None, {}), [Run("silver", "t", "full", None, None)])
        os.kill(os.getpid(), signal.SIGINT)
        stop.wait(60)
        time.sleep(0.5)
        ended.append(True)

    def progress(step: deltasmelt.Progress) -> None:
        try:
            running.wait()
        except RuntimeError as error:
            refused.append(error)
        raise ConnectionError(step.layer)

    file = tmp_path / "pipeline.yml"
    file.write_text("pipeline: p\nsource: {dsn: 'host=x', slot: s, publication: p}\nlake: {path: ./lake}\n")
    monkeypatch.setattr("deltasmelt.running.run_layers", work)
    running = deltasmelt.start(file, progress=progress)
    threading.Timer(0.5, ready.set).start()
    with pytest.raises(KeyboardInterrupt), running:
        running.wait()
    assert ended == [True]
    assert not running.alive
    assert len(refused) == 2
    assert caplog.text.count("progress failed") == 2


PROGRAM = """
import threading, time, deltasmelt, deltasmelt.running, sys
from concurrent.futures import ThreadPoolExecutor

def work(*_, stop, **__):
    with ThreadPoolExecutor() as pool:  # as silver's
        pool.submit(stop.wait, 60).result()
    print("ended in order")

deltasmelt.running.run_layers = work
running = deltasmelt.start(sys.argv[1])
time.sleep(0.5)
"""


def test_end_of_program_stops_its_run(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yml"
    file.write_text("pipeline: p\nsource: {dsn: 'host=x', slot: s, publication: p}\nlake: {path: ./lake}\n")
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(file)], capture_output=True, text=True, check=False, timeout=50
    )
    assert (process.stdout, process.stderr, process.returncode) == ("ended in order\n", "", 0)


@pytest.mark.spark
@pytest.mark.postgres
@pytest.mark.timeout(600)
def test_program_starts_watches_and_stops_its_pipeline(
    spark: SparkSession, database: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def execute(*statements: str) -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def rows() -> list[tuple[int, str]]:
        with reading(spark), deltasmelt.open(file) as lake:
            return [(row["id"], row["note"]) for row in lake.table("silver.t").orderBy("id").collect()]

    execute("CREATE TABLE t (id int PRIMARY KEY, note text)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    file = deltasmelt.init(database, tmp_path / "pipeline.yml")
    text = file.read_text()
    assert "documents: []" in text
    with pytest.raises(deltasmelt.SmeltError):
        deltasmelt.init(database, file)
    assert file.read_text() == text

    deltasmelt.run(file, until_caught_up=True)
    assert rows() == [(1, "a"), (2, "b")]

    steps: list[deltasmelt.Progress] = []
    with deltasmelt.start(file, progress=steps.append) as running:
        execute("UPDATE t SET note = 'c' WHERE id = 1", "INSERT INTO t VALUES (3, 'd')")
        wait_for(lambda: any(step.layer == "silver" and step.changes.get("t") for step in steps))
        assert running.alive
        assert not running.wait(0)
        assert not running.status().errors
        with pytest.raises(deltasmelt.DefiniteError) as second:
            deltasmelt.run(file, until_caught_up=True)
        assert second.value.code == "already-running"
    assert not running.alive
    assert rows() == [(1, "c"), (2, "b"), (3, "d")]

    # Ctrl-C ends the run in order: the locks are free.
    threading.Thread(target=interrupt_stages, args=({*threading.enumerate()},)).start()
    with pytest.raises(KeyboardInterrupt):
        deltasmelt.run(file)
    # Only a statement that the run had begun in the program's own session may last longer.
    wait_for(lambda: not {"deltasmelt", "stages"} & {thread.name for thread in threading.enumerate()}, 120)

    (tmp_path / "bad.yml").write_text("document: bad\nroot: public.absent\nfields: [id]\n")
    file.write_text(text.replace("documents: []", "documents: [bad.yml]"))
    execute("INSERT INTO t VALUES (4, 'e')")
    with pytest.raises(deltasmelt.DefiniteError, match="bad") as stopped:
        deltasmelt.run(file, until_caught_up=True)
    assert stopped.value.code == "tables-stopped"
    assert "bad" in str(stopped.value)
    assert stopped.value.remedy
    assert rows()[-1] == (4, "e")
    spark.sql("SELECT 1").collect()  # the program's session is left alive
    assert capfd.readouterr().out == ""
