"""`make bench-first`: the first use on a user's own database with 14 small tables, from `init` to `quality`.

The figures are seconds and CPU seconds of each command, its JVM and its reader included. The bars hold for
two idle cores. The job with a few changes is compared with Spark's own start in the same run (`_BARE`).
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg

from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer
from tests.benchmarks.measuring import machine, ratio, say
from tests.living import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_SAMPLE: Final = Path(__file__).parents[1] / "samples" / "trading.sql"
_IDLE: Final = "run, idle"
_FEW: Final = "run, 44 changes"
_START: Final = "Spark's start"
_BARS: Final[dict[str, float]] = {
    "run": 45, "preview": 12, "verify": 35, "quality": 30, _IDLE: 3, "status": 1, "check": 1,
}  # fmt: skip
"""Maximum seconds of a command; the remaining commands have no bar."""
_FEW_BESIDE_START: Final = 1.5
_BARE: Final = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
assert spark.sql("SELECT 1").collect()
"""
"""A program with a session of Spark's own settings, and one statement."""
_CHANGES: Final = """
UPDATE "order" SET freight = freight + 1 WHERE order_id IN (SELECT order_id FROM "order" ORDER BY 1 LIMIT 22);
UPDATE order_detail SET quantity = quantity + 1
  WHERE (order_id, product_id) IN (SELECT order_id, product_id FROM order_detail ORDER BY 1, 2 LIMIT 22)
"""
_POLL_SECONDS: Final = 0.1
SMELT: Final = (sys.executable, "-m", "deltasmelt")


def main() -> int:
    """Measure, print the table, and return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="bench-first")
    parser.add_argument("--option", action="append", default=[], help="a line of the section `spark`")
    options = parser.parse_args()
    say(f"{machine()}\n\n{'command':<16} {'wall s':>7} {'CPU s':>7} {'bar':>4}")
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as folder:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(_SAMPLE.read_bytes())
        file = Path(folder) / "pipeline.yml"
        measure("init", ["--dsn", server.dsn(), "--out", str(file)])
        if options.option:
            with file.open("a", encoding="utf-8") as pipeline_file:
                pipeline_file.write("spark:\n" + "".join(f"  {line}\n" for line in options.option))
        first = [
            measure("run", [str(file), "--until-caught-up"]),
            measure("preview", [str(file), "customer", "--key", "C1050"]),
            measure("verify", [str(file)]),
            measure("quality", [str(file)]),
            measure("run", [str(file), "--until-caught-up"], name=_IDLE),
            measure("status", [str(file)]),
            measure("check", [str(file), "--offline"]),
        ]
        measure("sql", [str(file), "SELECT count(*) FROM silver.`order`"])
        walls = []
        for _ in range(3):
            start = spent_by([sys.executable, "-c", _BARE], _START)
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                connection.execute(_CHANGES)
            few = spent_by([*SMELT, "run", str(file), "--until-caught-up"], _FEW)
            walls.append(few / start)
        few_held = ratio("a job of 44 changes beside Spark's start", walls, at_most=_FEW_BESIDE_START)
    return 0 if all(first) and few_held else 1


def measure(command: str, arguments: Sequence[str], *, name: str | None = None) -> bool:
    """Measure one command under its own or another name; return whether its bar holds."""
    title = name or command
    bar = _BARS.get(title)
    return spent_by([*SMELT, command, *arguments], title, bar) <= (math.inf if bar is None else bar)


def spent_by(line: Sequence[str], shown: str, bar: float | None = None) -> float:
    """Run a command line, print its cost, and return its seconds; raises as `watched`."""
    wall, cpu = watched(line, shown)
    say(f"{shown:<16} {wall:>7.1f} {cpu:>7.1f} {'' if bar is None else f'{bar:>4.0f}'}")
    return wall


def watched(
    line: Sequence[str], shown: str, look: Callable[[Iterable[int]], None] = lambda _: None
) -> tuple[float, float]:
    """Run a command line; return its seconds, and the CPU seconds of all its processes.

    Args:
        shown: name of the command line in an error.
        look: called repeatedly with the ids of all processes so far.

    Raises:
        RuntimeError: the command line failed.
    """
    spent: dict[int, float] = {}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as text:
        start = time.monotonic()
        process = subprocess.Popen(line, stdout=text, stderr=subprocess.STDOUT)
        while process.poll() is None:
            watch(process.pid, spent)
            look(spent)
            time.sleep(_POLL_SECONDS)
        wall = time.monotonic() - start
        text.seek(0)
        if process.returncode:
            raise RuntimeError(f"{shown} failed: {text.read()}")
    return wall, sum(spent.values())


def watch(pid: int, spent: dict[int, float]) -> None:
    """Record the CPU seconds of a process and of all its descendants by process id."""
    children: dict[int, list[int]] = {}
    seconds: dict[int, float] = {}
    for process in processes():
        children.setdefault(process.parent, []).append(process.pid)
        seconds[process.pid] = process.seconds
    waiting = [pid]
    while waiting:
        number = waiting.pop()
        spent[number] = seconds.get(number, spent.get(number, 0.0))
        waiting += children.get(number, [])


if __name__ == "__main__":
    sys.exit(main())
