"""`make bench-scaling`: how each stage grows with tables, rows and transactions; slopes for docs/scaling.md.

**tables**: twenty updates on each of 1 to 200 tables, folded by silver in a warm session. **rows**: snapshots
of a table of 10⁵ to 10⁷ rows; then silver's first copy of such a table, and updates of 10,000 neighbouring
keys. **beside**: silver's cycles over five tables with a few changes each, alone, and during a new copy of a
table of 10⁷ rows. **rate**: single-row transactions at 10 to thousands a second, then at pgbench's maximum.
The reader's CPU time is its process's CPU time, and a row's delay is defined as in `bench_latency`.

A slope is the least-squares line through the medians. No part has a bar: the slopes show the kind of growth.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import psycopg

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.pipelines.spark.session import spark_session
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.run.long_work import LONG
from deltasmelt.silver.settings import SilverSettings
from tests.benchmarks.bench_latency import reading
from tests.benchmarks.bench_silver import clients, line
from tests.benchmarks.bench_snapshot import ROWS, TABLE, run_snapshot
from tests.benchmarks.measuring import bench_server, machine, say
from tests.benchmarks.silver_work import Changes, Work, orders

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PARTS: Final = ("tables", "rows", "beside", "rate")
_TABLES: Final = (1, 20, 50, 200)
_ROWS: Final = (100_000, 1_000_000, 10_000_000)
_RATES: Final = (10, 100, 1_000, 3_000, 0)
"""Transactions a second; 0: pgbench's maximum."""
_CHANGED: Final = 10_000
_OF_MANY: Final = 2
"""Number of windows over the largest number of tables, which take minutes each; fewer tables get more."""


def main() -> int:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(prog="bench-scaling")
    parser.add_argument("parts", nargs="*", default=_PARTS, help=", ".join(_PARTS))
    parser.add_argument("--quick", action="store_true", help="smaller tables, fewer of them")
    parser.add_argument("--seconds", type=int, default=15, help="of load at each rate")
    options = parser.parse_args()
    say(f"{machine()}\n")
    with tempfile.TemporaryDirectory() as folder:
        if "tables" in options.parts:
            by_tables(Path(folder, "tables"), _TABLES[:2] if options.quick else _TABLES)
        if "rows" in options.parts:
            sizes = (20_000, 100_000) if options.quick else _ROWS
            snapshots(sizes)
            by_rows(Path(folder, "rows"), sizes)
        if "beside" in options.parts:
            beside_a_copy(Path(folder, "beside"), 2 * LONG if options.quick else _ROWS[-1])
    if "rate" in options.parts:
        say(f"{'asked tx/s':>10} {'got':>9} {'CPU s/1,000':>11} {'p50 s':>7} {'p99 s':>7} {'drained s':>9}")
        for rate in _RATES[1:3] if options.quick else _RATES:
            at_rate(rate, options.seconds)
    return 0


def by_tables(folder: Path, counts: Sequence[int]) -> None:
    """Measure silver's cycle over some tables with a few changes each."""
    shapes = [orders(f"orders_{number}", 10 + number) for number in range(max(counts))]
    work, ids = Work(folder, shapes), np.arange(1, 1001)
    walls: dict[int, list[float]] = {count: [] for count in counts}
    cpus: dict[int, list[float]] = {count: [] for count in counts}
    with clients(folder, "silver") as (silver,):
        work.write(*(Changes(shape, "insert", ids) for shape in shapes))
        line(f"first fold of {len(shapes)} tables of 1,000 rows", "silver", silver.fold(), "orders_0")
        for window in range(4):
            for count in counts if window < _OF_MANY else counts[:-1]:
                some = shapes[:count]
                work.write(
                    *(Changes(shape, "update", ids[:20], status="paid", raised=window) for shape in some)
                )
                cost = line(f"20 updates on each of {count} tables", "silver", silver.fold(), "orders_0")
                if window:
                    walls[count].append(cost.wall)
                    cpus[count].append(cost.cpu)
    slope("silver, wall s", walls, "table")
    slope("silver, CPU s", cpus, "table")


def snapshots(sizes: Sequence[int]) -> None:
    """Measure snapshots of tables of these sizes, each in a new process."""
    walls: dict[int, list[float]] = {}
    cpus: dict[int, list[float]] = {}
    for size in sizes:
        with bench_server() as server:
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                connection.execute(TABLE.encode())
                connection.execute(ROWS.format(rows=size).encode())
                connection.execute("VACUUM (FREEZE, ANALYZE) orders")
            runs = [run_snapshot(server, 2) for _ in range(2)]
        walls[size], cpus[size] = [run.wall for run in runs], [run.cpu for run in runs]
        say(f"snapshot of {size:,} rows: {', '.join(f'{run.wall:.2f} s' for run in runs)}")
    slope("snapshot, wall s", walls, "row")
    slope("snapshot, CPU s", cpus, "row")


def by_rows(folder: Path, sizes: Sequence[int]) -> None:
    """Measure silver's first copy of tables of these sizes, and windows of neighbouring keys."""
    shapes = {size: orders(f"orders_{size}", number) for number, size in enumerate(sizes, 2)}
    work, rng = Work(folder, list(shapes.values())), np.random.default_rng(3)
    first: dict[int, list[float]] = {}
    windows: dict[int, list[float]] = {size: [] for size in sizes}
    with clients(folder, "silver") as (silver,):
        for size, shape in shapes.items():
            work.take(shape, np.arange(1, size + 1))
            cost = line(f"first copy of {size:,} rows", "silver", silver.fold(), shape.table.name)
            first[size] = [cost.wall]
        for window in range(4):
            for size, shape in shapes.items():
                count = min(_CHANGED, size // 2)
                low = int(rng.integers(1, size - count))
                work.write(
                    Changes(shape, "update", np.arange(low, low + count), status="paid", raised=window)
                )
                cost = line(f"{count:,} updates on {size:,} rows", "silver", silver.fold(), shape.table.name)
                if window:
                    windows[size].append(cost.wall)
    slope("first copy, wall s", first, "row")
    slope("window, wall s", windows, "row")


def beside_a_copy(folder: Path, rows: int) -> None:
    """Measure silver's cycles over small tables, alone and during a new copy of a large table."""
    large, *small = (orders(f"orders_{number}", 10 + number) for number in range(6))
    work, ids = Work(folder, [large, *small]), np.arange(1, 1001)
    session = spark_session({"spark.driver.memory": "2g"})
    silver = Silver(session, work.lake, SilverSettings(), ControlTables(work.lake))
    work.take(large, np.arange(1, rows + 1))
    work.write(*(Changes(shape, "insert", ids) for shape in small))
    silver.cycle()

    def cycle(number: int) -> tuple[float, bool]:
        """Run a cycle with twenty changes per small table.

        Returns:
            Seconds of the cycle, and whether its cut has the large table.
        """
        work.write(
            *(Changes(table_shape, "update", ids[:20], status="paid", raised=number) for table_shape in small)
        )
        started = time.monotonic()
        cut = silver.cycle(leaves=True)
        return time.monotonic() - started, cut is not None and large.table.name in cut.tables

    alone = [cycle(number)[0] for number in range(12)][2:]
    work.take(large, np.arange(1, rows + 1))
    loaded, started = list[float](), time.monotonic()
    while not loaded or (silver.long_work.tables and not silver.long_work.has_ended):
        loaded.append(cycle(12 + len(loaded))[0])
    lasted = time.monotonic() - started
    last, is_in_cut = cycle(100)
    assert is_in_cut
    silver.close()
    session.stop()
    calm, busy = statistics.median(alone), statistics.median(loaded)
    say(
        f"cycles over 5 small tables: alone {calm:.2f} s (longest {max(alone):.2f}); while {rows:,} rows are "
        f"taken again {busy:.2f} s, {busy / calm:.2f} times, the first one {loaded[0] / calm:.2f} times, the "
        f"longest {max(loaded) / calm:.2f} times ({len(loaded)} cycles in {lasted:.0f} s: "
        f"{', '.join(f'{value:.1f}' for value in loaded)} s); the one that has the table {last:.2f} s"
    )


def at_rate(rate: int, seconds: int) -> None:
    """Measure the reader under a load, and the time until it catches up after the load ends."""
    with reading() as reader:
        spent = cpu_seconds(reader.process.pid)
        start, end = reader.load(clients=8, rate=rate, seconds=seconds)
        wait_for_confirmation(reader.dsn)
        drained = time.time() - end
        spent = cpu_seconds(reader.process.pid) - spent
        reader.stop()
        with psycopg.connect(reader.dsn) as connection:
            row = connection.execute("SELECT count(*) FROM events").fetchone()
        delays, _ = reader.delays(start, end)
    count = 0 if row is None else int(row[0])
    say(
        f"{rate or 'all':>10} {count / (end - start):9,.0f} {1000 * spent / count:11.3f} "
        f"{np.percentile(delays, 50):7.2f} {np.percentile(delays, 99):7.2f} {drained:9.1f}"
    )


def wait_for_confirmation(dsn: str) -> None:
    """Return once the reader has confirmed every change committed so far."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        for _ in range(1200):
            confirmed = connection.execute(
                "SELECT bool_and(confirmed_flush_lsn >= %s::pg_lsn) FROM pg_replication_slots", row
            ).fetchone()
            if confirmed is not None and confirmed[0]:
                return
            time.sleep(0.1)
    raise TimeoutError("the reader did not catch up within two minutes")


def cpu_seconds(pid: int) -> float:
    """Return the user and system seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def slope(title: str, measured: Mapping[int, Sequence[float]], unit: str) -> None:
    """Print the medians and their least-squares line."""
    medians = {size: statistics.median(values) for size, values in measured.items()}
    grows, fixed = np.polyfit(list(medians), list(medians.values()), 1)
    listed = ", ".join(f"{size:,}: {median:.2f}" for size, median in medians.items())
    say(f"{title}: {listed}; {fixed:.2f} and {grows:.3g} for each {unit}\n")


if __name__ == "__main__":
    sys.exit(main())
