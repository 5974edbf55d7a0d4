"""The age of a commit when a query at the log's head shows it, compared with silver's and gold's own ages.

pgbench commits 1,000 single-row transactions a second over five tables. The pipeline runs as `smelt run`,
with ``silver.every: 20s``. In parallel a warm session, as in a notebook, repeatedly queries the newest probe
row. A probe's age is the time from its COMMIT to the end of the first query that shows the probe.

    python -m tests.benchmarks.bench_fresh [--seconds N] [--warm N] [--every 20s] [--rate N]
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.spark.fresh_sql import FreshSql
from deltasmelt.pipelines.spark.lake_sql import LakeSql, cut_of
from deltasmelt.pipelines.spark.session import spark_session, stop_session
from tests.benchmarks.measuring import machine, say
from tests.benchmarks.silver_continuous import load_script, make_tables, percentiles
from tests.pipelines.processes import Command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltasmelt.pipelines.settings import Pipeline

PROBE = "SELECT max(id) AS n FROM silver.probe"
BARS = (3.0, 6.0)
"""Maximum seconds: median and 95th percentile."""

_DOCUMENT = """\
document: probe
root: public.probe
fields: [at]
"""


class Probes(threading.Thread):
    """A thread that inserts a row a second and records the time of each commit."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self._done = threading.Event()
        self.committed: dict[int, float] = {}

    def run(self) -> None:
        """Insert probes until `stop`."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            number = 0
            while not self._done.wait(1.0):
                number += 1
                connection.execute("INSERT INTO probe (id) VALUES (%s)", [number])
                self.committed[number] = time.time()

    def stop(self) -> None:
        """Stop inserting and wait for the thread's end."""
        self._done.set()
        self.join()


def query(sql: LakeSql) -> tuple[int, float, float]:
    """Return the newest probe in a query's result, the query's seconds, and the time of its result."""
    start = time.monotonic()
    rows = sql.query(PROBE).collect()
    return int(rows[0]["n"] or 0), time.monotonic() - start, time.time()


def ages(pipeline: Pipeline, probes: Probes, *, seconds: float, warm: float) -> dict[str, list[float]]:
    """Return ages of probes at the head, and seconds of queries at the head and at the newest cut."""
    spark = spark_session({"spark.driver.memory": "2g", "spark.master": "local[2]"})
    measured: dict[str, list[float]] = {"age": [], "fresh": [], "plain": []}
    try:
        fresh, last, start = FreshSql(spark, pipeline), 0, time.monotonic()
        plain = LakeSql(spark, pipeline)
        while time.monotonic() < start + warm + seconds:
            pause = time.monotonic() + 1.0
            newest, seconds_taken, at = query(fresh)
            counts = time.monotonic() > start + warm
            if counts:
                measured["fresh"].append(seconds_taken)
                measured["age"] += [at - probes.committed[n] for n in range(last + 1, newest + 1)]
            last = newest
            if len(measured["plain"]) * 5 < len(measured["fresh"]):
                fresh.forget()
                plain.move(cut_of(pipeline))
                measured["plain"].append(query(plain)[1])
                plain.forget()
            time.sleep(max(0.0, pause - time.monotonic()))
        fresh.close()
    finally:
        stop_session(spark)
    return measured


def ages_of_cuts(pipeline: Pipeline, layer: str, committed: Mapping[int, float]) -> list[float]:
    """Return the seconds from each commit to the record of the layer's first cut that contains the commit."""
    cuts = sorted(
        (cut.commit_ts.timestamp(), cut.recorded_at.timestamp())
        for cut in ControlTables(pipeline.lake_address()).cuts("silver" if layer == "silver" else "gold")
        if cut.commit_ts is not None and cut.recorded_at is not None
    )
    return [
        next((recorded - moment for upto, recorded in cuts if upto >= moment), math.inf)
        for moment in committed.values()
    ]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--warm", type=float, default=120)
    parser.add_argument("--every", default="20s")
    parser.add_argument("--rate", type=int, default=1000)
    options = parser.parse_args()
    say(machine())
    with (
        tempfile.TemporaryDirectory() as name,
        EmbeddedServer(settings={"max_wal_size": "4GB"}) as server,
    ):
        folder = Path(name)
        make_tables(server.dsn())
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE probe (id bigint PRIMARY KEY, at timestamptz DEFAULT now())")
        (folder / "documents").mkdir()
        (folder / "documents" / "probe.yml").write_text(_DOCUMENT)
        file = folder / "pipeline.yml"
        file.write_text(
            f"pipeline: bench\nsource: {{dsn: '{server.dsn()}', slot: bench, publication: bench}}\n"
            "lake: {path: ./lake}\nspark: {spark.driver.memory: 2g}\n"
            f"silver: {{every: {options.every}}}\ngold: {{documents: ['documents/*.yml']}}\n"
        )
        pipeline = load_pipeline(file)
        with Command("run", file, folder=folder) as run:
            control = ControlTables(pipeline.lake_address())
            while (cut := control.latest_cut("gold")) is None or not cut.tables:
                assert run.process.poll() is None, run.text()
                time.sleep(0.2)
            script = folder / "load.pgbench"
            script.write_text(load_script())
            duration = round(options.warm + options.seconds + 60)
            words = [str(server.bin / "pgbench"), "-n", "-f", str(script), "-c", "4"]
            words += ["-R", str(options.rate), "-T", str(duration), server.dsn()]
            load = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            probes = Probes(server.dsn())
            probes.start()
            try:
                measured = ages(pipeline, probes, seconds=options.seconds, warm=options.warm)
            finally:
                probes.stop()
                load.terminate()
                load.wait()
            measured_commits = dict(list(probes.committed.items())[int(options.warm) :])
            time.sleep(40)
            cuts = {layer: ages_of_cuts(pipeline, layer, measured_commits) for layer in ("silver", "gold")}
    say(f"{'from COMMIT to':28} {'p50 s':>8} {'p95 s':>8}")
    for title, values in (("a query at the head", measured["age"]), *cuts.items()):
        p50, p95 = percentiles(values)
        say(f"{title:28} {p50:8.2f} {p95:8.2f}")
    p50, p95 = percentiles(measured["age"])
    verdict = "met" if p50 <= BARS[0] and p95 <= BARS[1] else "missed"
    say(f"bar: p50 {BARS[0]:.0f} s, p95 {BARS[1]:.0f} s: {verdict}")
    fresh, plain = statistics.median(measured["fresh"]), statistics.median(measured["plain"])
    extra = f"at the head {fresh:.2f} s, at the cut {plain:.2f} s, extra {fresh - plain:.2f} s (bar 1 s)"
    say(f"a query: {extra}")


if __name__ == "__main__":
    main()
