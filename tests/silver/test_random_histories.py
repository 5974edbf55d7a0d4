"""Random histories in many key spaces, cut at random points: after every cut silver is what the source is."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from bronze.control_tables import ControlTables
from bronze.lake import Lake
from silver.cycle import Silver
from silver.settings import SilverSettings
from tests.silver.histories import SELECTED, BronzeWriter, random_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.silver.histories import RandomTable

SEED = 20241121
SPACES = 80
ROUNDS = 4


def check(spark: SparkSession, lake: Lake, tables: list[RandomTable]) -> None:
    for table in tables:
        name = table.shape.table.silver_name
        rows = spark.sql(f"SELECT {SELECTED} FROM {lake.sql('silver', name)}").collect()
        found = sorted((tuple(row) for row in rows), key=repr)
        assert found == table.expected(), f"{name} at {table.lsn}, seed {SEED}"


@pytest.mark.spark
def test_silver_is_the_source_after_every_window(spark: SparkSession, lake_path: str) -> None:
    lake = Lake(path=lake_path)
    bronze, control = BronzeWriter(lake), ControlTables(lake)
    silver = Silver(spark, lake, SilverSettings(), control)
    tables = random_tables(SEED, SPACES)
    rng = random.Random(SEED)
    by_key, by_full_row, by_index = tables
    bronze.relations([table.shape for table in tables])
    for table in tables:
        bronze.snapshot(table.shape, 10, [])
    lsn = 10
    for round_ in range(ROUNDS):
        for number in range(rng.randint(2, 6)):
            lsn += 10
            changes = [change for table in tables for change in table.transaction(lsn)]
            if (
                round_ == 1 and number == 1
            ):  # one TRUNCATE of two tables, inside a transaction with changes around it
                for table in (by_key, by_full_row):
                    table.lsn, table.changes = lsn, changes
                    table.truncate()
                    for space in range(0, SPACES, 2):
                        table._insert(space)
            bronze.add(lsn, changes)
        if round_ == 2:  # taken again in the middle of the window
            bronze.snapshot(by_index.shape, lsn, by_index.tuples())
            for _ in range(2):
                lsn += 10
                bronze.add(lsn, [change for table in tables for change in table.transaction(lsn)])
        bronze.commit(lsn)
        cut = silver.cycle()
        assert control.open_errors() == []
        assert cut is not None
        assert cut.commit_lsn == lsn
        assert set(cut.tables) == {table.shape.table.silver_name for table in tables}
        check(spark, lake, tables)
    assert silver.cycle() is None
    plans = {str(plan) for run in control.runs("silver") for plan in [run.details["plan"]]}
    assert plans == {"['load']", "['merge']"}
