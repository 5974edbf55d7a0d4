"""Silver tables that somebody removes, or puts back from a backup, while silver runs: they catch up."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from bronze.errors import TransientError
from bronze.lake.control_tables import ControlTables
from bronze.lake.location import Lake
from pipelines.runtime.locks import writing
from silver.cycle import Silver
from silver.run import pauses
from silver.settings import SilverSettings
from tests.fix_spark import rows_of
from tests.gold.catalog_world import CATALOG, lake_in_catalog
from tests.silver.histories import INT, TEXT, BronzeWriter, change, relation

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from bronze.lake.control import Cut
    from bronze.shapes import Relation

PLAIN = (("id", INT), ("note", TEXT))
SHAPES = [
    relation(name, PLAIN, ["id"], relation_id=at) for at, name in enumerate(["kept", "gone", "back"], 1)
]


def ins(shape: Relation, *cells: str) -> dict[str, Any]:
    return change(shape, "insert", new=list(cells))


@pytest.mark.spark
def test_tables_that_were_removed_or_put_back_catch_up_in_the_same_process(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "FIRST_SECONDS", 0.0)
    lake = Lake(path=str(tmp_path / "lake"))
    bronze, control = BronzeWriter(lake), ControlTables(lake)
    silver = Silver(spark, lake, SilverSettings(), control)
    bronze.relations(SHAPES)
    for shape in SHAPES:
        bronze.snapshot(shape, 10, [["1", "a"]])
    bronze.commit(20)
    silver.cycle()
    shutil.copytree(lake.uri("silver", "back"), tmp_path / "backup")
    for lsn, cells in ((31, ("2", "b")), (41, ("3", "c"))):
        bronze.add(lsn, [ins(shape, *cells) for shape in SHAPES])
        bronze.commit(lsn + 9)
        silver.cycle()

    shutil.rmtree(lake.uri("silver", "gone"))
    shutil.rmtree(lake.uri("silver", "back"))
    shutil.copytree(tmp_path / "backup", lake.uri("silver", "back"))
    for lsn, cells in ((51, ("4", "d")), (61, ("5", "e"))):
        bronze.add(lsn, [ins(shape, *cells) for shape in SHAPES])
        bronze.commit(lsn + 9)
        cut = silver.cycle()
    silver.close()

    assert control.open_errors() == []
    assert cut is not None
    assert set(cut.tables) == {"kept", "gone", "back"}
    for name in cut.tables:
        found = spark.read.format("delta").load(lake.uri("silver", name)).select("id").collect()
        assert sorted(row["id"] for row in found) == [1, 2, 3, 4, 5], name


@pytest.mark.spark
@pytest.mark.torture
def test_a_table_that_was_dropped_from_a_catalog_catches_up_in_the_same_process(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The cycle has the lease that it had before, and so looks at a table no sooner than a step begins."""
    shape = SHAPES[1]
    with lake_in_catalog(spark, tmp_path / "lake") as lake:
        bronze, control = BronzeWriter(lake), ControlTables(lake)
        silver = Silver(spark, lake, SilverSettings(), control)

        def cycle(lsn: int) -> Cut | None:
            bronze.commit(lsn)
            with writing(lake, "silver"):
                return silver.cycle()

        bronze.relations([shape])
        bronze.snapshot(shape, 10, [["1", "a"]])
        cycle(20)
        spark.sql(f"DROP TABLE {CATALOG}.silver.gone")
        bronze.add(31, [ins(shape, "2", "b")])
        with pytest.raises(TransientError) as told:
            cycle(40)
        assert (told.value.code, told.value.where) == ("table-put-back", CATALOG)
        cut = cycle(50)
        silver.close()
        assert cut is not None
        assert set(cut.tables) == {"gone"}
        found = rows_of(spark, f"SELECT id FROM {CATALOG}.silver.gone")
        assert sorted(row["id"] for row in found) == [1, 2]
