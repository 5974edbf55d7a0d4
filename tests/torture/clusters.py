"""Spark clusters on this machine, and the contents of a run's event log."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from deltasmelt.pipelines.demo.embedded_postgres import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

HOME = Path(pyspark.__file__).parent
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


@contextmanager
def standalone(folder: Path, *, workers: int) -> Iterator[str]:
    """Start a standalone master with workers of one core each on this machine; yield the master's address."""
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    started: list[subprocess.Popen[bytes]] = []
    try:
        master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"]
        started.append(_class(folder, "master", *master, "--port", str(port), "--webui-port", "0"))
        _until_open(port)
        for number in range(workers):
            words = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0"]
            words += ["--cores", "1", "--memory", "1200m", "--work-dir", str(folder / f"work{number}")]
            started.append(_class(folder, f"worker{number}", *words, address))
        yield address
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)


def _class(folder: Path, name: str, *words: str) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [str(HOME / "bin" / "spark-class"), *words],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=environment,
        )


def _until_open(port: int) -> None:
    for _ in range(300):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the master does not listen")


def executors() -> list[int]:
    """Return the ids of this machine's executor processes."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it ended while we looked
            continue
        if EXECUTOR in words and any("127.0.0.1" in word for word in words):
            pids.append(int(entry.name))
    return pids


def stages_begun(folder: Path, word: str) -> int:
    """Return how many stages began so far for statements with this word in description or plan."""
    stages: set[int] = set()
    executions: set[str] = set()
    for file in folder.rglob("events_*"):
        for line in file.read_text(errors="replace").splitlines():
            try:
                event: dict[str, Any] = json.loads(line)
            except json.JSONDecodeError:  # it is being written
                continue
            kind = event["Event"].rpartition(".")[2]
            if kind == "SparkListenerSQLExecutionStart":
                plan_text = f"{event.get('description')} {event.get('physicalPlanDescription')}"
                if word in plan_text:
                    executions.add(str(event["executionId"]))
            if kind == "SparkListenerJobStart":
                execution = event.get("Properties", {}).get("spark.sql.execution.id")
                if execution in executions:
                    stages |= set(event["Stage IDs"])
    return len(stages)


@dataclass
class Ran:
    """The work of a run's statements, read from its event log.

    Attributes:
        tasks: successful tasks of each stage; a repeated task counts once.
        read: records that a stage's tasks read from files and from earlier stages.
        executors: ids of the executors that ran tasks.
        lost: number of executors removed while the application ran.
        driver_bytes: bytes of results that tasks sent to the driver: the largest result, and the total.
    """

    tasks: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    read: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    executors: set[str] = field(default_factory=set)
    lost: int = 0
    driver_bytes: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, folder: Path) -> Ran:
        """Read the events of all applications in a folder."""
        ran = cls()
        largest = total = 0
        for number, file in enumerate(sorted(folder.rglob("events_*"))):
            for line in file.read_text(errors="replace").splitlines():
                event: dict[str, Any] = json.loads(line)
                kind = event["Event"]
                if kind == "SparkListenerExecutorRemoved":
                    ran.lost += 1
                if kind != "SparkListenerTaskEnd" or event["Task End Reason"]["Reason"] != "Success":
                    continue
                stage = number * 1_000_000 + event["Stage ID"]
                metrics = event["Task Metrics"]
                ran.executors.add(event["Task Info"]["Executor ID"])
                ran.tasks[stage].add(event["Task Info"]["Index"])
                ran.read[stage] += metrics["Input Metrics"]["Records Read"]
                ran.read[stage] += metrics["Shuffle Read Metrics"]["Total Records Read"]
                if event["Task Type"] == "ResultTask":
                    size = metrics["Result Size"]
                    largest, total = max(largest, size), total + size
        ran.driver_bytes = largest, total
        return ran

    def tasks_of_large(self, rows: int) -> list[int]:
        """Return the number of tasks of each stage that read at least `rows` records."""
        return [len(self.tasks[stage]) for stage, read in self.read.items() if read >= rows]
