"""Options beyond plain nesting: after every change gold equals documents assembled in plain Python."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from silver.settings import SilverSettings
from tests.gold.shop_documents import FAMILY, LAND, PROFILE
from tests.gold.world import Model, World, mutate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.gold.shop import Shop

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Silver keeps deleted rows, marked."""
    lake = str(tmp_path_factory.mktemp("language") / "lake")
    world = World(spark, lake, [PROFILE, FAMILY, LAND], Model(silver=SilverSettings(deletes="soft")))
    world.first()
    yield world
    world.shop.silver.close()


def test_flattened_rows_that_are_not_there_leave_nothing(world: World) -> None:
    rows = world.table("profile").values()
    alone = [row for row in rows if row["by_email"] is None]
    assert alone
    assert len(alone) < len(rows)
    for row in alone:
        assert (row["by_orders"], row["by_order_count"]) == ({"items": [], "count": 0, "truncated": False}, 0)
        assert (row["by_by_status"], row["by_stamps"]) == ({}, [])


def test_a_cap_says_how_many_there_are_and_the_first_of_equal_keys_is_in_a_map(world: World) -> None:
    def change(shop: Shop) -> None:
        for number in range(901, 905):
            status = "unheard of" if number < 903 else "paid"
            shop.put("orders", id=number, customer_id=1, status=status, total=None, placed_at=None)

    world.step(change)
    row = world.table("profile")[1,]
    assert len(row["orders"]["items"]) == 2
    assert row["orders"]["count"] >= 4
    assert row["orders"]["truncated"]
    assert row["by_status"]["unheard of"] == {"id": 901, "total": None}


def test_a_row_does_not_stand_below_itself_and_such_roots_are_counted(world: World) -> None:
    def change(shop: Shop) -> None:
        shop.put("customers", id=1, referred_by=1)
        for number, above in ((20, 22), (21, 20), (22, 21)):
            shop.put("customers", id=number, referred_by=above, country_id=1, balance=None, email=None)

    world.step(change)
    rows = world.table("family")
    assert rows[1,]["referrer"] is None
    assert 1 not in [row["id"] for row in rows[1,]["referred"]]
    assert [
        (row["id"], row["referred"][0]["id"], row["referred"][0]["referred"]) for row in rows[20,]["referred"]
    ] == [(21, 22, [])]
    world.step(lambda shop: shop.put("customers", id=22, email="deep@example.com"))
    assert rows[20,]["referrer"]["referrer"]["id"] == 21
    world.gold.cycle(rebuild=["family", "land"])
    for doc in world.documents[1:]:
        reference = world.reference(doc)
        reference.documents()
        details = world.runs()[doc.name].details
        assert details["roots_where_a_cycle_was_cut"] == len(reference.cut), doc.name
        assert details["roots_where_one_matched_several"] == len(reference.several), doc.name
        assert reference.cut


def test_a_random_history(world: World) -> None:
    source = random.Random(1)

    def change(shop: Shop) -> None:
        for _ in range(15):
            mutate(shop, source)

    world.step(change)
