"""`make bench-gold`: gold's full build beside hand-written SQL, and its incremental runs beside both.

One million customers with five orders each, in silver tables as a snapshot leaves them (`gold_work`). All
runs share one Spark session with the pipeline's own settings and memory; a small lake is built and changed
before, so that the JVM knows the code. Full builds and the hand-written statement take turns, and a ratio is
that of neighbours. A run of gold is a whole cycle: from the cut of silver to the recorded cut of gold.

The bars: the full build at least 0.7 times as fast as ``collect_list`` of structs (without order and without
the hash, which gold has); a run after changes to 1 % of the roots at most 15 % of the full build, to 0.01 %
at most 5 %, or no more than one hand-written MERGE of so many ready documents into the same table; and a
parent with 200,000 children is built and changed in the session's default memory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipelines.session import spark_session, stop_session
from silver.sessions import warm_up
from tests.benchmarks.gold_work import COLLECTED, CUSTOMER, NESTED, GoldWork

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

_CHILDREN: Final = 5
_WARM_ROWS: Final = 60_000
_BARS: Final = {"full": 0.7, "percent": 0.15, "few": 0.05}


def main() -> int:
    """Measure, print the table, and say whether the bars hold."""
    parser = argparse.ArgumentParser(prog="bench-gold")
    parser.add_argument("--rows", type=int, default=1_000_000, help="root documents")
    parser.add_argument("--pairs", type=int, default=3, help="full builds, and windows of each size")
    parser.add_argument("--children", type=int, default=200_000, help="of one parent, for skew")
    parser.add_argument("--folder", type=Path, help="where the lakes go; a temporary folder")
    options = parser.parse_args()
    say(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start\n")
    spark = spark_session({"spark.master": "local[2]"})
    warm_up(spark)
    try:
        with tempfile.TemporaryDirectory() as temporary:
            folder = options.folder or Path(temporary)
            rehearse(spark, folder / "rehearsal")
            say(f"{'what':66} {'wall s':>7}")
            held = documents(spark, folder / "documents", options.rows, options.pairs)
            held = skew(spark, folder / "skew", options.children) and held
    finally:
        stop_session(spark)
    return 0 if held else 1


def rehearse(spark: SparkSession, folder: Path) -> None:
    """All that is measured, on little."""
    work = shop(spark, folder, _WARM_ROWS)
    work.gold.cycle()
    for kind in COLLECTED:
        work.build_by_hand(kind)
    for count in (_WARM_ROWS // 100, _WARM_ROWS // 1000) * 2:
        change(work, _WARM_ROWS, count, seed=count)
        work.gold.cycle()
    merge_by_hand(work, 10)


def documents(spark: SparkSession, folder: Path, rows: int, pairs: int) -> bool:
    """Full builds in turns with the hand-written ones, then windows, then one MERGE alone."""
    work = shop(spark, folder, rows)
    by_hand: dict[str, list[float]] = {kind: [] for kind in COLLECTED}
    full = []
    for _ in range(pairs):
        for kind, walls in by_hand.items():
            walls.append(timed(f"{kind}, {rows:,} documents", partial(work.build_by_hand, kind)))
        shutil.rmtree(f"{folder}/gold/customer", ignore_errors=True)
        full.append(timed(f"gold, full build of {rows:,}", lambda: work.gold.cycle(rebuild=["customer"])))
    ratios = {
        kind: [hand / gold for hand, gold in zip(walls, full, strict=True)] for kind, walls in by_hand.items()
    }
    plain, *others = COLLECTED
    held = ratio(f"speed of the full build beside {plain}", ratios[plain], at_least=_BARS["full"])
    for kind in others:
        ratio(f"speed of the full build beside {kind}", ratios[kind])
    whole = statistics.median(full)
    walls = windows(work, rows, rows // 100, pairs)
    part = [wall / whole for wall in walls]
    held = ratio("1 % of the roots beside the full build", part, at_most=_BARS["percent"]) and held
    few = max(rows // 10_000, 1)
    walls = windows(work, rows, few, pairs)
    floor = [
        timed(f"one MERGE by hand of {few:,} documents", lambda: merge_by_hand(work, few))
        for _ in range(pairs)
    ]
    small = ratio(
        "0.01 % of the roots beside the full build", [wall / whole for wall in walls], at_most=_BARS["few"]
    )
    floored = ratio(
        "0.01 % of the roots beside one MERGE by hand",
        [wall / statistics.median(floor) for wall in walls],
        at_most=1.0,
    )
    return held and (small or floored)


def windows(work: GoldWork, rows: int, count: int, number: int) -> list[float]:
    """Cycles after changes to so many roots."""
    walls = []
    for window in range(number):
        change(work, rows, count, seed=count + 7 * window)
        walls.append(timed(f"gold, {count:,} of {rows:,} roots changed", work.gold.cycle))
        run = work.control.runs("gold")[0]
        assert (run.mode, run.updates) == ("incremental", count), run
    return walls


def skew(spark: SparkSession, folder: Path, children: int) -> bool:
    """One parent with very many children, each with two of their own: built, and one of them changed."""
    shutil.rmtree(folder, ignore_errors=True)
    work = GoldWork(spark, folder, CUSTOMER, NESTED)
    parents = 1000
    work.fill("customers", parents)
    orders = children + _CHILDREN * parents
    work.fill("orders", orders, f"IF(n <= {children}, 1, 1 + n % {parents})")
    work.fill("items", 2 * orders)
    work.cut()
    timed(f"gold, two documents with a parent of {children:,} children, full", work.gold.cycle)
    work.touch("SELECT 7L AS id", "touched")
    work.cut()
    timed("gold, … one of these children changed", work.gold.cycle)
    held = True
    for name in ("customer", "nested"):
        row = work.spark.sql(
            f"SELECT size(orders) AS size, exists(orders, o -> o.status = 'touched') AS touched "
            f"FROM {work.lake.sql('gold', name)} WHERE id = 1"
        ).first()
        run = work.control.runs("gold", name)[0]
        passed = row is not None and row["size"] >= children and row["touched"] and run.updates == 1
        say(f"  {name}, its documents right: {'holds' if passed else f'MISSED: {row}, {run}'}")
        held = held and passed
    return held


def shop(spark: SparkSession, folder: Path, rows: int) -> GoldWork:
    """A fresh lake with customers, five orders each, and a cut."""
    shutil.rmtree(folder, ignore_errors=True)
    work = GoldWork(spark, folder, CUSTOMER)
    work.fill("customers", rows)
    work.fill("orders", _CHILDREN * rows, f"1 + (n * 7919) % {rows}")
    work.cut()
    return work


def change(work: GoldWork, rows: int, count: int, *, seed: int) -> None:
    """Change one order of each of so many customers, anywhere in the table."""
    ids = f"SELECT 1 + (id * 999983 + {seed}) % {_CHILDREN * rows} AS id FROM range(0, {count})"
    work.touch(ids, f"changed {work.moment}")
    work.cut()


def merge_by_hand(work: GoldWork, count: int) -> None:
    """One MERGE of documents that are ready, as a person writes it."""
    target = work.lake.sql("gold", "customer")
    ready = work.spark.sql(f"SELECT * FROM {target} WHERE id % 99991 < 1 + {count} DIV 10 LIMIT {count}")
    ready.localCheckpoint().createOrReplaceTempView("ready")
    work.spark.sql(
        f"MERGE INTO {target} AS t USING (SELECT * EXCEPT (tier), concat(tier, '+') AS tier FROM ready) AS s "
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def timed(what: str, action: Callable[[], object]) -> float:
    """Do it, print what it took, and return that."""
    clock = time.monotonic()
    action()
    wall = time.monotonic() - clock
    say(f"{what:66} {wall:7.2f}")
    return wall


def ratio(
    what: str, ratios: Sequence[float], *, at_least: float | None = None, at_most: float | None = None
) -> bool:
    """Print the median of ratios and whether the bar holds."""
    median = statistics.median(ratios)
    held = (at_least is None or median >= at_least) and (at_most is None or median <= at_most)
    bar = f"; bar {'≥' if at_least else '≤'} {at_least or at_most}: {'holds' if held else 'MISSED'}"
    verdict = "" if at_least is at_most is None else bar
    say(f"  {what}: median ratio {median:.2f} ({min(ratios):.2f} to {max(ratios):.2f}){verdict}")
    return held


def say(text: str) -> None:
    """Print at once, also into a file."""
    print(text, flush=True)  # noqa: T201 - the result


if __name__ == "__main__":
    sys.exit(main())
