"""Options beyond plain nesting: after every change gold equals documents assembled in plain Python."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.gold.shop_documents import PROFILE
from tests.gold.world import World, mutate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.gold.shop import Shop

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(spark, str(tmp_path_factory.mktemp("language") / "lake"), [PROFILE])
    world.step(lambda _: None)
    return world


def test_flattened_rows_that_are_not_there_leave_nothing(world: World) -> None:
    rows = world.table("profile").values()
    alone = [row for row in rows if row["by_email"] is None]
    assert alone
    assert len(alone) < len(rows)
    for row in alone:
        assert (row["by_orders"], row["by_order_count"]) == ({"items": [], "count": 0, "truncated": False}, 0)
        assert (row["by_by_status"], row["by_stamps"]) == ({}, [])


def test_a_cap_says_how_many_there_are(world: World) -> None:
    def change(shop: Shop) -> None:
        for number in range(901, 905):
            shop.put("orders", id=number, customer_id=1, status="paid", total=None, placed_at=None)

    world.step(change)
    orders = world.table("profile")[1,]["orders"]
    assert len(orders["items"]) == 2
    assert orders["count"] >= 4
    assert orders["truncated"]


def test_the_first_of_equal_keys_is_in_a_map_and_a_key_may_move(world: World) -> None:
    world.step(lambda shop: shop.put("orders", id=901, status="unheard of"))
    assert world.table("profile")[1,]["by_status"]["unheard of"] == {"id": 901, "total": None}
    world.step(lambda shop: shop.put("orders", id=901, status=None))
    assert "unheard of" not in world.table("profile")[1,]["by_status"]


@pytest.mark.parametrize("seed", range(3))
def test_a_random_history(world: World, seed: int) -> None:
    source = random.Random(seed)

    def change(shop: Shop) -> None:
        for _ in range(15):
            mutate(shop, source)

    world.step(change)
