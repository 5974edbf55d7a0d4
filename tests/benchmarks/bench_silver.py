"""`make bench-silver`: silver against the templates that users write today, over equal changes.

The template (`silver_clients`) parses JSON change records, selects the newest record of each key by
`row_number` and runs one MERGE with default settings. The tuned template has typed records, few shuffle
partitions and deletion vectors. Each client has its own process and JVM. The clients run in turn, and the
order changes each time. A ratio compares neighbouring runs, so unrelated load affects all clients. The start
of Spark and one small MERGE that loads the classes are not measured. The bars compare with the template with
default settings.

The bars: the first fold of `bulk` at least 4 times as fast as the template's, windows of 10,000 scattered
updates at least 2.5 times; ten million changes to five tables in one run at least 3 times, in wall and CPU,
and at most 11 times the cost of a million; 10,000 changes of neighbouring keys on ten million rows at most
twice the cost on 100,000; twenty tables with a few changes each at most six times one; and from the
commit at the source to silver at most 8 s (median) at 1,000 transactions a second over five tables.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tests.benchmarks.measuring import machine, ratio, say
from tests.benchmarks.silver_continuous import ages, percentiles
from tests.benchmarks.silver_work import Changes, Work, orders

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_BARS: Final = {
    "first": 4.0, "windows": 2.5, "large": 3.0, "growth": 11.0, "size": 2.0, "tables": 6.0, "continuous": 8.0
}  # fmt: skip
_PARTS: Final = ("first", "windows", "large", "size", "tables", "continuous")


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one batch.

    Attributes:
        wall: elapsed time of the batch in seconds.
        cpu: seconds of the JVM and of its Python.
        peak: largest resident memory of the JVM so far, MiB.
        tables: the newest commit of each table.
    """

    wall: float
    cpu: float
    peak: float
    tables: list[dict[str, Any]]

    def files(self, name: str | None = None) -> str:
        """Return how many files the newest commit removed, marked and added, and how many exist."""
        table = next(candidate for candidate in self.tables if name in (None, candidate["name"]))
        metrics = {key: int(value) for key, value in table["metrics"].items() if str(value).isdigit()}
        touched = metrics.get("numTargetFilesRemoved", 0)
        marked = metrics.get("numTargetDeletionVectorsAdded", 0)
        added = metrics.get("numTargetFilesAdded", metrics.get("numFiles", 0))
        copied = metrics.get("numTargetRowsCopied", 0)
        return f"{touched}+{marked}dv/{added}/{table['files']}, {copied:,} copied"


class Client:
    """A measured process."""

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
        for client in started:
            client.close()


def main() -> int:
    """Measure, print the table, and return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="bench-silver")
    parser.add_argument("parts", nargs="*", default=_PARTS, help=", ".join(_PARTS))
    parser.add_argument("--pairs", type=int, default=3, help="first folds, each in new JVMs")
    parser.add_argument("--quick", action="store_true", help="smaller tables and fewer windows")
    parser.add_argument("--folder", type=Path, help="where the lakes go; a temporary folder")
    options = parser.parse_args()
    say(f"{machine()}\n")
    say(
        f"{'what':42} {'client':9} {'wall s':>7} {'CPU s':>7} {'peak MiB':>9}  files removed+marked/added/all"
    )
    passed = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if {"first", "windows"} & set(options.parts):
            passed = (
                beside_templates(folder / "bulk", options.parts, quick=options.quick, pairs=options.pairs)
                and passed
            )
        if "large" in options.parts:
            passed = large(folder / "large", quick=options.quick) and passed
        if "size" in options.parts:
            passed = by_size(folder / "size", quick=options.quick) and passed
        if "tables" in options.parts:
            passed = by_tables(folder / "tables", quick=options.quick) and passed
        if "continuous" in options.parts:
            passed = continuous(folder / "continuous", quick=options.quick) and passed
    return 0 if passed else 1


_BESIDE: Final = ("silver", "template", "tuned")


def beside_templates(folder: Path, parts: Sequence[str], *, quick: bool, pairs: int) -> bool:
    """Measure first folds of `bulk` in new JVMs, then windows of scattered updates in the last JVMs."""
    passed = True
    speeds: dict[str, list[float]] = {kind: [] for kind in _BESIDE[1:]}
    for pair in range(pairs):
        last = pair == pairs - 1
        bulk = Bulk(folder / str(pair), quick=quick)
        with clients(bulk.folder, *_BESIDE) as all_clients:
            taken(bulk.first_name, bulk.first, turn(all_clients, pair), speeds)
            if last and "first" in parts:
                for kind, ratios in speeds.items():
                    bar = _BARS["first"] if kind == "template" else None
                    passed = ratio(f"first fold beside the {kind}", ratios, at_least=bar) and passed
            if last and "windows" in parts:
                passed = windows(bulk, all_clients) and passed
    return passed


def windows(bulk: Bulk, all_clients: Sequence[Client]) -> bool:
    """Measure windows of scattered updates."""
    for client in all_clients:
        client.fold(bulk.more)
    speeds: dict[str, list[float]] = {kind: [] for kind in _BESIDE[1:]}
    for window in range(bulk.windows):
        taken(bulk.window_name, bulk.window(window), turn(all_clients, window), speeds)
    passed = True
    for kind, ratios in speeds.items():
        bar = _BARS["windows"] if kind == "template" else None
        passed = ratio(f"windows of scattered updates beside the {kind}", ratios, at_least=bar) and passed
    return passed


def taken(name: str, batch: str, all_clients: Sequence[Client], speeds: dict[str, list[float]]) -> None:
    """Fold one batch with every client; append silver's speed against each template to `speeds`."""
    costs = {client.kind: line(name, client.kind, client.fold(batch)) for client in all_clients}
    for kind, ratios in speeds.items():
        ratios.append(costs[kind].wall / costs["silver"].wall)


def turn(all_clients: Sequence[Client], by: int) -> Sequence[Client]:
    """Rotate the clients, for a different order each time."""
    start = by % len(all_clients)
    return [*all_clients[start:], *all_clients[:start]]


class Bulk:
    """The changes of `bulk.sql`, followed by windows of scattered updates."""

    def __init__(self, folder: Path, *, quick: bool) -> None:
        self.folder = folder
        self._rows, self._count, self.windows = (60_000, 1_000, 3) if quick else (600_000, 10_000, 9)
        self._shape = orders("orders", 2)
        self._work = Work(folder, [self._shape], templates=True)
        self._ids, self._rng = np.arange(1, self._rows + 1), np.random.default_rng(1)
        ids = self._ids
        self.first = self._work.write(
            Changes(self._shape, "insert", ids),
            Changes(self._shape, "update", ids[ids % 3 == 0], status="paid", raised=1),
            Changes(self._shape, "delete", ids[ids % 10 == 0]),
        )
        self.first_name = f"first fold of {self._rows + self._rows // 3 + self._rows // 10:,} changes"
        self.window_name = f"{self._count:,} scattered updates on {self._rows:,} rows"

    @cached_property
    def more(self) -> str:
        """Write as many new rows as `first` deletes."""
        return self._work.write(Changes(self._shape, "insert", self._new))

    def window(self, number: int) -> str:
        """Write updates of random rows of the table."""
        current = np.concatenate([self._ids[self._ids % 10 != 0], self._new])
        some = np.sort(self._rng.choice(current, self._count, replace=False))
        return self._work.write(Changes(self._shape, "update", some, status="paid", raised=2 + number))

    @property
    def _new(self) -> NDArray[np.int64]:
        return np.arange(self._rows + 1, self._rows + self._rows // 10 + 1)


def large(folder: Path, *, quick: bool) -> bool:
    """Measure the work after an outage: a first fold of a million changes to five tables, and of ten million.

    Each client has a new JVM for each size. An event log of silver's tasks shows the bytes that they spilled.
    """
    sizes = (14_000, 140_000) if quick else (140_000, 1_400_000)
    walls: dict[str, list[float]] = {}
    costs: dict[str, Cost] = {}
    for rows in sizes:
        shapes = [orders(f"orders_{number}", 10 + number) for number in range(5)]
        work = Work(folder / str(rows), shapes, templates=True)
        ids = np.arange(1, rows + 1)
        batch = work.write(
            *(Changes(shape, "insert", ids) for shape in shapes),
            *(Changes(speed, "update", ids[ids % 3 == 0], status="paid", raised=1) for speed in shapes),
            *(Changes(shape, "delete", ids[ids % 10 == 0]) for shape in shapes),
        )
        count = 5 * (rows + rows // 3 + rows // 10)
        for kind in ("logged", "template"):
            with clients(folder / str(rows), kind) as (client,):
                costs[kind] = client.fold(batch)
            line(f"{count:,} changes to five tables", kind, costs[kind])
            walls.setdefault(kind, []).append(costs[kind].wall)
        bronze = _bytes(folder / str(rows) / "lake" / "bronze")
        say(f"  bronze {bronze / 2**20:,.0f} MiB, {spilled(folder / str(rows) / 'events')}")
        shutil.rmtree(folder / str(rows))
    shares = {
        "wall": costs["template"].wall / costs["logged"].wall,
        "CPU": costs["template"].cpu / costs["logged"].cpu,
    }
    growth = [walls["logged"][1] / walls["logged"][0]]
    passed = ratio("ten times the changes, wall", growth, at_most=_BARS["growth"])
    for quantity, speed in shares.items():
        name = f"ten times the changes beside the template, {quantity}"
        passed = ratio(name, [speed], at_least=_BARS["large"]) and passed
    return passed


def spilled(folder: Path) -> str:
    """Return how much a client's tasks spilled to disk for lack of memory, and how much they shuffled."""
    disk = shuffled = 0
    for file in folder.rglob("events_*"):
        for text in file.open():
            event = json.loads(text)
            metrics = event.get("Task Metrics") or {}
            disk += metrics.get("Disk Bytes Spilled", 0)
            shuffled += metrics.get("Shuffle Write Metrics", {}).get("Shuffle Bytes Written", 0)
    return f"shuffled {shuffled / 2**20:,.0f} MiB, spilled {disk / 2**20:,.0f} MiB to disk"


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def by_size(folder: Path, *, quick: bool) -> bool:
    """Measure windows of one size on a small and a large table, with neighbouring and scattered keys."""
    sizes = {"small": 10_000, "large": 100_000} if quick else {"small": 100_000, "large": 10_000_000}
    count, windows = (1_000, 3) if quick else (10_000, 5)
    shapes = {name: orders(name, number) for number, name in enumerate(sizes, 2)}
    work = Work(folder, list(shapes.values()))
    rng = np.random.default_rng(2)
    passed = True
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
            passed = ratio(f"large beside small, {kind} keys", ratios, at_most=bar) and passed
    return passed


def by_tables(folder: Path, *, quick: bool) -> bool:
    """Measure a few changes to one table, and to each of twenty tables."""
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
                work.write(
                    *(Changes(shape, "update", ids[:20], status="paid", raised=window) for shape in some)
                )
                name = f"20 updates on each of {len(some)} tables"
                walls.append(line(name, "silver", silver.fold(), "orders_0").wall)
            if window > 1:
                ratios.append(walls[1] / walls[0])
    return ratio("twenty tables beside one", ratios, at_most=_BARS["tables"])


def continuous(folder: Path, *, quick: bool) -> bool:
    """Measure with a live server at 1,000 transactions a second."""
    warm, seconds = (20.0, 20.0) if quick else (240.0, 60.0)  # the JVM compiles for minutes
    seconds_behind = ages(folder, warm=warm, seconds=seconds)
    median, late = percentiles(seconds_behind)
    bar = _BARS["continuous"]
    say(
        f"commit to silver, {len(seconds_behind) / seconds:,.0f} transactions a second over five tables: p50 "
        f"{median:.1f} s, p95 {late:.1f} s, bar p50 ≤ {bar}: {'holds' if median <= bar else 'MISSED'}\n"
    )
    return median <= bar


def line(title: str, client: str, cost: Cost, table: str | None = None) -> Cost:
    """Print one measurement and return its cost."""
    name = table if client == "silver" else None
    say(f"{title:42} {client:9} {cost.wall:7.2f} {cost.cpu:7.2f} {cost.peak:9.0f}  {cost.files(name)}")
    return cost


if __name__ == "__main__":
    sys.exit(main())
