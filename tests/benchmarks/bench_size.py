"""`make bench-size`: a table of 10⁶, 10⁷ and 10⁸ rows from PostgreSQL to bronze, silver and one document.

Each stage is the command that a user runs, in a new process, one after the other. The peak of memory is the
sum of the resident memory of the command's processes: the reader, or Python and its JVM. The chart shows
seconds of each stage over rows, both axes logarithmic: a line of slope 1 is linear growth.

The bars: at every size the commands of a stage stay within 4 GiB, and ten times the rows cost at most eleven
times the seconds from 10⁷ rows on, where starts no longer count.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg

from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer
from tests.benchmarks.bench_first import SMELT, watched
from tests.benchmarks.measuring import machine, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_SIZES: Final = (1_000_000, 10_000_000, 100_000_000)
_STAGES: Final = ("bronze", "silver", "gold")
_MEMORY_BAR: Final = 4096
_GROWTH_BAR: Final = 11.0
_LINEAR_FROM: Final = 10_000_000
_TABLE: Final = """
CREATE TABLE orders (id bigint PRIMARY KEY, customer_id int NOT NULL, status text NOT NULL,
  total numeric(12, 2), created_at timestamptz NOT NULL, shipped_at timestamptz, note text)
"""
_ROWS: Final = """
INSERT INTO orders
SELECT n, n % 99991, (ARRAY['new', 'paid', 'shipped', 'returned'])[1 + n % 4], (n % 100000) / 100.0,
       '2026-01-01'::timestamptz + n * interval '1 second',
       CASE WHEN n % 3 = 0 THEN '2026-01-02'::timestamptz + n * interval '1 second' END, 'note ' || n
FROM generate_series({low}, {high}) n
"""
_LOADERS: Final = 2
_PIPELINE: Final = """\
pipeline: size
source: {{dsn: '{dsn}', slot: size, publication: size, tables: [public.*]}}
lake: {{path: {folder}/lake}}
gold: {{documents: [order.yml]}}
spark: {{spark.local.dir: {folder}/scratch}}
"""
_DOCUMENT: Final = """\
document: order
root: public.orders
fields:
  - id
  - status
  - total
  - customer: {object: [customer_id, note]}
  - times: {object: [created_at, shipped_at]}
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one stage.

    Attributes:
        wall: seconds.
        cpu: seconds of all its processes.
        peak: largest sum of its processes' resident memory, MiB.
        disk: bytes of its layer afterwards.
        scratch: largest size of Spark's local folder, bytes.
    """

    wall: float
    cpu: float
    peak: float
    disk: int
    scratch: int


def main() -> int:
    """Measure each size, print a table, and return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="bench-size")
    parser.add_argument("sizes", nargs="*", type=int, default=_SIZES, help="numbers of rows")
    parser.add_argument("--chart", type=Path, help="draw the curve as an SVG file")
    options = parser.parse_args()
    say(f"{machine()}; rows of 7 columns\n")
    head = ("rows", "stage", "wall s", "CPU s", "peak MiB", "layer MB", "scratch MB")
    say("{:>11} {:<7} {:>8} {:>8} {:>9} {:>9} {:>11}".format(*head))
    costs = {rows: measure(rows) for rows in sorted(options.sizes)}
    if options.chart:
        options.chart.write_text(draw(costs), encoding="utf-8")
    return 0 if bars_hold(costs) else 1


def measure(rows: int) -> dict[str, Cost]:
    """Run the stages over a new table in a new lake; print and return their costs."""
    settings = {"max_wal_size": "2GB", "shared_buffers": "512MB", "max_slot_wal_keep_size": "50GB"}
    costs: dict[str, Cost] = {}
    with EmbeddedServer(settings=settings) as server, tempfile.TemporaryDirectory() as folder:
        load(server.dsn(), rows)
        pipeline = Path(folder) / "pipeline.yml"
        pipeline.write_text(_PIPELINE.format(dsn=server.dsn(), folder=folder), encoding="utf-8")
        (Path(folder) / "order.yml").write_text(_DOCUMENT, encoding="utf-8")
        for stage in _STAGES:
            cost = run(stage, pipeline)
            costs[stage] = cost
            say(
                f"{rows:>11,} {stage:<7} {cost.wall:>8.1f} {cost.cpu:>8.1f} {cost.peak:>9,.0f} "
                f"{cost.disk / 1e6:>9,.0f} {cost.scratch / 1e6:>11,.0f}"
            )
    return costs


def load(dsn: str, rows: int) -> None:
    """Make the table, by several sessions."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_TABLE.encode())
    step = -(-rows // (4 * _LOADERS))

    def add(low: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(_ROWS.format(low=low, high=min(rows, low + step - 1)).encode())

    with ThreadPoolExecutor(_LOADERS) as pool:
        list(pool.map(add, range(1, rows + 1, step)))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("VACUUM (FREEZE, ANALYZE) orders")
        connection.execute("CHECKPOINT")


def run(stage: str, pipeline: Path) -> Cost:
    """Run a stage's command until it has caught up; raises as `watched`."""
    folder, peak, scratch = pipeline.parent, 0.0, 0

    def look(pids: Iterable[int]) -> None:
        nonlocal peak, scratch
        peak = max(peak, sum(map(resident, pids)))
        scratch = max(scratch, size_of(folder / "scratch"))

    wall, cpu = watched([*SMELT, stage, str(pipeline), "--until-caught-up"], stage, look)
    return Cost(wall, cpu, peak, size_of(folder / "lake" / stage), scratch)


def resident(pid: int) -> float:
    """Return the resident memory of a process in MiB, 0 after its end."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder; files may disappear meanwhile."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(path, name).lstat().st_size
            except OSError:
                continue
    return total


def bars_hold(costs: Mapping[int, Mapping[str, Cost]]) -> bool:
    """Print missed bars; return whether none is missed."""
    missed = [
        f"{rows:,} rows: {stage} took {cost.peak:,.0f} MiB"
        for rows, stages in costs.items()
        for stage, cost in stages.items()
        if cost.peak > _MEMORY_BAR
    ]
    sizes = [rows for rows in costs if rows >= _LINEAR_FROM]
    for small, large in pairwise(sizes):
        for stage in _STAGES:
            grown = costs[large][stage].wall / costs[small][stage].wall
            if grown > _GROWTH_BAR * large / small / 10:
                missed.append(f"{stage}: {large / small:g} times the rows took {grown:.1f} times the seconds")
    for text in missed:
        say(f"MISSED: {text}")
    return not missed


_COLOURS: Final = ("#0969da", "#bc4c00", "#1a7f37")
_LEFT, _BASE, _WIDTH, _HEIGHT = 52, 210, 300, 180


def draw(costs: Mapping[int, Mapping[str, Cost]]) -> str:
    """Return the chart of seconds over rows, both logarithmic."""
    sizes = sorted(costs)
    seconds = [cost.wall for stages in costs.values() for cost in stages.values()]
    low, high = math.floor(math.log10(min(seconds))), math.ceil(math.log10(max(seconds)))
    first, last = math.log10(sizes[0]), math.log10(sizes[-1])

    def at(rows: int) -> float:
        return _LEFT + (math.log10(rows) - first) / max(last - first, 1e-9) * _WIDTH

    def up(value: float) -> float:
        return _BASE - (math.log10(value) - low) / (high - low) * _HEIGHT

    marks = [
        f'<line x1="{_LEFT}" y1="{up(10.0**tick):.0f}" x2="{_LEFT + _WIDTH}" y2="{up(10.0**tick):.0f}"/>'
        f'<text x="{_LEFT - 6}" y="{up(10.0**tick) + 4:.0f}" text-anchor="end">{10.0**tick:,g} s</text>'
        for tick in range(low, high + 1)
    ]
    marks += [
        f'<text x="{at(rows):.0f}" y="{_BASE + 18}" text-anchor="middle">{rows:,}</text>' for rows in sizes
    ]
    lines = [line(stage, costs, at, up, colour) for stage, colour in zip(_STAGES, _COLOURS, strict=True)]
    box = f"0 0 {_LEFT + _WIDTH + 90} {_BASE + 30}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img" '
        'aria-label="Seconds of each stage over the rows of a table">\n'
        "<style>text{font:12px sans-serif;fill:#57606a}line{stroke:#d0d7de}path{fill:none;stroke-width:2}"
        "@media(prefers-color-scheme:dark){text{fill:#8b949e}line{stroke:#30363d}}</style>\n"
        + "\n".join([*marks, *lines])
        + "\n</svg>\n"
    )


def line(
    stage: str,
    costs: Mapping[int, Mapping[str, Cost]],
    at: Callable[[int], float],
    up: Callable[[float], float],
    colour: str,
) -> str:
    """Return a stage's line with its name at the end."""
    points: Sequence[tuple[float, float]] = [
        (at(rows), up(stages[stage].wall)) for rows, stages in sorted(costs.items())
    ]
    path = "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    x, y = points[-1]
    return (
        f'<path d="{path}" stroke="{colour}"/><text x="{x + 6:.0f}" y="{y + 4:.0f}" '
        f'style="fill:{colour}">{stage}</text>'
    )


if __name__ == "__main__":
    sys.exit(main())
