"""`smelt verify` finds every kind of damage, on all documents and on a sample, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from bronze import delta
from bronze.errors import SmeltError
from gold.differences import Difference
from gold.verify import Verification, verify
from tests.gold.shop_documents import COUNTRY, PARCEL_LINE, document
from tests.gold.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(spark, str(tmp_path_factory.mktemp("verify") / "lake"), [PARCEL_LINE, COUNTRY])
    world.step(lambda _: None)
    return world


def verified(world: World, name: str, sample: float | None = None) -> Verification:
    return verify(world.spark, world.lake, world.gold.built(name), sample=sample)


def damaged(world: World, name: str, *statements: str) -> Verification:
    """What is found of a table after somebody wrote to it; it is put back afterwards."""
    table = world.lake.sql("gold", name)
    before = world.control.latest_cut("gold")
    assert before is not None
    for statement in statements:
        world.spark.sql(statement.format(table=table))
    damage = delta.open_table(world.lake.uri("gold", name))
    assert damage is not None
    world.control.record_cut(
        replace(before, tables={**before.tables, name: damage.version()}, recorded_at=None)
    )
    found = verified(world, name)
    world.spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {before.tables[name]}")
    world.control.record_cut(replace(before, recorded_at=None))
    return found


def test_what_gold_built_is_equal_and_a_sample_compares_a_part_of_it(world: World) -> None:
    whole, sample = verified(world, "parcel_line"), verified(world, "parcel_line", 0.4)
    assert (whole.equal, whole.first) == (True, ())
    assert whole.compared == len(world.shop.rows["public.order_items"])
    assert sample.equal
    assert 0 < sample.compared < whole.compared
    assert verified(world, "country").compared == 2


def test_documents_that_are_missing_doubled_or_should_not_be_there_are_found(world: World) -> None:
    found = damaged(
        world,
        "parcel_line",
        "DELETE FROM {table} WHERE order_id = 1 AND number = 1",
        "INSERT INTO {table} SELECT * FROM {table} WHERE order_id = 2 AND number = 1",
        "UPDATE {table} SET order_id = 900 WHERE order_id = 3 AND number = 1",
    )
    assert found.counts == {"twice": 1, "missing": 2, "surplus": 1}
    assert [(wrong.key, wrong.kind) for wrong in found.first] == [
        ('{"order_id":1,"line":1}', "missing"),
        ('{"order_id":2,"line":1}', "twice"),
        ('{"order_id":3,"line":1}', "missing"),
        ('{"order_id":900,"line":1}', "surplus"),
    ]


def test_a_value_deep_inside_is_named_by_its_path(world: World) -> None:
    changed = (
        "UPDATE {table} SET people = transform(people, p -> named_struct('email', p.email, 'bought',"
        " transform(p.bought, b -> b + 1))) WHERE size(people) > 0"
    )
    found = damaged(world, "country", changed)
    assert set(found.counts) == {"differs"}
    places = [wrong.difference for wrong in found.first]
    assert all(isinstance(place, Difference) and place.path.startswith("people[") for place in places)
    assert any(place is not None and place.path.endswith(".bought[0]") for place in places)


def test_marks_that_do_not_fit_the_content_are_found(world: World) -> None:
    found = damaged(
        world,
        "country",
        "UPDATE {table} SET _content_hash = repeat('0', 64) WHERE name = 'Country AT'",
        "UPDATE {table} SET _commit_lsn = 999999999 WHERE name = 'Country DE'",
    )
    assert found.counts == {"hash": 1, "lsn": 1}


def test_a_document_that_was_not_built_as_its_file_says_is_not_compared(world: World) -> None:
    changed = document(COUNTRY.replace("  - name\n", "  - name\n  - code\n"))
    unbuilt = document(COUNTRY.replace("document: country", "document: fresh"))
    gold = world.start_gold([changed, unbuilt])
    for name, said in (
        ("country", "changed after it was built"),
        ("fresh", "no gold cut holds it yet"),
        ("cuntry", "did you mean 'country'?"),
    ):
        with pytest.raises(SmeltError) as caught:
            gold.built(name)
        assert said in str(caught.value)
