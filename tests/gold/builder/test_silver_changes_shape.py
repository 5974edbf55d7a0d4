"""Silver's tables change shape, keep deleted rows or not, and are excluded for a while: gold follows.

Three small tables are in one lake; each test continues from the state that the previous test left. If Delta
can show the changes, gold builds documents by the changes. If Delta cannot, or a document reads new columns,
gold builds the document in full, and the run gives the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from deltasmelt.silver.settings import SilverSettings
from tests.gold.shop import moment
from tests.gold.world import Model, World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.gold.shop import Shapes, Shop

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]

SHAPES: Final[Shapes] = {
    "public.people": (
        {"id": "int4", "home": "text", "work": "text", "notes": "text", "seen": "timestamptz"},
        ("id",),
    ),
    "public.letters": ({"id": "int4", "person": "int4", "weight": "int4", "stamp": "int2"}, ("id",)),
    "public.stamps": ({"id": "int2", "name": "text"}, ("id",)),
}
PERSON: Final = """\
document: person
root: public.people
fields:
  - id
  - home
  - work
  - letters: {many: public.letters, on: {person: id}, fields: [id, weight]}
"""
STAMP: Final = """\
document: stamp
root: public.stamps
fields: [id, name, {used: {count: public.letters, on: {stamp: id}}}]
"""
UNREADABLE: Final = "changes of silver.people between versions"


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    lake = str(tmp_path_factory.mktemp("shapes") / "lake")
    world = World(spark, lake, [PERSON, STAMP], Model(shapes=SHAPES, tiny=True))
    for number in range(1, 9):
        world.shop.put("people", id=number, home=f"h{number}", work=f"w{number}", notes="n", seen=moment(1))
        world.shop.put("stamps", id=number, name=f"s{number}")
        for letter in (1, 2):
            values = {"person": 1 + number // 2, "weight": letter, "stamp": number}
            world.shop.put("letters", id=number * 10 + letter, **values)
    world.first()
    yield world
    world.shop.silver.close()


def modes(world: World) -> dict[str, str]:
    return {name: run.mode for name, run in world.runs().items()}


def changes(world: World) -> dict[str, int]:
    return {name: run.changes for name, run in world.runs().items()}


def test_a_renamed_unread_column_hides_changes_once(world: World) -> None:
    """Gold then follows the changes again, across a column with a default, and across a dropped column.

    The default writes all rows. Gold builds only the documents with changed values.
    """

    def change(shop: Shop) -> None:
        shop.rename_column("people", "notes", "remarks")
        shop.put("people", id=1, home="moved")

    world.step(change, full={"person": UNREADABLE})
    assert changes(world) == {"person": 1, "stamp": 0}

    def defaulted_and_dropped(shop: Shop) -> None:
        shop.put("people", id=3, home="moved", remarks="unread")
        shop.add_column("people", "score", "int4", 7)
        shop.put("people", id=4, home="with a score", score=8)
        shop.drop_column("people", "remarks")

    runs = world.step(defaulted_and_dropped)
    assert runs["person"].details["changed_rows"] == {"public.people": 16}
    assert (modes(world)["person"], changes(world)["person"]) == ("incremental", 2)


def test_two_swapped_names_are_another_document(world: World) -> None:
    def change(shop: Shop) -> None:
        shop.swap_columns("people", "home", "work")
        shop.put("people", id=3, work="after the swap")

    world.step(change, full={"person": "the definition changed"})
    assert world.table("person")[4,]["work"] == "with a score"


def test_a_wider_type_is_another_document(world: World) -> None:
    """Delta also reads no feed across a widened type, even if no document reads the column."""

    def change(shop: Shop) -> None:
        shop.widen_column("letters", "weight", "int8")
        shop.put("letters", id=11, weight=5_000_000_000)

    world.step(change, full={"person": "the definition changed", "stamp": "cannot be read"})


def test_a_table_derived_again_reaches_gold(world: World) -> None:
    before = world.shop.versions
    world.shop.put("people", id=6, home="repaired")
    cut = world.shop.derive_again()
    assert cut.tables["people"] > before["people"]
    world.gold = world.start_gold(world.documents)
    world.cycle(cut)
    world.check()
    assert changes(world)["person"] == 1
    assert world.gold.cycle() is None


def switch(shop: Shop, deletes: str) -> None:
    """Change the pipeline file for the next start."""
    shop.settings = SilverSettings.model_validate({"deletes": deletes})
    shop.silver.close()
    shop.silver = shop.start_silver()


def test_soft_deletes_are_switched_on_and_off(world: World) -> None:
    """The switch hides no changes of a widened table, which hid the changes only once."""

    def switched_on(shop: Shop) -> None:
        switch(shop, "soft")
        shop.remove("people", 8)
        shop.remove("letters", 81)

    world.step(switched_on)
    assert modes(world) == {"person": "incremental", "stamp": "incremental"}

    def deleted_back_and_copied(shop: Shop) -> None:
        shop.put("people", id=8, home="back")
        shop.remove("people", 7)
        shop.remove("letters", 71)
        shop.truncate("stamps")
        shop.put("stamps", id=3, name="after the TRUNCATE")
        shop.commit()
        shop.remove("people", 6)  # which bronze does not get
        shop.put("people", id=7, home="came back unseen")
        shop.lose("people")
        shop.resnapshot("people")
        shop.remove("letters", 61)

    runs = world.step(deleted_back_and_copied)
    assert (runs["stamp"].mode, runs["stamp"].deletes) == ("incremental", 7)
    assert (runs["person"].inserts, runs["person"].deletes) == (1, 1)

    def switched_off(shop: Shop) -> None:
        switch(shop, "hard")
        shop.remove("letters", 62)

    world.step(switched_off, full={"person": "changes of silver.", "stamp": "changes of silver."})


def test_a_document_waits_for_a_table_copy(world: World) -> None:
    """Bronze lacks changes of a table; the other documents follow their changes, also hard deletes."""
    shop = world.shop
    before = world.control.latest_cut("gold")
    assert before is not None
    shop.put("people", id=2, home="nobody says so")
    shop.lose("people")
    shop.put("letters", id=100, person=2, weight=1, stamp=3)
    shop.remove("letters", 52)
    shop.commit(without=["public.people"])
    cut = world.gold.cycle()
    assert cut is not None
    assert set(cut.tables) == {"stamp"}
    assert modes(world)["stamp"] == "incremental"
    assert [(error.name, error.code) for error in world.control.open_errors()] == [
        ("person", "document-waits")
    ]
    shop.put("letters", id=101, person=3, weight=1, stamp=3)
    shop.commit(without=["public.people"])
    world.gold.cycle()
    shop.resnapshot("people")
    world.cycle(shop.commit())
    world.check()
    assert modes(world) == {"person": "incremental", "stamp": "none"}
    assert changes(world)["person"] == 2
    last = world.control.latest_cut("gold")
    assert last is not None
    assert last.tables["person"] > before.tables["person"]
