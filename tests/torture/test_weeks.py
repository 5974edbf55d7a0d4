"""Days of a pipeline: what it keeps depends on the retention, and not on how long it has run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from deltalake import DeltaTable

from pipelines.runtime.maintenance import Maintenance
from tests.gold.shop import SHAPES, money
from tests.gold.world import Model, World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bronze.lake.location import Layer

pytestmark = [pytest.mark.torture, pytest.mark.spark]

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
DAYS: Final = 40


def older(world: World) -> None:
    """Make all that the control tables say a day older."""
    day = f"INTERVAL '{DAY} seconds'"
    for table, columns in (
        ("cuts", ("recorded_at", "built_from")),
        ("runs", ("started_at",)),
        ("errors", ("opened_at", "closed_at")),
    ):
        stored = DeltaTable(world.lake.uri("control", table))
        stored.update(updates={column: f"{column} - {day}" for column in columns})


def kept(world: World) -> dict[str, int]:
    """Count what is kept: versions that cuts pin, entries of logs, rows of control tables."""
    found = {}
    layers: tuple[Layer, ...] = ("silver", "gold")
    for layer in layers:
        for name in world.control.names(layer):
            uri, oldest = world.lake.uri(layer, name), world.control.oldest_version(layer, name)
            assert oldest is not None
            found[f"versions of {layer}.{name}"] = DeltaTable(uri).version() - oldest
            found[f"log of {layer}.{name}"] = len(list(Path(uri, "_delta_log").glob("*.json")))
    for table in ("cuts", "runs", "errors"):
        rows = DeltaTable(world.lake.uri("control", table)).to_pyarrow_table()
        found[f"control.{table}"] = rows.num_rows
    return found


def test_nothing_grows_after_the_first_week(spark: SparkSession, tmp_path: Path) -> None:
    """A busy document, a quiet one that cuts leave out at times, and one with an error all the time.

    Each day has two cycles, in one of which a table that the quiet document reads is missing. Cuts are kept
    for two days.
    """
    shapes = {name: SHAPES[name] for name in ("public.orders", "public.order_items", "public.products")}
    world = World(spark, str(tmp_path / "lake"), [BUSY, QUIET], Model(shapes=shapes))
    world.first()
    world.define([BUSY, QUIET, FAILING])
    upkeep = Maintenance(spark, world.lake, world.control, retention=2 * DAY, documents=True)
    counts = []
    for day in range(DAYS):
        for turn in range(2):
            number = 1 + day % 5
            world.shop.put("orders", id=number, total=money(f"{day}.{turn}0"))
            world.shop.put("order_items", order_id=number, line=1, sku=f"no number {day} {turn}")
            missing = ["public.products"] if turn else []
            if turn:
                world.shop.lose("products")
            elif day:
                world.shop.resnapshot("products")
            world.shop.commit(without=missing)
            cut = world.gold.cycle()
            assert cut is not None
            assert set(cut.tables) == ({"busy"} if turn else {"busy", "quiet"})
        older(world)
        assert list(upkeep.all_tables())
        assert not upkeep.failed
        counts.append(kept(world))
    logs = {name: number for name, number in counts[-1].items() if name.startswith("log")}
    others = {name: number for name, number in counts[-1].items() if name not in logs}
    week = {name: max(one.get(name, 0) for one in counts[:WEEK]) for name in others}
    assert not {name: (week[name], number) for name, number in others.items() if number > week[name] + 2}
    # A log is cut off before a checkpoint, of which each 50th version has one.
    assert max(logs.values()) < 110, logs
    assert (
        max(DeltaTable(world.lake.uri("silver", name)).version() for name in ("orders", "order_items")) > 110
    )
