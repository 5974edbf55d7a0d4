"""A MERGE skips files of a table by key ranges where the table's files are large, by rows or by bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.run import key_ranges, step_runner
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, TEXT, BronzeWriter, insert, relation, update
from tests.silver.stored import cells_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WIDE = relation("wide", (("id", INT), ("note", TEXT)), ["id"], relation_id=1)


@pytest.mark.spark
def test_few_wide_rows_are_skipped_by_file(
    spark: SparkSession, lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table with soft deletes reads all values of its files, not only the keys."""
    monkeypatch.setattr(key_ranges, "_RANGES_ABOVE", 2)
    lake = Lake(lake_path)
    bronze, control = BronzeWriter(lake), ControlTables(lake)
    silver = Silver(spark, lake, SilverSettings(deletes="soft"), control)
    bronze.relations([WIDE])
    bronze.snapshot(WIDE, 10, [[str(key), "first"] for key in range(10)])
    bronze.commit(10)
    silver.cycle()
    bronze.add(20, [insert(WIDE, str(key), "later") for key in range(10, 50)])
    bronze.commit(20)
    silver.cycle()
    for lsn, most_bytes, skips in ((30, 2**25, False), (40, 0, True)):
        monkeypatch.setattr(step_runner, "_RANGED_ABOVE_BYTES", most_bytes)
        bronze.add(lsn, [update(WIDE, "3", str(lsn))])
        bronze.commit(lsn)
        silver.cycle()
        merged = DeltaTable(lake.uri("silver", "wide")).history(1)[0]["operationParameters"]
        assert (">=" in merged["predicate"]) == skips, merged
    assert silver._begun_pool()._max_workers == 2, "as many as the cores of local[2]"
    silver.close()
    assert dict(cells_at(spark, lake, "wide", "id, note"))[3] == "40"
    assert control.open_errors() == []
