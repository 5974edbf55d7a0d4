"""A call of silver, gold, maintenance or a rebuild fails: the next run repairs the state."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from deltasmelt.pipelines.commands.rebuild import rebuild_silver
from deltasmelt.pipelines.runtime.maintenance import Maintenance
from deltasmelt.pipelines.terminal.output import Output
from tests.gold.shop_documents import CUSTOMER, PARCEL_LINE
from tests.gold.world import World, mutate
from tests.pipelines.runtime.test_maintenance import pipeline_of
from tests.silver.histories import INT, TEXT, change, relation
from tests.silver.run import test_versions_killed as kept
from tests.silver.run.test_killed import Stage
from tests.torture.spark_faults import Tried, enumerate_faults

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Cut
    from deltasmelt.silver.cycle import Silver
    from tests.silver.killed import KilledStage

pytestmark = [pytest.mark.spark, pytest.mark.torture]

NAMES = [[("id", INT), ("count", INT), (one, TEXT), (other, TEXT)] for one, other in ("ab", "ba")]


class Varied(Stage):
    """Two tables with four kinds of writes in turn: changes, a TRUNCATE, a new copy, two swapped names."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        super().__init__(spark, path)
        self.turn = 0

    def write(self) -> None:
        self.turn += 1
        kind = ("changes", "truncate", "copy", "swap")[self.turn % 4]
        if kind == "truncate":
            self.lsn += 10
            self.rows = {}
            self.bronze.add(self.lsn, [change(shape, "truncate") for shape in self.shapes])
        if kind == "copy":
            self.lsn += 10
            rows = [[str(key), str(count), "a", "b"] for key, count in self.rows.items()]
            self.bronze.snapshot(self.shapes[0], self.lsn, rows)
        if kind == "swap":
            self.lsn += 1
            columns = NAMES[self.turn // 4 % 2]
            self.shapes[1] = relation("right", columns, ["id"], relation_id=2, from_lsn=self.lsn)
            self.bronze.relations([self.shapes[1]])
        super().write()


class Folding(Tried):
    """A cycle of silver over new changes."""

    def __init__(self, stage: KilledStage) -> None:
        self.stage, self.silver = stage, stage.silver()
        super().__init__(stage.write, lambda: self.silver.cycle(), self.go_on)  # noqa: PLW0108

    def go_on(self, restart: bool) -> None:  # noqa: FBT001
        if restart:
            self.silver.close()
            self.silver = self.stage.silver()
        self.stage.check(brought(self.silver, self.stage))
        assert self.stage.control.open_errors() == []


def brought(silver: Silver, stage: KilledStage) -> Cut | None:
    """Run at most three cycles until a cut holds all written changes; return the newest cut."""
    for _ in range(3):
        silver.cycle()
        latest: Cut | None = stage.control.latest_cut("silver")
        if latest is not None and latest.commit_lsn == stage.lsn:
            return latest
    return stage.control.latest_cut("silver")


def begun(stage: KilledStage) -> None:
    stage.write()
    stage.check(stage.silver().cycle())


def test_any_call_of_a_cycle_may_fail(spark: SparkSession, tmp_path: Path) -> None:
    begun(stage := Varied(spark, str(tmp_path)))
    assert enumerate_faults(Folding(stage), number=35, seed=1) == []


def test_history_cycle_survives_failure_of_any_call(spark: SparkSession, tmp_path: Path) -> None:
    begun(stage := kept.Stage(spark, str(tmp_path)))
    assert enumerate_faults(Folding(stage), number=20, seed=2) == []


def test_any_call_of_an_upkeep_may_fail(spark: SparkSession, tmp_path: Path) -> None:
    begun(stage := Stage(spark, str(tmp_path)))

    def write() -> None:
        stage.write()
        stage.check(brought(stage.silver(), stage))

    def upkeep() -> None:
        list(Maintenance(spark, stage.lake, stage.control, retention=0.0, documents=False).all_tables())

    def go_on(restart: bool) -> None:  # noqa: FBT001
        stage.check(stage.control.latest_cut("silver"))
        if restart:
            upkeep()
        write()

    assert enumerate_faults(Tried(write, upkeep, go_on), number=15, seed=3) == []


def test_any_call_of_a_rebuild_may_fail(spark: SparkSession, tmp_path: Path) -> None:
    begun(stage := Stage(spark, str(tmp_path)))
    pipeline = pipeline_of(str(tmp_path))

    def rebuilt() -> None:
        assert rebuild_silver(spark, pipeline, [shape.table for shape in stage.shapes], Output()) == []

    def go_on(restart: bool) -> None:  # noqa: FBT001
        if restart:  # what goes on must not need the rebuild to be done again
            stage.check(brought(stage.silver(), stage))
        rebuilt()
        stage.check(stage.control.latest_cut("silver"))

    assert enumerate_faults(Tried(stage.write, rebuilt, go_on), number=15, seed=4) == []


def test_any_call_of_a_gold_cycle_may_fail(spark: SparkSession, tmp_path: Path) -> None:
    world = World(spark, str(tmp_path / "lake"), [CUSTOMER, PARCEL_LINE])
    world.first()
    source = random.Random(5)

    def change() -> None:
        for _ in range(3):
            mutate(world.shop, source)
        world.shop.commit()

    def go_on(restart: bool) -> None:  # noqa: FBT001
        if restart:
            world.gold = world.start_gold(world.documents)
        for _ in range(3):
            world.gold.cycle()
        world.check()
        assert world.control.open_errors() == []
        latest = world.control.latest_cut("gold")
        assert latest is not None
        assert latest.commit_lsn == world.shop.lsn

    tried = Tried(change, lambda: world.gold.cycle(), go_on)  # noqa: PLW0108
    assert enumerate_faults(tried, number=20, seed=5) == []
    world.shop.silver.close()
