r"""`make bench-snapshot`: a snapshot into durable bronze beside `psql -c "\copy table TO /dev/null"`.

The two take turns on one server with the table in its cache, and a ratio is that of neighbours, so that what
else happens on the machine falls on both. Each snapshot has a process and a fresh lake of its own; it is
measured from the first statement until its Delta commit is durable, start-up of the process apart. Where the
server's binaries have no psql, the same COPY is drained through libpq in this process, which is said.

The bar: rows per second at least 0.6 times those of the plain copy.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from typing import Final

import psycopg
from pydantic import SecretStr

from bronze.catalog import select_tables
from bronze.lake import Lake
from bronze.landing import Landing
from bronze.memory import settle
from bronze.relations import ShapeLog
from bronze.server import connect, identify
from bronze.settings import SnapshotSettings, SourceSettings
from bronze.setup import ensure_publication
from bronze.sink import DeltaSink
from bronze.snapshot import Snapshot
from pipelines.embedded import EmbeddedServer

_BAR: Final = 0.6
_TABLE: Final = """
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer_id int NOT NULL, status text NOT NULL, total numeric(12, 2),
    created_at timestamptz NOT NULL, shipped_at timestamptz, note text, tags text[])
"""
_ROWS: Final = """
INSERT INTO orders
SELECT n, n % 99991, (ARRAY['new', 'paid', 'shipped', 'returned'])[1 + n % 4], (n % 100000) / 100.0,
       '2026-01-01'::timestamptz + n * interval '1 second',
       CASE WHEN n % 3 = 0 THEN '2026-01-02'::timestamptz + n * interval '1 second' END,
       'note ' || md5(n::text), CASE WHEN n % 5 = 0 THEN ARRAY['a', 'b,c'] END
FROM generate_series(1, {rows}) n
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run: seconds of wall and CPU of the client, its peak resident memory in MiB."""

    wall: float
    cpu: float
    peak: float


def main() -> int:
    """Measure, print the table, and say whether the bar holds."""
    parser = argparse.ArgumentParser(prog="bench-snapshot")
    parser.add_argument("--rows", type=int, default=1_500_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=SnapshotSettings().workers)
    parser.add_argument("--take", help="take a snapshot of this DSN, as the child process of a measurement")
    options = parser.parse_args()
    if options.take:
        say(json.dumps(asdict(take(options.take, options.workers))))
        return 0
    with EmbeddedServer(settings={"max_wal_size": "16GB", "checkpoint_timeout": "1h"}) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(_TABLE.encode())
            connection.execute(_ROWS.format(rows=options.rows).encode())
            connection.execute("VACUUM (FREEZE, ANALYZE) orders")
        plain_name = "psql \\copy" if (server.bin / "psql").exists() else "COPY drained"
        say(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {options.rows:,} rows of 8 columns\n")
        say(f"{'client':14} {'wall s':>8} {'CPU s':>8} {'peak MiB':>9} {'rows/s':>12} {'ratio':>7}")
        run_plain(server)  # the table comes into the cache
        ratios = []
        for repeat in range(options.repeats):
            runs = [run_plain, lambda server: run_snapshot(server, options.workers)]
            first, second = (run(server) for run in (runs if repeat % 2 == 0 else reversed(runs)))
            plain, ours = (first, second) if repeat % 2 == 0 else (second, first)
            ratios.append(plain.wall / ours.wall)
            for name, run, ratio in ((plain_name, plain, 1.0), ("snapshot", ours, ratios[-1])):
                rate = options.rows / run.wall
                say(f"{name:14} {run.wall:8.2f} {run.cpu:8.2f} {run.peak:9.0f} {rate:12,.0f} {ratio:7.2f}")
    ratio = statistics.median(ratios)
    say(f"\nmedian ratio {ratio:.2f} (bar {_BAR}): {'holds' if ratio >= _BAR else 'MISSED'}")
    return 0 if ratio >= _BAR else 1


def run_plain(server: EmbeddedServer) -> Run:
    """The limit: take every row, look at nothing."""
    psql = server.bin / "psql"
    begun = time.monotonic()
    if psql.exists():
        process = subprocess.Popen(
            [str(psql), "-X", "-q", "-d", server.dsn(), "-c", "\\copy orders TO /dev/null"]
        )
        _, status, usage = os.wait4(process.pid, 0)
        assert status == 0
        return Run(time.monotonic() - begun, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
    cpu = time.process_time()
    with (
        psycopg.connect(server.dsn()) as connection,
        connection.cursor().copy("COPY orders TO STDOUT") as copy,
    ):
        for _ in copy:
            pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Run(time.monotonic() - begun, time.process_time() - cpu, peak)


def run_snapshot(server: EmbeddedServer, workers: int) -> Run:
    """Ours, in a process of its own, into a fresh lake."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.benchmarks.bench_snapshot",
            "--take",
            server.dsn(),
            "--workers",
            str(workers),
        ],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return Run(**json.loads(done.stdout.splitlines()[-1]))


def take(dsn: str, workers: int) -> Run:
    """Take the table, as the reader does."""
    settle()
    source = SourceSettings(dsn=SecretStr(dsn), slot="bench", publication="bench")
    with tempfile.TemporaryDirectory() as lake, connect(source) as connection:
        tables = select_tables(connection, source, storage=True)
        ensure_publication(connection, source, [table.table for table in tables])
        sink = DeltaSink(Lake(lake), "bench", identify(connection))
        landing = Landing(sink, ShapeLog(sink.relations(), sink.add_relations))
        settings = SnapshotSettings(workers=workers)
        begun, cpu = time.monotonic(), time.process_time()
        outcome = Snapshot(source, settings, landing).take(tables, threading.Event())
        wall, cpu = time.monotonic() - begun, time.process_time() - cpu
        assert len(outcome.taken) == 1
    return Run(wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def say(line: str) -> None:
    """Print at once, also into a file."""
    print(line, flush=True)  # noqa: T201 - the result


if __name__ == "__main__":
    sys.exit(main())
