r"""`make bench-verify`: a table compared with silver row by row, against `psql -c "\copy … TO /dev/null"`.

The table is the table of `bench_snapshot`. The two commands alternate on one server with the table in its
cache. A comparison is measured in a running session, from its first statement at the server to its result.
The session's process runs nothing else. The first comparison includes loading the code; the later comparisons
do not, as for many tables.

The bar: at least 0.3 times the rows per second of the plain copy.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Final

import psycopg

from deltasmelt.pipelines.proof.against_source import prove
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.spark.session import spark_session, stop_session
from deltasmelt.pipelines.terminal.output import Output
from tests.benchmarks.bench_snapshot import ROWS, TABLE, run_plain
from tests.benchmarks.measuring import bench_server, machine, ratio, say
from tests.benchmarks.silver_clients import cpu_seconds, java

_BAR: Final = 0.3


def main() -> int:
    """Measure, print the table, and return 1 if the bar is missed."""
    parser = argparse.ArgumentParser(prog="bench-verify")
    parser.add_argument("--rows", type=int, default=1_500_000)
    parser.add_argument("--repeats", type=int, default=4)
    options = parser.parse_args()
    with bench_server() as server, tempfile.TemporaryDirectory() as folder:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(TABLE.encode())
            connection.execute(ROWS.format(rows=options.rows).encode())
            connection.execute("VACUUM (FREEZE, ANALYZE) orders")
        file = Path(folder) / "pipeline.yml"
        file.write_text(
            f"pipeline: bench\nsource: {{dsn: '{server.dsn()}', slot: bench, publication: bench}}\n"
            "lake: {path: ./lake}\n"
        )
        run = [sys.executable, "-m", "deltasmelt", "run", str(file), "--until-caught-up"]
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        pipeline = load_pipeline(file)
        spark = spark_session(pipeline.spark)
        say(f"{machine()}; {options.rows:,} rows of 8 columns\n")
        say(f"{'client':14} {'wall s':>8} {'CPU s':>8} {'source s':>9} {'ratio':>7}")
        ratios, pid = [], java()
        for _ in range(options.repeats):
            plain = run_plain(server)
            start, cpu = time.monotonic(), cpu_seconds(pid)
            proof = prove(pipeline, lambda: nullcontext(spark), Output())
            wall = time.monotonic() - start
            assert proof.holds
            assert [table.source_rows for table in proof.compared] == [options.rows]
            say(f"{'psql copy':14} {plain.wall:8.2f} {plain.cpu:8.2f} {'':9} {1.0:7.2f}")
            spent = cpu_seconds(pid) - cpu
            say(f"{'verify':14} {wall:8.2f} {spent:8.2f} {proof.seconds:9.2f} {plain.wall / wall:7.2f}")
            ratios.append(plain.wall / wall)
        stop_session(spark)
    return 0 if ratio("speed beside the plain copy", ratios[1:], at_least=_BAR) else 1


if __name__ == "__main__":
    sys.exit(main())
