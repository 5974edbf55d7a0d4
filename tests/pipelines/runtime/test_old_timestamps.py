"""A lake of an earlier version: maintenance writes its timestamps again, and harms nobody who reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from deltalake import DeltaTable

from gold.builder import full
from pipelines.runtime import old_timestamps
from pipelines.runtime.maintenance import Maintenance
from pipelines.runtime.old_timestamps import has_old_files, renewed
from silver.run.pinned import PINNED
from silver.run.sessions import own_session
from silver.schema.ddl import MICROSECONDS, PROPERTIES, TIMESTAMPS
from tests.fix_spark import rows_of
from tests.gold.shop import moment
from tests.gold.world import Model, World
from tests.silver.killed import EndedError, end, ending

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bronze.lake.location import Layer
    from tests.gold.shop import Shapes

pytestmark = pytest.mark.spark

TYPE = "spark.sql.parquet.outputTimestampType"
SHAPES: Shapes = {
    "public.people": ({"id": "int4", "seen": "timestamptz", "home": "text"}, ("id",)),
    "public.letters": ({"id": "int4", "person": "int4", "sent": "timestamptz"}, ("id",)),
}
DOCUMENTS = (
    """\
document: person
root: public.people
fields: [id, seen, home, {letters: {many: public.letters, on: {person: id}, fields: [id, sent]}}]
""",
    "document: letter\nroot: public.letters\nfields: [id, sent]\n",
)
TABLES: tuple[tuple[Layer, str], ...] = (
    ("silver", "letters"), ("silver", "people"), ("gold", "letter"), ("gold", "person"),
)  # fmt: skip


def fill(world: World) -> None:
    for number in range(1, 60):
        world.shop.put("people", id=number, seen=moment(number), home="h")
        world.shop.put("letters", id=number, person=number // 2, sent=moment(-number))


def opened(world: World, layer: Layer, name: str) -> DeltaTable:
    return DeltaTable(world.lake.uri(layer, name))


def rows(world: World, layer: Layer, name: str, version: int | None = None) -> list[Any]:
    as_of = "" if version is None else f" VERSION AS OF {version}"
    return rows_of(world.spark, f"SELECT * FROM {world.lake.sql(layer, name)}{as_of} ORDER BY id")


def clustering(world: World, layer: Layer, name: str) -> list[str]:
    return list(
        rows_of(world.spark, f"DESCRIBE DETAIL {world.lake.sql(layer, name)}")[0]["clusteringColumns"]
    )


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """What an earlier version made: INT96, a feed, deletion vectors, clustered tables."""
    kept = {name: value for name, value in PROPERTIES.items() if name != TIMESTAMPS}
    older = patch.dict(PINNED, {TYPE: "INT96"}), patch.dict(PROPERTIES, kept, clear=True)
    with older[0], older[1], patch.object(full, "TIMESTAMPS", "deltasmelt.unknown"):
        path = str(tmp_path_factory.mktemp("older") / "lake")
        world = World(spark, path, DOCUMENTS, Model(shapes=SHAPES))
        fill(world)
        world.first()
        spark.sql(f"ALTER TABLE {world.lake.sql('gold', 'letter')} CLUSTER BY (id)")
        spark.sql(f"OPTIMIZE {world.lake.sql('gold', 'letter')}").collect()
        world.step(lambda shop: shop.put("people", id=7, seen=moment(700), home="moved"))
        world.shop.silver.close()
    world.shop.silver, world.gold = world.shop.start_silver(), world.start_gold(world.documents)
    return world


def test_maintenance_writes_them_again_and_no_cut_feed_or_document_is_harmed(
    world: World, spark: SparkSession
) -> None:
    def maintained() -> dict[tuple[str, str], list[str]]:
        work = Maintenance(spark, world.lake, world.control, retention=86400.0, documents=True)
        done = {(one.layer, one.name): one.done for one in work.all_tables()}
        assert work.failed == {}
        return done

    before = {table: rows(world, *table) for table in TABLES}
    versions = {table: opened(world, *table).version() for table in TABLES}
    columns = {table: clustering(world, *table) for table in TABLES}
    assert all(has_old_files(opened(world, *table)) for table in TABLES)
    assert columns["gold", "letter"] == ["id"]
    assert columns["gold", "person"] == []

    with pytest.raises(EndedError), ending("after OPTIMIZE 2", end):
        maintained()
    assert any("deltasmelt.timestampsOwed" in opened(world, *t).metadata().configuration for t in TABLES)

    done = maintained()
    assert done.keys() == set(TABLES)
    # What OPTIMIZE wrote anyhow, as it was in several files, needs no more.
    rewritten = {table for table, one in done.items() if "timestamps rewritten" in one}
    assert rewritten == {("silver", "letters"), ("gold", "letter")}, done
    for table in TABLES:
        stored = opened(world, *table)
        properties = stored.metadata().configuration
        assert not has_old_files(stored)
        assert properties[TIMESTAMPS] == MICROSECONDS
        assert "deltasmelt.timestampsOwed" not in properties
        assert clustering(world, *table) == columns[table]
        assert rows(world, *table) == rows(world, *table, versions[table]) == before[table]
        feed = f"table_changes_by_path('{world.lake.uri(*table)}', {versions[table] + 1})"
        assert rows_of(spark, f"SELECT * FROM {feed}") == []

    settled = {table: opened(world, *table).version() for table in TABLES}
    with patch.object(old_timestamps, "has_old_files", side_effect=AssertionError("it is known")):
        assert not any("timestamps rewritten" in one for one in maintained().values())
    assert {table: opened(world, *table).version() for table in TABLES} == settled

    # Documents go on by the changes alone, of which `letter` has none.
    world.step(lambda shop: shop.put("people", id=8, seen=moment(800), home="moved"))
    assert not any(has_old_files(opened(world, *table)) for table in TABLES)


def test_a_server_that_guards_the_setting_makes_no_statement_true(world: World, spark: SparkSession) -> None:
    address, table = world.lake.sql("silver", "people"), opened(world, "silver", "people")
    session = own_session(spark)
    session.conf.set(TYPE, "INT96")
    stated = []
    for one in (session, session, own_session(spark)):
        assert not renewed(one, address, table, lambda: None)
        stated.append(opened(world, "silver", "people").metadata().configuration.get(TIMESTAMPS))
    assert stated == [None, None, MICROSECONDS]
