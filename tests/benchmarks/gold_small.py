"""The cost of gold with little data: a small lake, and recursions level by level.

Both costs are planning, code generation and scheduling rather than rows. CPU seconds are those of the JVM and
its Python. The fastest run of a kind represents the kind, because the first runs compile.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from tests.benchmarks.gold_work import CUSTOMER, NESTED, STAFF, GoldWork
from tests.benchmarks.measuring import say
from tests.benchmarks.silver_clients import cpu_seconds, java

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

_CUSTOMERS: Final = 2_000
_RUNS: Final = 5
_DEPTHS: Final = (3, 8, 16)
_EMPLOYEES: Final = 200


def small_lake(spark: SparkSession, folder: Path) -> None:
    """Measure two documents over 2,000 customers, 4,000 orders, 8,000 items: all, and after ten changes."""
    work = GoldWork(spark, folder, CUSTOMER, NESTED)
    work.fill("customers", _CUSTOMERS)
    work.fill("orders", 2 * _CUSTOMERS, f"1 + n % {_CUSTOMERS}")
    work.fill("items", 4 * _CUSTOMERS)
    work.cut()
    names = [document.name for document in work.documents]
    head(f"two documents, {_CUSTOMERS:,} customers")
    least("all, full build", lambda: work.gold.cycle(rebuild=names))
    least("ten orders changed", work.gold.cycle, before=lambda: touch_orders(work))


def touch_orders(work: GoldWork) -> None:
    """Change ten orders."""
    work.touch("SELECT 7 * id AS id FROM range(1, 11)", f"changed {work.moment}")
    work.cut()


def recursions(spark: SparkSession, folder: Path) -> None:
    """Measure a table joined to itself, to three depths: all documents, and after one change."""
    for depth in _DEPTHS:
        work = GoldWork(spark, folder / str(depth), STAFF.replace("DEPTH", str(depth)))
        work.fill("employees", _EMPLOYEES)
        work.cut()
        head(f"recursion of {depth} levels, {_EMPLOYEES} rows")

        def change(work: GoldWork = work) -> None:
            work.touch(f"SELECT {_EMPLOYEES}L AS id", f"changed {work.moment}", "employees.name")
            work.cut()

        least("all, full build", lambda work=work: work.gold.cycle(rebuild=["staff"]))  # type: ignore[misc]
        least("one row changed", work.gold.cycle, before=change)


def head(text: str) -> None:
    """Print the head of a table."""
    say(f"\n{text:44} {'first s':>8} {'least s':>8} {'CPU s':>7}")


def least(text: str, action: Callable[[], object], *, before: Callable[[], None] | None = None) -> None:
    """Run the action several times; print its first and its least cost."""
    pid = java()
    runs = []
    for _ in range(_RUNS):
        if before is not None:
            before()
        cpu, clock = cpu_seconds(pid), time.monotonic()
        action()
        runs.append((time.monotonic() - clock, cpu_seconds(pid) - cpu))
    say(
        f"{text:44} {runs[0][0]:8.2f} {min(wall for wall, _ in runs):8.2f} {min(cpu for _, cpu in runs):7.2f}"
    )
