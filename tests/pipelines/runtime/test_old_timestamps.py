"""A lake of an earlier version: maintenance rewrites its timestamps without harm to any reader."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, write_deltalake

from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.foreign_commits import SIGNATURE
from deltasmelt.gold.builder import full
from deltasmelt.pipelines.runtime import old_timestamps
from deltasmelt.pipelines.runtime.maintenance import Maintenance
from deltasmelt.pipelines.runtime.old_timestamps import has_old_files, renewed
from deltasmelt.silver.schema.ddl import MICROSECONDS, PROPERTIES, TIMESTAMPS
from deltasmelt.silver.spark.access import access_of
from deltasmelt.silver.spark.semantics import PINNED
from deltasmelt.silver.spark.tuning import settings
from tests.fix_spark import rows_of
from tests.gold.shop import moment
from tests.gold.world import Model, World
from tests.silver.killed import EndedError, end, ending

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Layer
    from deltasmelt.bronze.lake.table import Table
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


def opened(world: World, layer: Layer, name: str) -> Table:
    return open_existing(world.lake.uri(layer, name))


def rows(world: World, layer: Layer, name: str, version: int | None = None) -> list[Any]:
    as_of = "" if version is None else f" VERSION AS OF {version}"
    return rows_of(world.spark, f"SELECT * FROM {world.lake.sql(layer, name)}{as_of} ORDER BY id")


def clustering(world: World, layer: Layer, name: str) -> list[str]:
    return list(
        rows_of(world.spark, f"DESCRIBE DETAIL {world.lake.sql(layer, name)}")[0]["clusteringColumns"]
    )


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Create an earlier version's lake: INT96, a change feed, deletion vectors, clustered tables."""
    without_timestamps = {name: value for name, value in PROPERTIES.items() if name != TIMESTAMPS}
    older = patch.dict(PINNED, {TYPE: "INT96"}), patch.dict(PROPERTIES, without_timestamps, clear=True)
    with older[0], older[1], patch.object(full, "TIMESTAMPS", "deltasmelt.unknown"):
        path = str(tmp_path_factory.mktemp("older") / "lake")
        world = World(spark, path, DOCUMENTS, Model(shapes=SHAPES))
        fill(world)
        world.first()
        spark.sql(f"ALTER TABLE {world.lake.sql('gold', 'letter')} CLUSTER BY (id)")
        with settings(spark, {TYPE: "INT96"}):
            spark.sql(f"OPTIMIZE {world.lake.sql('gold', 'letter')}").collect()
        world.step(lambda shop: shop.put("people", id=7, seen=moment(700), home="moved"))
        world.shop.silver.close()
    world.shop.silver, world.gold = world.shop.start_silver(), world.start_gold(world.documents)
    return world


def test_maintenance_renews_timestamps_without_harm(world: World, spark: SparkSession) -> None:
    def maintained() -> dict[tuple[str, str], list[str]]:
        work = Maintenance(spark, world.lake, world.control, retention=86400.0, documents=True)
        texts = {(result.layer, result.name): result.done for result in work.all_tables()}
        assert work.failed == {}
        return texts

    before = {table: rows(world, *table) for table in TABLES}
    versions = {table: opened(world, *table).version() for table in TABLES}
    columns = {table: clustering(world, *table) for table in TABLES}
    assert all(has_old_files(opened(world, *table)) for table in TABLES)
    assert columns["gold", "letter"] == ["id"]
    assert columns["gold", "person"] == []

    with pytest.raises(EndedError), ending("after OPTIMIZE 2", end):
        maintained()
    assert any("deltasmelt.timestampsOwed" in opened(world, *t).metadata().configuration for t in TABLES)

    texts = maintained()
    assert texts.keys() == set(TABLES)
    # What OPTIMIZE wrote anyhow, as it was in several files, needs no more.
    rewritten = {table for table, text in texts.items() if "timestamps rewritten" in text}
    assert rewritten == {("silver", "letters"), ("gold", "letter")}, texts
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
    with (
        patch.object(old_timestamps, "_FEW", 0),
        patch.object(old_timestamps, "_is_old", side_effect=AssertionError("it is known by the log")),
    ):
        assert not any("timestamps rewritten" in text for text in maintained().values())
    assert {table: opened(world, *table).version() for table in TABLES} == settled

    # Documents go on by the changes alone, of which `letter` has none.
    world.step(lambda shop: shop.put("people", id=8, seen=moment(800), home="moved"))
    assert not any(has_old_files(opened(world, *table)) for table in TABLES)

    # Somebody else writes the files anew, and leaves the property: that is no change of rows.
    with settings(spark, {TYPE: "INT96"}):
        spark.sql(f"OPTIMIZE {world.lake.sql('gold', 'person')} ZORDER BY (id)").collect()
    assert has_old_files(opened(world, "gold", "person"))
    with patch.object(old_timestamps, "_FEW", 0):
        rewritten = {table for table, text in maintained().items() if "timestamps rewritten" in text}
    assert rewritten == {("gold", "person")}
    assert not has_old_files(opened(world, "gold", "person"))
    world.step(lambda shop: shop.put("people", id=9, seen=moment(900), home="moved"))


def test_a_guarded_setting_leaves_timestamps_unstated(world: World, spark: SparkSession) -> None:
    address, table = world.lake.sql("silver", "people"), opened(world, "silver", "people")
    session = access_of(spark).child()
    session.conf.set(TYPE, "INT96")
    statements = []
    for child in (session, session, access_of(spark).child()):
        assert not renewed(child, address, table, child.sql)
        statements.append(opened(world, "silver", "people").metadata().configuration.get(TIMESTAMPS))
    assert statements == [None, None, MICROSECONDS]


def test_the_log_tells_which_files_are_doubtful(lake_path: str) -> None:
    rows = pa.table({"at": pa.array([moment(1)], pa.timestamp("us", tz="UTC"))})
    signed = CommitProperties(custom_metadata={"userMetadata": SIGNATURE})
    for _ in range(4):
        write_deltalake(lake_path, rows, mode="append", commit_properties=signed)
    write_deltalake(lake_path, rows, mode="append")
    table = open_existing(lake_path)
    every = set(pa.table(table.get_add_actions())["path"].to_pylist())

    def doubtful(known: int, few: int = 0) -> int:
        with patch.object(old_timestamps, "_FEW", few):
            paths = old_timestamps._doubtful(table, known)
        assert paths <= every
        return len(paths)

    assert [doubtful(-1), doubtful(3), doubtful(4), doubtful(-1, few=9)] == [1, 1, 0, 5]
    with patch.object(old_timestamps, "_FEW", 0):
        (theirs,) = old_timestamps._doubtful(table, -1)
    assert not has_old_files(table)
    pq.write_table(rows, Path(lake_path, theirs), use_deprecated_int96_timestamps=True)
    assert has_old_files(table, {theirs})
    assert not has_old_files(table, every - {theirs})
    for version in (0, 1):
        Path(lake_path, "_delta_log", f"{version:020}.json").unlink()
    assert [doubtful(-1), doubtful(1)] == [5, 1]
