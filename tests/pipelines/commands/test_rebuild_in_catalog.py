"""`smelt rebuild` in a catalog, for which names with different case mean a single table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.pipelines.commands.rebuild import rebuild_silver
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.terminal.output import Output
from deltasmelt.silver.cycle import Silver
from tests.fix_spark import rows_of
from tests.gold.catalog_world import CATALOG, lake_in_catalog
from tests.silver.histories import INT, TEXT, BronzeWriter, relation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Lake


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    with lake_in_catalog(spark, tmp_path / "lake") as lake_made:
        yield lake_made


def test_no_table_is_written_over_one_whose_name_a_catalog_takes_for_its_own(
    spark: SparkSession, lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two cases: the name of a second table, and the name of a second table's history."""
    file = tmp_path / "pipeline.yml"
    file.write_text(
        "pipeline: p\nsource: {dsn: 'postgresql://127.0.0.1:1/x', slot: s, publication: p}\n"
        f"lake: {{catalog: {CATALOG}}}\nsilver: {{history: [public.items]}}\n"
    )
    pipeline = load_pipeline(file)
    pipeline.lake_address().place.serve(lambda: spark)
    bronze, control = BronzeWriter(lake), ControlTables(lake)
    shapes = [
        relation(name, [("id", INT), ("note", TEXT)], ["id"], relation_id=at)
        for at, name in enumerate(("items", "Items", "Items__History"), 1)
    ]

    def come(lsn: int, *names: str) -> None:
        for shape in (shape for shape in shapes if shape.table.name in names):
            bronze.relations([shape])
            bronze.snapshot(shape, lsn, [["1", shape.table.name]])

    come(10, "items")
    bronze.commit(20)
    silver = Silver(spark, lake, pipeline.silver, control)
    silver.cycle()
    come(25, "Items", "Items__History")
    bronze.commit(30)
    silver.cycle()
    silver.close()
    errors = {error.name: error.code for error in control.open_errors()}
    assert errors == dict.fromkeys([str(shape.table) for shape in shapes], "catalog-name")

    names = [shape.table for shape in shapes]
    failed = rebuild_silver(spark, pipeline, names, Output())
    assert failed == [shape.table.name for shape in shapes]
    assert "the catalog ignores case" in capsys.readouterr().err
    for name in ("items", "items__history"):
        rows = rows_of(spark, f"SELECT id, note FROM {CATALOG}.silver.{name}")
        assert [tuple(row) for row in rows] == [(1, "items")], name
