"""`make bench-gold`: gold's full build against hand-written SQL, and its incremental runs against both.

The data is one million customers with five orders each, in silver tables as after a snapshot (`gold_work`).
All runs share one Spark session with the pipeline's own settings and memory. A rehearsal first builds and
changes a small lake in all ways equally often, so that the JVM knows the code. Full builds alternate with the
hand-written statements, and windows with the hand-written MERGE; the order changes each time. A ratio
compares neighbouring runs. A run of gold is a whole cycle: from the cut of silver to the recorded cut of
gold. The hand-written MERGE receives finished documents: their construction is not part of the floor.

The bars: the full build at least 0.7 times as fast as ``collect_list`` of structs, which lacks gold's order
and hash. On tables after `smelt maintain`, a run after changes to 1 % of the roots takes at most 40 % of the
full build, after changes to 0.01 % at most 20 %. A parent with 200,000 children is built and changed in the
session's default memory. Two parts have no bar: the cost of little work (`gold_small`), and of each level of
a recursion.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltasmelt.pipelines.runtime.progress_text import maintenance_text
from deltasmelt.pipelines.spark.session import spark_session, stop_session
from deltasmelt.silver.spark.access import warm_up
from tests.benchmarks.gold_small import recursions, small_lake
from tests.benchmarks.gold_work import COLLECTED, CUSTOMER, NESTED, GoldWork
from tests.benchmarks.measuring import machine, ratio, say
from tests.fix_spark import signed

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

_CHILDREN: Final = 5
_WARM_ROWS: Final = 60_000
_PARTS: Final = ("documents", "skew", "small", "recursion")
_BARS: Final = {"full": 0.7, "percent": 0.4, "few": 0.2}


def main() -> int:
    """Measure, print the table, and return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="bench-gold")
    parser.add_argument("parts", nargs="*", default=_PARTS, help=", ".join(_PARTS))
    parser.add_argument("--rows", type=int, default=1_000_000, help="root documents")
    parser.add_argument("--pairs", type=int, default=3, help="full builds, and windows of each size")
    parser.add_argument("--children", type=int, default=200_000, help="of one parent, for skew")
    parser.add_argument("--folder", type=Path, help="where the lakes go; a temporary folder")
    options = parser.parse_args()
    say(f"{machine()}\n")
    spark = spark_session({"spark.master": "local[2]"})
    warm_up(spark)
    try:
        with tempfile.TemporaryDirectory() as temporary:
            folder = options.folder or Path(temporary)
            passed = True
            if {"documents", "skew"} & set(options.parts):
                rehearse(spark, folder / "rehearsal")
                say(f"\n{'what':66} {'wall s':>7}")
            if "documents" in options.parts:
                passed = documents(spark, folder / "documents", options.rows, options.pairs)
            if "skew" in options.parts:
                passed = skew(spark, folder / "skew", options.children) and passed
            if "small" in options.parts:
                small_lake(spark, folder / "small")
            if "recursion" in options.parts:
                recursions(spark, folder / "recursion")
    finally:
        stop_session(spark)
    return 0 if passed else 1


def rehearse(spark: SparkSession, folder: Path) -> None:
    """Run every measured action on little data."""
    work = shop(spark, folder, _WARM_ROWS)
    for number in range(2):
        for action in turn(builds(work), number).values():
            action()
    for count in (_WARM_ROWS // 100, _WARM_ROWS // 1000) * 2:
        change(work, _WARM_ROWS, count, seed=count)
        work.gold.cycle()
        merge_by_hand(work, ready(work, count))


def builds(work: GoldWork) -> dict[str, Callable[[], object]]:
    """Return every way to build all documents."""

    def full() -> None:
        shutil.rmtree(f"{work.lake.path}/gold/customer", ignore_errors=True)
        work.gold.cycle(rebuild=["customer"])

    return {"gold": full, **{kind: partial(work.build_by_hand, kind) for kind in COLLECTED}}


def turn(actions: dict[str, Callable[[], object]], by: int) -> dict[str, Callable[[], object]]:
    """Rotate the actions, for a different order each time."""
    names = list(actions)
    start = by % len(names)
    return {name: actions[name] for name in names[start:] + names[:start]}


def documents(spark: SparkSession, folder: Path, rows: int, pairs: int) -> bool:
    """Measure full builds in turn with the hand-written SQL, then windows in turn with one MERGE alone."""
    work = shop(spark, folder, rows)
    timed("smelt maintain, orders clustered by their customer", partial(maintained, work))
    walls: dict[str, list[float]] = {kind: [] for kind in builds(work)}
    for number in range(pairs):
        for kind, action in turn(builds(work), number).items():
            walls[kind].append(timed(f"{kind}, full build of {rows:,} documents", action))
    full = walls["gold"]
    passed = True
    for kind in COLLECTED:
        speeds = [hand / gold for hand, gold in zip(walls[kind], full, strict=True)]
        bar = _BARS["full"] if kind == next(iter(COLLECTED)) else None
        passed = ratio(f"speed of the full build beside {kind}", speeds, at_least=bar) and passed
    timed("smelt maintain, documents clustered by their key", partial(maintained, work))
    whole = statistics.median(full)
    one_percent, _ = windows(work, rows, rows // 100, pairs)
    part = [wall / whole for wall in one_percent]
    passed = ratio("1 % of the roots beside the full build", part, at_most=_BARS["percent"]) and passed
    few, floor = windows(work, rows, max(rows // 10_000, 1), pairs)
    part = [wall / whole for wall in few]
    passed = ratio("0.01 % of the roots beside the full build", part, at_most=_BARS["few"]) and passed
    merge_ratios = [wall / least for wall, least in zip(few, floor, strict=True)]
    ratio("0.01 % of the roots beside one MERGE by hand", merge_ratios)
    return passed


def windows(work: GoldWork, rows: int, count: int, number: int) -> tuple[list[float], list[float]]:
    """Return the seconds of cycles after `count` changed roots, and of a MERGE of `count` documents."""
    walls: dict[str, list[float]] = {"gold": [], "hand": []}
    for window in range(number):
        change(work, rows, count, seed=count + 7 * window)
        rows_ready = ready(work, count)
        steps = {
            "gold": partial(timed, f"gold, {count:,} of {rows:,} roots changed", work.gold.cycle),
            "hand": partial(
                timed, f"one MERGE by hand of {count:,} documents", partial(merge_by_hand, work, rows_ready)
            ),
        }
        for kind in ("gold", "hand") if window % 2 == 0 else ("hand", "gold"):
            walls[kind].append(steps[kind]())
        run = work.control.runs("gold")[0]
        assert (run.mode, run.updates) == ("incremental", count), run
    return walls["gold"], walls["hand"]


def skew(spark: SparkSession, folder: Path, children: int) -> bool:
    """Build one parent with very many children, each with two children, then change one child."""
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
    all_passed = True
    for name in ("customer", "nested"):
        row = work.spark.sql(
            f"SELECT size(orders) AS size, exists(orders, o -> o.status = 'touched') AS touched "
            f"FROM {work.lake.sql('gold', name)} WHERE id = 1"
        ).first()
        run = work.control.runs("gold", name)[0]
        passed = row is not None and row["size"] >= children and row["touched"] and run.updates == 1
        say(f"  {name}, its documents right: {'holds' if passed else f'MISSED: {row}, {run}'}")
        all_passed = all_passed and passed
    return all_passed


def shop(spark: SparkSession, folder: Path, rows: int) -> GoldWork:
    """Create a fresh lake with customers, five orders each, and a cut."""
    shutil.rmtree(folder, ignore_errors=True)
    work = GoldWork(spark, folder, CUSTOMER)
    work.fill("customers", rows)
    work.fill("orders", _CHILDREN * rows, f"1 + (n * 7919) % {rows}")
    work.cut()
    return work


def maintained(work: GoldWork) -> None:
    """Run `smelt maintain` and print its result for each table."""
    for result in work.maintain():
        say(f"  {maintenance_text(result)}")


def change(work: GoldWork, rows: int, count: int, *, seed: int) -> None:
    """Change one order of each of `count` customers, scattered over the table."""
    ids = f"SELECT 1 + (id * 999983 + {seed}) % {_CHILDREN * rows} AS id FROM range(0, {count})"
    work.touch(ids, f"changed {work.moment}")
    work.cut()


def ready(work: GoldWork, count: int) -> DataFrame:
    """Return `count` changed documents, computed and cached."""
    target = work.lake.sql("gold", "customer")
    some = work.spark.sql(
        f"SELECT * EXCEPT (tier), concat(tier, '+') AS tier FROM {target} "
        f"WHERE id % 99991 < 1 + {count} DIV 10 LIMIT {count}"
    )
    return some.localCheckpoint()


def merge_by_hand(work: GoldWork, made: DataFrame) -> None:
    """Run one hand-written MERGE of finished documents, signed: gold builds in full after foreign commits."""
    made.createOrReplaceTempView("ready")
    with signed(work.spark):
        work.spark.sql(
            f"MERGE INTO {work.lake.sql('gold', 'customer')} AS t USING ready AS s "
            "ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )


def timed(title: str, action: Callable[[], object]) -> float:
    """Run the action; print and return its seconds."""
    clock = time.monotonic()
    action()
    wall = time.monotonic() - clock
    say(f"{title:66} {wall:7.2f}")
    return wall


if __name__ == "__main__":
    sys.exit(main())
