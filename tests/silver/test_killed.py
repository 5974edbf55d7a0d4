"""A cycle may end anywhere; the next one carries on, and nothing is lost, doubled, or shown half."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from bronze.control_tables import ControlTables
from bronze.lake import Lake
from bronze.lsn import Lsn
from silver.cycle import Silver
from silver.settings import SilverSettings
from tests.silver.histories import SELECTED, TEXT, BronzeWriter, random_tables
from tests.silver.killed import EndedError, end, ending

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bronze.control import Cut
    from tests.silver.histories import RandomTable

FIRST = ["after CREATE 1", "before INSERT 1", "after INSERT 1"]
LATER = ["before MERGE 1", "after MERGE 1", "before RUNS 1", "before CUT 1", "after CUT 1"]
ALTERING = ["after ALTER 1", "after ALTER 2", "after ALTER 1"]


class Stage:
    """A lake with two tables whose histories go on from one test to the next."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark, self.path = spark, path
        self.lake = Lake(path=path)
        self.control = ControlTables(self.lake)
        self.bronze = BronzeWriter(self.lake)
        self.tables: list[RandomTable] = random_tables(seed=5, spaces=20)[:2]
        self.rng = random.Random(5)
        self.lsn = 10
        self.bronze.relations([table.shape for table in self.tables])
        for table in self.tables:
            self.bronze.snapshot(table.shape, 10, [])

    def write(self) -> None:
        for _ in range(2):
            self.lsn += 10
            self.bronze.add(self.lsn, [one for table in self.tables for one in table.transaction(self.lsn)])
        self.bronze.commit(self.lsn)

    def silver(self) -> Silver:
        return Silver(self.spark, self.lake, SilverSettings(), self.control)

    def end_at(self, point: str) -> None:
        silver = self.silver()
        with ending(point, end), pytest.raises(EndedError):
            silver.cycle()
        silver.close()  # as in a kill, nothing of it goes on beside the next one

    def check(self, cut: Cut | None) -> None:
        assert cut is not None
        assert cut.commit_lsn == self.lsn
        for table in self.tables:
            name = table.shape.table.silver_name
            query = f"SELECT {SELECTED} FROM {self.lake.sql('silver', name)} VERSION AS OF {cut.tables[name]}"
            found = sorted((tuple(row) for row in self.spark.sql(query).collect()), key=repr)
            assert found == table.expected()


@pytest.fixture(scope="module")
def stage(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(spark, str(tmp_path_factory.mktemp("lake")))


@pytest.mark.spark
def test_the_first_load_may_end_anywhere(stage: Stage) -> None:
    stage.write()
    for point in FIRST:
        stage.end_at(point)
        assert stage.control.latest_cut("silver") is None
    stage.check(stage.silver().cycle())


@pytest.mark.spark
@pytest.mark.parametrize("point", LATER)
def test_a_cycle_may_end(point: str, stage: Stage) -> None:
    stage.write()
    before = stage.control.latest_cut("silver")
    stage.end_at(point)
    latest = stage.control.latest_cut("silver")
    if point == "after CUT 1":
        stage.check(latest)
        assert stage.silver().cycle() is None
        return
    assert latest == before
    stage.write()  # the next cycle begins with more than the last one saw
    stage.check(stage.silver().cycle())


@pytest.mark.spark
def test_a_shape_may_be_half_changed(stage: Stage) -> None:
    """Two names swapped and a column added: four ALTERs, of which only some ran."""
    shape = stage.tables[0].shape
    columns = list(shape.columns)
    columns[4], columns[5] = replace(columns[4], name="huge"), replace(columns[5], name="big")
    more = replace(columns[3], name="more", attnum=8)
    changed = replace(shape, columns=(*columns, more), from_lsn=Lsn(stage.lsn + 5))
    stage.bronze.relations([changed])
    rows = stage.tables[0].expected()
    stage.bronze.commit(stage.lsn + 9)
    assert more.type == TEXT
    stage.lsn += 10
    stage.bronze.add(
        stage.lsn,
        [{"op": "insert", "table_schema": "public", "table_name": "by_key", "relation_id": 1,
          "columns": [column.name for column in changed.columns],
          "new": ["999", "1", "1", "n", "was big", "was huge", "1.00", "m"]}],
    )  # fmt: skip
    stage.bronze.commit(stage.lsn)
    for point in ALTERING:
        stage.end_at(point)
    cut = stage.silver().cycle()
    assert cut is not None
    query = (
        f"SELECT {SELECTED.replace('big, huge', 'huge, big')}, more FROM {stage.lake.sql('silver', 'by_key')}"
    )
    found = sorted((tuple(row) for row in stage.spark.sql(query).collect()), key=repr)
    added = (999, 1, 1, "n", "was big", "was huge", "1.00", None, "m")
    assert found == sorted([*((*row, None) for row in rows), added], key=repr)


@pytest.mark.spark
def test_a_process_may_be_killed_during_its_merge(spark: SparkSession, tmp_path: object) -> None:
    stage = Stage(spark, str(tmp_path))
    stage.write()
    stage.check(stage.silver().cycle())
    stage.write()
    command = [sys.executable, "-m", "tests.silver.killed", stage.path, "during MERGE 1"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    stage.write()
    stage.check(stage.silver().cycle())
