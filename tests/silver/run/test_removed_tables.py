"""A user removes silver tables, or restores them from a backup, while silver runs: they catch up."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze import backoff
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines.runtime.locks import writing
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.settings import SilverSettings
from tests.fix_spark import rows_of
from tests.gold.catalog_world import CATALOG, lake_in_catalog
from tests.silver.histories import INT, TEXT, BronzeWriter, insert, relation
from tests.silver.stored import cells_at

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Cut

PLAIN = (("id", INT), ("note", TEXT))
SHAPES = [
    relation(name, PLAIN, ["id"], relation_id=at) for at, name in enumerate(["kept", "gone", "back"], 1)
]


@pytest.mark.spark
def test_removed_and_restored_tables_catch_up(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.0)
    lake = Lake(path=str(tmp_path / "lake"))
    bronze, control = BronzeWriter(lake), ControlTables(lake)
    silver = Silver(spark, lake, SilverSettings(), control)
    bronze.relations(SHAPES)
    for shape in SHAPES:
        bronze.snapshot(shape, 10, [["1", "a"]])
    bronze.commit(20)
    silver.cycle()
    shutil.copytree(lake.uri("silver", "back"), tmp_path / "backup")
    bronze.add(31, [insert(shape, "2", "b") for shape in SHAPES])
    bronze.commit(40)
    silver.cycle()

    shutil.rmtree(lake.uri("silver", "gone"))
    shutil.rmtree(lake.uri("silver", "back"))
    shutil.copytree(tmp_path / "backup", lake.uri("silver", "back"))
    for lsn, cells in ((51, ("3", "c")), (61, ("4", "d"))):
        bronze.add(lsn, [insert(shape, *cells) for shape in SHAPES])
        bronze.commit(lsn + 9)
        cut = silver.cycle()
    silver.close()

    assert control.open_errors() == []
    assert cut is not None
    assert set(cut.tables) == {"kept", "gone", "back"}
    for name in cut.tables:
        assert cells_at(spark, lake, name, "id") == [(1,), (2,), (3,), (4,)], name


@pytest.mark.spark
@pytest.mark.torture
def test_table_dropped_from_catalog_catches_up(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The cycle still has its earlier lease, and so reads a table only at the start of a step."""
    shape, second_shape = SHAPES[1], SHAPES[0]
    with lake_in_catalog(spark, tmp_path / "lake") as lake:
        bronze, control = BronzeWriter(lake), ControlTables(lake)
        silver = Silver(spark, lake, SilverSettings(), control)

        def cycle(lsn: int) -> Cut | None:
            bronze.commit(lsn)
            with writing(lake, "silver"):
                return silver.cycle()

        bronze.relations([shape, second_shape])
        for each_shape in (shape, second_shape):
            bronze.snapshot(each_shape, 10, [["1", "a"]])
        cycle(20)
        spark.sql(f"DROP TABLE {CATALOG}.silver.gone")
        bronze.add(31, [insert(shape, "2", "b"), insert(second_shape, "2", "b")])
        with caplog.at_level("WARNING", "deltasmelt.silver"):
            cut = cycle(40)
        silver.close()
        assert "the table was rolled back or removed" in caplog.text
        assert cut is not None, "its trouble is its own, and the same cycle carries it"
        assert (cut.commit_lsn, set(cut.tables)) == (Lsn(40), {"gone", "kept"})
        assert control.open_errors() == []
        rows = rows_of(spark, f"SELECT id FROM {CATALOG}.silver.gone")
        assert sorted(row["id"] for row in rows) == [1, 2]
