"""`make bench-silver`: silver beside the template that users write today, over the same changes.

The template (`silver_clients`) parses JSON change records, keeps the newest of each key by `row_number` and
runs one MERGE with default settings. Both have a process and a JVM of their own and take turns; a ratio is
that of neighbours, so that what else happens on the machine falls on both. Starting Spark and one small
MERGE to load its classes are apart, for both.

The bars: the first fold of `bulk` at least 4 times as fast as the template's, windows of 10,000 scattered
updates at least 2.5 times; 10,000 changes of neighbouring keys on ten million rows at most twice what they
cost on 100,000; twenty tables with a few changes each at most three times one; and from the commit at the
source to silver at most 6 s (median) at 1,000 transactions a second over five tables.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tests.benchmarks.silver_continuous import ages, percentiles
from tests.benchmarks.silver_work import Changes, Work, orders

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BARS: Final = {"first": 4.0, "windows": 2.5, "size": 2.0, "tables": 3.0, "continuous": 6.0}
_PARTS: Final = ("first", "windows", "size", "tables", "continuous")


@dataclass(frozen=True, slots=True)
class Cost:
    """What one batch cost.

    Attributes:
        wall: seconds.
        cpu: seconds of the JVM and of its Python.
        peak: most resident memory of the JVM so far, MiB.
        tables: the newest commit of each table.
    """

    wall: float
    cpu: float
    peak: float
    tables: list[dict[str, Any]]

    def files(self, name: str | None = None) -> str:
        """Files that the newest commit removed or marked, and added, of those that the table has."""
        table = next(one for one in self.tables if name in (None, one["name"]))
        metrics = {key: int(value) for key, value in table["metrics"].items() if str(value).isdigit()}
        touched = metrics.get("numTargetFilesRemoved", 0)
        marked = metrics.get("numTargetDeletionVectorsAdded", 0)
        added = metrics.get("numTargetFilesAdded", metrics.get("numFiles", 0))
        copied = metrics.get("numTargetRowsCopied", 0)
        return f"{touched}+{marked}dv/{added}/{table['files']}, {copied:,} copied"


class Client:
    """A process under measurement."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        command = [sys.executable, "-m", "tests.benchmarks.silver_clients", kind, str(folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._answer()

    def fold(self, batch: str = "") -> Cost:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(batch) + "\n")
        self._process.stdin.flush()
        return Cost(**self._answer())

    def close(self) -> None:
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.kind} ended: run its command by hand to see why")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def clients(folder: Path, *kinds: str) -> Iterator[list[Client]]:
    started = [Client(kind, folder) for kind in kinds]
    try:
        yield started
    finally:
        for one in started:
            one.close()


def main() -> int:
    """Measure, print the table, and say whether the bars hold."""
    parser = argparse.ArgumentParser(prog="bench-silver")
    parser.add_argument("parts", nargs="*", default=_PARTS, help=", ".join(_PARTS))
    parser.add_argument("--quick", action="store_true", help="smaller tables and fewer windows")
    parser.add_argument("--folder", type=Path, help="where the lakes go; a temporary folder")
    options = parser.parse_args()
    say(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start\n")
    say(
        f"{'what':42} {'client':9} {'wall s':>7} {'CPU s':>7} {'peak MiB':>9}  files removed+marked/added/all"
    )
    held = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if {"first", "windows"} & set(options.parts):
            held = beside_template(folder / "bulk", options.parts, quick=options.quick) and held
        if "size" in options.parts:
            held = by_size(folder / "size", quick=options.quick) and held
        if "tables" in options.parts:
            held = by_tables(folder / "tables", quick=options.quick) and held
        if "continuous" in options.parts:
            held = continuous(folder / "continuous", quick=options.quick) and held
    return 0 if held else 1


def beside_template(folder: Path, parts: Sequence[str], *, quick: bool) -> bool:
    """The first fold of `bulk`, then windows of scattered updates."""
    rows, count, windows = (60_000, 1_000, 3) if quick else (600_000, 10_000, 10)
    shape = orders("orders", 2)
    ids, rng = np.arange(1, rows + 1), np.random.default_rng(1)
    work = Work(folder, [shape], json=True)
    held = True
    with clients(folder, "silver", "template") as both:
        batch = work.write(
            Changes(shape, "insert", ids),
            Changes(shape, "update", ids[ids % 3 == 0], status="paid", raised=1),
            Changes(shape, "delete", ids[ids % 10 == 0]),
        )
        name = f"first fold of {rows + len(ids[ids % 3 == 0]) + rows // 10:,} changes"
        costs = [line(name, one.kind, one.fold(batch)) for one in both]
        held = ratio("first fold", [costs[1].wall / costs[0].wall], at_least=_BARS["first"])
        if "windows" not in parts:
            return held
        batch = work.write(Changes(shape, "insert", np.arange(rows + 1, rows + rows // 10 + 1)))
        for one in both:
            one.fold(batch)
        living = np.concatenate([ids[ids % 10 != 0], np.arange(rows + 1, rows + rows // 10 + 1)])
        ratios = []
        for window in range(windows):
            some = np.sort(rng.choice(living, count, replace=False))
            batch = work.write(Changes(shape, "update", some, status="paid", raised=2 + window))
            order = both if window % 2 == 0 else both[::-1]
            name = f"{count:,} scattered updates on {rows:,} rows"
            found = {one.kind: line(name, one.kind, one.fold(batch)) for one in order}
            ratios.append(found["template"].wall / found["silver"].wall)
    return ratio("windows of scattered updates", ratios, at_least=_BARS["windows"]) and held


def by_size(folder: Path, *, quick: bool) -> bool:
    """Windows of one size on a small and a large table, neighbouring and scattered keys."""
    sizes = {"small": 10_000, "large": 100_000} if quick else {"small": 100_000, "large": 10_000_000}
    count, windows = (1_000, 3) if quick else (10_000, 5)
    shapes = {name: orders(name, number) for number, name in enumerate(sizes, 2)}
    work = Work(folder, list(shapes.values()))
    rng = np.random.default_rng(2)
    held = True
    with clients(folder, "silver") as (silver,):
        for name, size in sizes.items():
            work.take(shapes[name], np.arange(1, size + 1))
            line(f"first copy of {size:,} rows", "silver", silver.fold(), name)
        for kind in ("clustered", "scattered"):
            costs: dict[str, list[Cost]] = {name: [] for name in sizes}
            for window in range(windows + 1):
                for name, size in sizes.items():
                    low = int(rng.integers(1, size - count))
                    some = (
                        np.arange(low, low + count)
                        if kind == "clustered"
                        else np.sort(rng.choice(size, count, replace=False) + 1)
                    )
                    work.write(Changes(shapes[name], "update", some, status="paid", raised=window))
                    cost = line(f"{count:,} {kind} updates on {size:,}", "silver", silver.fold(), name)
                    if window:  # the first of each kind is not warm
                        costs[name].append(cost)
            ratios = [
                big.wall / little.wall for little, big in zip(costs["small"], costs["large"], strict=True)
            ]
            bar = _BARS["size"] if kind == "clustered" else None
            held = ratio(f"large beside small, {kind} keys", ratios, at_most=bar) and held
    return held


def by_tables(folder: Path, *, quick: bool) -> bool:
    """A few changes to one table, and to each of twenty."""
    windows = 2 if quick else 6
    shapes = [orders(f"orders_{number}", 10 + number) for number in range(20)]
    work = Work(folder, shapes)
    ids = np.arange(1, 1001)
    ratios = []
    with clients(folder, "silver") as (silver,):
        work.write(*(Changes(shape, "insert", ids) for shape in shapes))
        line("first fold of twenty tables of 1,000 rows", "silver", silver.fold(), "orders_0")
        for window in range(windows + 2):
            walls = []
            for some in (shapes[:1], shapes):
                work.write(*(Changes(one, "update", ids[:20], status="paid", raised=window) for one in some))
                name = f"20 updates on each of {len(some)} tables"
                walls.append(line(name, "silver", silver.fold(), "orders_0").wall)
            if window > 1:
                ratios.append(walls[1] / walls[0])
    return ratio("twenty tables beside one", ratios, at_most=_BARS["tables"])


def continuous(folder: Path, *, quick: bool) -> bool:
    """A live server at 1,000 transactions a second."""
    warm, seconds = (20.0, 20.0) if quick else (240.0, 60.0)  # the JVM compiles for minutes
    found = ages(folder, warm=warm, seconds=seconds)
    median, late = percentiles(found)
    bar = _BARS["continuous"]
    say(
        f"commit to silver, {len(found) / seconds:,.0f} transactions a second over five tables: p50 "
        f"{median:.1f} s, p95 {late:.1f} s, bar p50 ≤ {bar}: {'holds' if median <= bar else 'MISSED'}\n"
    )
    return median <= bar


def line(what: str, client: str, cost: Cost, table: str | None = None) -> Cost:
    """Print one measurement and pass it on."""
    name = None if client == "template" else table
    say(f"{what:42} {client:9} {cost.wall:7.2f} {cost.cpu:7.2f} {cost.peak:9.0f}  {cost.files(name)}")
    return cost


def ratio(
    what: str, ratios: Sequence[float], *, at_least: float | None = None, at_most: float | None = None
) -> bool:
    """Print the median of ratios and whether the bar holds."""
    median = statistics.median(ratios)
    held = (at_least is None or median >= at_least) and (at_most is None or median <= at_most)
    bar = "none" if at_least is at_most is None else f"{'≥' if at_least else '≤'} {at_least or at_most}"
    spread = "" if len(ratios) == 1 else f" ({min(ratios):.2f} to {max(ratios):.2f})"
    say(f"{what}: median ratio {median:.2f}{spread}, bar {bar}: {'holds' if held else 'MISSED'}\n")
    return held


def say(text: str) -> None:
    """Print at once, also into a file."""
    print(text, flush=True)  # noqa: T201 - the result


if __name__ == "__main__":
    sys.exit(main())
