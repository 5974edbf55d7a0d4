"""Days of a pipeline: the amount of stored data depends on the retention and not on the pipeline's age.

`test_month` has the whole pipeline, with a real server, the reader and processes, and measures what stays on
disk and in memory. Two claims are here alone, because they need cycles at chosen moments: a document that
some cuts omit pins old versions of its tables, and a cycle performs no more effects on files (`Effect`) after
a month than at its begin.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import pytest
from deltalake import DeltaTable

from deltasmelt.bronze import backoff
from deltasmelt.bronze.effects import guarded
from deltasmelt.pipelines.runtime.maintenance import Maintenance
from tests.gold.shop import SHAPES, money
from tests.gold.world import Model, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.effects import Effect
    from deltasmelt.bronze.lake.location import Layer

pytestmark = [pytest.mark.torture, pytest.mark.spark, pytest.mark.timeout(3600)]

BUSY: Final = """
document: busy
root: public.orders
fields:
  - id
  - total
  - items: {many: public.order_items, on: {order_id: id}, fields: [line, sku]}
"""
QUIET: Final = """
document: quiet
root: public.products
fields: [id, name]
"""
FAILING: Final = """
document: failing
root: public.order_items
fields:
  - order_id
  - line
  - number: {sql: cast(sku as int)}
"""
DAY: Final = 86_400
WEEK: Final = 6
DAYS: Final = 30


def older(world: World) -> None:
    """Make all timestamps in the control tables a day older."""
    day = f"INTERVAL '{DAY} seconds'"
    for table, columns in (
        ("cuts", ("recorded_at", "built_from")),
        ("runs", ("started_at",)),
        ("errors", ("opened_at", "closed_at")),
    ):
        stored = DeltaTable(world.lake.uri("control", table))
        stored.update(updates={column: f"{column} - {day}" for column in columns})


def stored_counts(world: World) -> dict[str, int]:
    """Count the stored data: versions that cuts pin, files, log entries, rows of control tables."""
    counts = {}
    layers: tuple[Layer, ...] = ("silver", "gold")
    for layer in layers:
        names = world.control.names(layer)
        counts[f"tables of {layer}"] = len(names)
        for name in names:
            uri, oldest = world.lake.uri(layer, name), world.control.oldest_version(layer, name)
            assert oldest is not None
            counts[f"versions of {layer}.{name}"] = DeltaTable(uri).version() - oldest
            counts[f"files of {layer}.{name}"] = len(DeltaTable(uri).file_uris())
            counts[f"log of {layer}.{name}"] = len(list(Path(uri, "_delta_log").glob("*.json")))
    for table in ("cuts", "runs", "errors"):
        uri = world.lake.uri("control", table)
        counts[f"control.{table}"] = DeltaTable(uri).to_pyarrow_table().num_rows
        counts[f"files of control.{table}"] = len(DeltaTable(uri).file_uris())
    return counts


def turn(world: World, day: int, number: int) -> None:
    """Run one of a day's two cycles; in the second cycle the quiet document's table is missing."""
    shop, order = world.shop, 1 + day % 5
    shop.put("orders", id=order, total=money(f"{day}.{number}0"))
    shop.put("order_items", order_id=order, line=1, sku=f"no number {day} {number}")
    if number:
        shop.lose("products")
    else:
        if day:
            shop.resnapshot("products")
            shop.drop(f"day_{day - 1}")
        shop.create(f"day_{day}", {"id": "int4", "name": "text"}, ("id",))
    shop.put(f"day_{day}", id=number, name="of today alone")
    shop.commit(without=["public.products"] if number else [])
    cut = world.gold.cycle()
    assert cut is not None
    assert set(cut.tables) == ({"busy"} if number else {"busy", "quiet"})


def test_nothing_grows_after_the_first_week(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy document, a quiet document that some cuts omit, and a document with a permanent error.

    Each day has two cycles and a new table, dropped on the next day. The retention of cuts is two days.
    """
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.0)  # each cut builds the failing document
    shapes = {name: SHAPES[name] for name in ("public.orders", "public.order_items", "public.products")}
    world = World(spark, str(tmp_path / "lake"), [BUSY, QUIET], Model(shapes=shapes))
    world.first()
    world.define([BUSY, QUIET, FAILING])
    upkeep = Maintenance(spark, world.lake, world.control, retention=2 * DAY, documents=True)
    effects: Counter[Effect] = Counter()
    seconds, results, counts = [], [], []

    def count(door: Effect, where: str, effect: Callable[[], Any]) -> Any:
        effects[door] += "bronze/relations" not in where  # whose small files the reader joins
        return effect()

    for day in range(DAYS):
        start, before = time.monotonic(), effects.total()
        with guarded(count):
            for number in range(2):
                turn(world, day, number)
        seconds.append(time.monotonic() - start)
        results.append(effects.total() - before)
        older(world)
        assert list(upkeep.all_tables())
        assert not upkeep.failed
        counts.append(stored_counts(world))
    logs = {name: number for name, number in counts[-1].items() if name.startswith("log")}
    other_counts = {
        name: number for name, number in counts[-1].items() if name not in logs and "day_" not in name
    }
    week = {name: max(day_counts.get(name, 0) for day_counts in counts[:WEEK]) for name in other_counts}
    assert not {
        name: (week[name], number) for name, number in other_counts.items() if number > week[name] + 2
    }
    assert median(results[-WEEK:]) < 1.15 * median(results[:WEEK]), results
    assert median(seconds[-WEEK:]) < 2 * median(seconds[:WEEK]), seconds
    # A log is cut off before a checkpoint, of which each 50th version has one.
    assert max(logs.values()) < 60, logs
    for name in ("orders", "order_items", "products"):
        assert DeltaTable(world.lake.uri("silver", name)).version() >= 60
