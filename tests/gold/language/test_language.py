"""Options beyond plain nesting: after every change gold equals documents assembled in plain Python."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from deltasmelt.silver.settings import SilverSettings
from tests.gold.shop_documents import FAMILY, LAND, PROFILE
from tests.gold.world import Model, World, mutate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Run
    from tests.gold.plain_reference import Reference
    from tests.gold.shop import Shop
    from tests.gold.world import Documents

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Return a world in which silver keeps deleted rows, marked."""
    lake = str(tmp_path_factory.mktemp("language") / "lake")
    model = Model(silver=SilverSettings(deletes="soft"), tiny=True)
    world = World(spark, lake, [PROFILE, FAMILY, LAND], model)
    ring(world.shop, 30, 31, 32)
    ring(world.shop, 33)
    world.first()
    yield world
    world.shop.silver.close()


def ring(shop: Shop, *numbers: int) -> None:
    """Add customers, each referred by the next, and the last by the first; one customer alone by itself."""
    for number, above in zip(numbers, [*numbers[1:], numbers[0]], strict=True):
        shop.put("customers", id=number, referred_by=above, country_id=1, balance=None, email=None)


@pytest.fixture(scope="module", autouse=True)
def first(world: World) -> dict[str, tuple[Run, Reference]]:
    """Return for each document the run of its first build, and the reference of that moment."""
    runs = world.runs()
    built = {doc.name: (runs[doc.name], world.reference(doc)) for doc in world.documents}
    for _, reference in built.values():
        reference.documents()
    return built


@pytest.fixture(scope="module")
def changed(world: World) -> dict[str, Documents]:
    """Return the documents after one cycle over the changes in the tests' names, each on separate rows.

    Without the third document: `test_a_random_history` changes all documents.
    """

    def change(shop: Shop) -> None:
        for number in range(901, 905):
            status = "unheard of" if number < 903 else "paid"
            shop.put("orders", id=number, customer_id=1, status=status, total=None, placed_at=None)
        shop.put("customers", id=3, referred_by=3)
        ring(shop, 20, 21, 22)
        shop.put("customers", id=31, email="deep@example.com")

    world.define([PROFILE, FAMILY])
    world.step(change)
    return {name: world.table(name) for name in world.names}


def test_flattened_rows_that_are_not_there_leave_nothing(world: World) -> None:
    rows = world.table("profile").values()
    alone = [row for row in rows if row["by_email"] is None]
    assert alone
    assert len(alone) < len(rows)
    for row in alone:
        assert (row["by_orders"], row["by_order_count"]) == ({"items": [], "count": 0, "truncated": False}, 0)
        assert (row["by_by_status"], row["by_stamps"]) == ({}, [])


def test_roots_with_cut_cycle_or_ambiguity_are_counted(
    first: dict[str, tuple[Run, Reference]],
) -> None:
    for name in ("family", "land"):
        run, reference = first[name]
        assert run.mode == "full"
        assert run.details["roots_where_a_cycle_was_cut"] == len(reference.cut), name
        assert run.details["roots_where_one_matched_several"] == len(reference.several), name
        assert reference.cut
    _, family = first["family"]
    assert {(30,), (33,)} <= family.cut, "in a ring, and referred by itself"


def test_cap_reports_count_and_map_has_first_duplicate(
    changed: dict[str, Documents],
) -> None:
    """A capped list carries the full count; a map holds the first row of equal keys."""
    row = changed["profile"][1,]
    assert len(row["orders"]["items"]) == 2
    assert row["orders"]["count"] >= 4
    assert row["orders"]["truncated"]
    assert row["by_status"]["unheard of"] == {"id": 901, "total": None}


def test_a_row_does_not_stand_below_itself(changed: dict[str, Documents]) -> None:
    rows = changed["family"]
    assert rows[3,]["referrer"] is None
    assert 3 not in [row["id"] for row in rows[3,]["referred"]]
    # Customer 21 referred customer 20, customer 22 referred 21, and 20 referred 22.
    assert rows[20,]["referrer"]["referrer"]["id"] == 22
    assert [
        (row["id"], row["referred"][0]["id"], row["referred"][0]["referred"]) for row in rows[20,]["referred"]
    ] == [(22, 21, [])]


def test_deep_change_in_recursion_reaches_all_ancestor_roots(
    changed: dict[str, Documents],
) -> None:
    ring_of_three = changed["family"]
    assert ring_of_three[30,]["referrer"]["mail"] == "deep@example.com"
    assert ring_of_three[32,]["referrer"]["referrer"]["mail"] == "deep@example.com"


@pytest.mark.torture
def test_a_random_history(world: World) -> None:
    source = random.Random(1)

    def change(shop: Shop) -> None:
        for _ in range(15):
            mutate(shop, source)

    world.step(change)
