r"""`make bench-snapshot`: a snapshot into durable bronze against `psql -c "\copy table TO /dev/null"`.

The two clients alternate on one server with the table in its cache. A ratio compares neighbouring runs, so
unrelated load affects both clients. Each snapshot has a new process and a fresh lake. Its measurement begins
with the first statement and ends when its Delta commit is durable. psql measures with its own ``\\timing``.
Neither includes process start and connecting.

The bar: at least 0.6 times the rows per second of the plain copy.

``--spark`` compares the two engines of snapshots: Spark's tasks on a local master against the reader's own
workers, with equal numbers. Session and Python workers are warm before the measurement, as for a table of
hours; their start time is printed. This comparison has no bar.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
from pydantic import SecretStr

from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.config.sections import SnapshotSettings, SourceSettings
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.memory import use_one_arena
from deltasmelt.bronze.postgres.connection import connect, identify
from deltasmelt.bronze.setup.publication import ensure_publication
from deltasmelt.bronze.snapshot.snapshot import Snapshot
from deltasmelt.bronze.store.landing import Landing
from deltasmelt.bronze.store.relations import ShapeLog
from deltasmelt.bronze.store.sink import DeltaSink
from deltasmelt.pipelines.spark.executors import spark_executors
from tests.benchmarks.measuring import Run, Watched, bench_server, machine, ratio, say

if TYPE_CHECKING:
    from deltasmelt.bronze.snapshot.executors import ExecutorsAtHand
    from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

_BAR: Final = 0.6
TABLE: Final = """
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer_id int NOT NULL, status text NOT NULL, total numeric(12, 2),
    created_at timestamptz NOT NULL, shipped_at timestamptz, note text, tags text[])
"""
ROWS: Final = """
INSERT INTO orders
SELECT n, n % 99991, (ARRAY['new', 'paid', 'shipped', 'returned'])[1 + n % 4], (n % 100000) / 100.0,
       '2026-01-01'::timestamptz + n * interval '1 second',
       CASE WHEN n % 3 = 0 THEN '2026-01-02'::timestamptz + n * interval '1 second' END,
       'note ' || md5(n::text), CASE WHEN n % 5 = 0 THEN ARRAY['a', 'b,c'] END
FROM generate_series(1, {rows}) n
"""


def main() -> int:
    """Measure, print the table, and return 1 if the bar is missed."""
    parser = argparse.ArgumentParser(prog="bench-snapshot")
    parser.add_argument("--rows", type=int, default=1_500_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=SnapshotSettings().workers)
    parser.add_argument("--spark", action="store_true", help="compare the engines")
    parser.add_argument("--take", help="take a snapshot of this DSN, as the child process of a measurement")
    parser.add_argument("--engine", choices=["local", "spark"], default="local")
    options = parser.parse_args()
    if options.take:
        by = take if options.engine == "local" else take_by_spark
        say(json.dumps(asdict(by(options.take, options.workers))))
        return 0
    with bench_server() as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(TABLE.encode())
            connection.execute(ROWS.format(rows=options.rows).encode())
            connection.execute("VACUUM (FREEZE, ANALYZE) orders")
        say(f"{machine()}; {options.rows:,} rows of 8 columns\n")
        say(f"{'client':14} {'wall s':>8} {'CPU s':>8} {'peak MiB':>9} {'rows/s':>12} {'ratio':>7}")
        run_plain(server)  # the table comes into the cache
        if options.spark:
            compare_engines(server, options)
            return 0
        ratios = []
        for repeat in range(options.repeats):
            runs = [run_plain, lambda server: run_snapshot(server, options.workers)]
            first, second = (run(server) for run in (runs if repeat % 2 == 0 else reversed(runs)))
            plain, ours = (first, second) if repeat % 2 == 0 else (second, first)
            ratios.append(plain.wall / ours.wall)
            for name, run, speed in (("psql \\copy", plain, 1.0), ("snapshot", ours, ratios[-1])):
                rate = options.rows / run.wall
                say(f"{name:14} {run.wall:8.2f} {run.cpu:8.2f} {run.peak:9.0f} {rate:12,.0f} {speed:7.2f}")
    return 0 if ratio("speed beside the plain copy", ratios, at_least=_BAR) else 1


def run_plain(server: EmbeddedServer) -> Run:
    """Measure the limit: receive every row, decode nothing."""
    start = time.monotonic()
    watched = Watched(
        [
            str(server.bin / "psql"), "-X", "-q", "-d", server.dsn(),
            "-c", "\\timing on", "-c", "\\copy orders TO /dev/null",
        ],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert watched.process.stdout is not None
    printed = watched.process.stdout.read()
    run = watched.ended(start)
    timing = re.search(r"Time: ([0-9.]+) ms", printed)
    assert timing is not None, printed
    return Run(float(timing[1]) / 1000, run.cpu, run.peak)


def compare_engines(server: EmbeddedServer, options: argparse.Namespace) -> None:
    """Measure the engines in turn; each ratio compares neighbouring runs."""
    for repeat in range(options.repeats):
        order = ("local", "spark") if repeat % 2 == 0 else ("spark", "local")
        runs = {engine: run_snapshot(server, options.workers, engine) for engine in order}
        for engine in ("local", "spark"):
            run = runs[engine]
            rate, speed = options.rows / run.wall, runs["local"].wall / run.wall
            say(f"{engine:14} {run.wall:8.2f} {run.cpu:8.2f} {run.peak:9.0f} {rate:12,.0f} {speed:7.2f}")


def run_snapshot(server: EmbeddedServer, workers: int, engine: str = "local") -> Run:
    """Measure a snapshot in a new process, into a fresh lake."""
    process = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.benchmarks.bench_snapshot",
            "--take",
            server.dsn(),
            "--workers",
            str(workers),
            "--engine",
            engine,
        ],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return Run(**json.loads(process.stdout.splitlines()[-1]))


def take_by_spark(dsn: str, workers: int) -> Run:
    """Copy the table by tasks of a running session."""
    start = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        spark_executors({}, workers=workers, log=Path(folder) / "spark.log") as executors,
        ThreadPoolExecutor(workers) as threads,
    ):
        list(threads.map(lambda _: executors.run(_loaded), range(2 * workers)))
        sys.stderr.write(f"session and Python workers: {time.monotonic() - start:.1f} s\n")
        return take(dsn, workers, lambda: nullcontext(executors))


def _loaded() -> str:
    """Load a task's modules in a Python worker; sleep so that the remaining workers start meanwhile."""
    import_module("deltasmelt.bronze.snapshot.range_task")
    time.sleep(1)
    return ""


def take(dsn: str, workers: int, executors: ExecutorsAtHand | None = None) -> Run:
    """Copy the table as the reader does."""
    use_one_arena()
    source = SourceSettings(dsn=SecretStr(dsn), slot="bench", publication="bench")
    with tempfile.TemporaryDirectory() as lake, connect(source) as connection:
        tables = select_tables(connection, source, storage=True)
        ensure_publication(connection, source, [table.table for table in tables])
        sink = DeltaSink(Lake(lake), "bench", identify(connection))
        landing = Landing(sink, ShapeLog(sink.relations(), sink.add_relations))
        settings = SnapshotSettings(workers=workers)
        start, cpu = time.monotonic(), time.process_time()
        outcome = Snapshot(source, settings, landing, executors=executors).take(tables, threading.Event())
        wall, cpu = time.monotonic() - start, time.process_time() - cpu
        assert len(outcome.copied) == 1
    return Run(wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    sys.exit(main())
