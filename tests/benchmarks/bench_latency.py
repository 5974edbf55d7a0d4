"""`make bench-latency`: the delay from a commit to the readable row in bronze, at 1,000 commits a second.

pgbench commits single-row transactions at a steady rate while the reader runs in a separate process. A row is
readable once the Delta log entry with its file exists. So a row's delay is the entry's time less the row's
`commit_ts`; both come from this machine's clock. All rows count except those of the first seconds.

The bars: median at most the flush interval and 100 ms, 99th percentile at most the flush interval and 500 ms.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import psycopg
import pyarrow.parquet as pq
from pydantic import SecretStr

from deltasmelt.bronze.config.sections import BronzeSettings, SnapshotSettings, SourceSettings
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.reader.reader import Reader
from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer
from tests.benchmarks.measuring import machine, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_P50_BAR: Final = 0.1
_P99_BAR: Final = 0.5
_INTERVALS: Final = (0.5, 0.05)
_SCRIPT: Final = "INSERT INTO events (place, said) VALUES (random() * 1000, md5(random()::text));\n"
_WARM_UP_SECONDS: Final = 3.0


def main() -> int:
    """Measure, print the table, and return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="bench-latency")
    parser.add_argument("--rate", type=int, default=1000, help="transactions a second")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--read", help="read this DSN, as the child process of a measurement")
    parser.add_argument("--lake")
    parser.add_argument("--interval", type=float, default=0.5)
    options = parser.parse_args()
    if options.read:
        read(options.read, options.lake, options.interval)
        return 0
    say(f"{machine()}; {options.rate} transactions/s\n")
    say(f"{'interval ms':>11} {'transactions':>13} {'commits':>8} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8}")
    verdicts = [measure(interval, options.rate, options.seconds) for interval in _INTERVALS]
    return 0 if all(verdicts) else 1


def measure(interval: float, rate: int, seconds: int) -> bool:
    """Measure one run; return whether the bars hold."""
    with reading(interval) as reader:
        start, end = reader.load(clients=4, rate=rate, seconds=seconds)
        time.sleep(interval + 1.0)
        reader.stop()
        delays, commits = reader.delays(start, end)
    median, late, longest = (float(np.percentile(delays, at)) for at in (50, 99, 100))
    passed = median <= interval + _P50_BAR and late <= interval + _P99_BAR
    say(
        f"{interval * 1e3:11.0f} {len(delays):13,} {commits:8,} {median * 1e3:8.0f} {late * 1e3:8.0f} "
        f"{longest * 1e3:8.0f}  {'holds' if passed else 'MISSED'}"
    )
    return passed


@dataclass(frozen=True, slots=True)
class ReaderAtWork:
    """A reader in a separate process that follows a server with a table of events.

    Attributes:
        dsn: DSN of the server with the table.
        process: process of the reader, ended by its standard input.
    """

    dsn: str
    process: subprocess.Popen[bytes]
    _programs: Path
    _lake: Path

    def load(self, *, clients: int, rate: int, seconds: int) -> tuple[float, float]:
        """Commit single-row transactions; return begin and end of the load.

        Args:
            clients: number of connections that pgbench opens.
            rate: transactions a second; 0: pgbench's maximum.
        """
        script = self._lake / "script.sql"
        script.write_text(_SCRIPT)
        start = time.time()
        subprocess.run(
            [
                *(str(self._programs / "pgbench"), "-n", "-f", str(script), "-c", str(clients), "-j", "1"),
                *(["-R", str(rate)] if rate else []),
                *("-T", str(seconds), self.dsn),
            ],
            check=True,
            capture_output=True,
        )
        return start, time.time()

    def stop(self) -> None:
        """Stop the reader after it has written every received change to bronze."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0

    def delays(self, begun: float, ended: float) -> tuple[NDArray[np.float64], int]:
        """Return `delays_of` a load without its first seconds."""
        return delays_of(self._lake / "bronze" / "changes", begun + _WARM_UP_SECONDS, ended)


@contextmanager
def reading(interval: float = 0.5) -> Iterator[ReaderAtWork]:
    """Start a streaming reader with its server and lake, until the block ends.

    Args:
        interval: seconds between the reader's commits.
    """
    module = [sys.executable, "-m", "tests.benchmarks.bench_latency"]
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as lake:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE events (id bigserial PRIMARY KEY, place int, said text)")
        with subprocess.Popen(
            [*module, "--read", server.dsn(), "--lake", lake, "--interval", str(interval)],
            stdin=subprocess.PIPE,
        ) as process:
            wait_for_slot(server.dsn())
            yield ReaderAtWork(server.dsn(), process, server.bin, Path(lake))


def wait_for_slot(dsn: str) -> None:
    """Return once the reader streams."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for _ in range(600):
            row = connection.execute("SELECT bool_or(active) FROM pg_replication_slots").fetchone()
            if row is not None and row[0]:
                return
            time.sleep(0.1)
    raise TimeoutError("the reader did not begin to stream within a minute")


def delays_of(table: Path, first: float, last: float) -> tuple[NDArray[np.float64], int]:
    """Return the delays in seconds of rows committed between two times, and the number of Delta commits."""
    delays, commits = [], 0
    for entry in sorted((table / "_delta_log").glob("*.json")):
        readable = entry.stat().st_mtime
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        for add in [action["add"] for action in actions if action.get("add", {}).get("dataChange")]:
            rows = pq.read_table(table / add["path"], columns=["commit_ts", "op"])
            inserted = rows.filter(np.asarray(rows["op"]) == "insert")
            committed = inserted["commit_ts"].cast("int64").to_numpy() / 1e6
            chosen = committed[(committed >= first) & (committed <= last)]
            delays.append(readable - chosen)
            commits += len(chosen) > 0
    return np.concatenate(delays), commits


def read(dsn: str, lake: str, interval: float) -> None:
    """Run the reader until standard input ends."""
    stop = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    Reader(
        "latency",
        SourceSettings(dsn=SecretStr(dsn), slot="latency", publication="latency"),
        Lake(lake),
        BronzeSettings(flush_interval=interval),
        SnapshotSettings(),
    ).run(stop=stop)


if __name__ == "__main__":
    sys.exit(main())
