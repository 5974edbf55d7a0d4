"""Gold is killed with kill -9 between the commits of two documents."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from gold.plans import GOLD_APP
from tests.gold.shop_documents import COUNTRY, PARCEL_LINE, document
from tests.gold.test_cycle import TEXTS
from tests.gold.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NAMES = ("parcel_line", "country")
SECONDS = 300.0


def kill_a_cycle(lake: str, when: Callable[[], bool]) -> bool:
    """Start a cycle in a process, kill it and its JVM as soon as `when`; whether it was still at work."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.gold.cycle_process", lake],
        stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "cycle\n"
        deadline = time.monotonic() + SECONDS
        while not when():
            assert time.monotonic() < deadline
            assert process.poll() is None, "the cycle ended before it was killed"
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return process.stdout.read() == ""


def versions(lake: str) -> dict[str, int]:
    return {name: DeltaTable(f"{lake}/gold/{name}").version() for name in NAMES}


def test_a_killed_cycle_leaves_whole_documents_and_the_next_one_brings_all_to_one_cut(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    world = World(spark, lake, TEXTS.values())
    world.documents = [document(PARCEL_LINE), document(COUNTRY)]
    world.gold = world.start_gold(world.documents)
    world.step(lambda _: None)
    first = world.shop.lsn
    before = versions(lake)

    # One change that both documents see.
    world.shop.put("orders", id=3, customer_id=2, status="paid")
    world.shop.put("customers", id=2, email="moved@example.com")
    cut = world.shop.commit()

    assert kill_a_cycle(lake, lambda: versions(lake) != before)
    marks = {name: DeltaTable(f"{lake}/gold/{name}").transaction_version(GOLD_APP) for name in NAMES}
    moved = versions(lake)
    assert {marks[name] for name in NAMES if moved[name] != before[name]} == {cut.commit_lsn}
    assert {marks[name] for name in NAMES if moved[name] == before[name]} <= {first}
    latest = world.control.latest_cut("gold")
    assert latest is not None
    assert latest.commit_lsn == first, "a cut names every document or is not there"

    world.gold = world.start_gold(world.documents)
    world.cycle(cut)
    world.check()
    # The document that was done is not written again.
    assert all(after - before[name] == 1 for name, after in versions(lake).items())
