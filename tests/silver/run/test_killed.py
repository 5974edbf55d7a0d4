"""A cycle may end anywhere: the next continues, and no change is lost, applied twice, or half visible."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.lsn import Lsn
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, NUMERIC, TEXT, change, relation
from tests.silver.killed import KilledStage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Cut

FIRST = ["after CREATE 1", "after INSERT 1"]
LATER = [
    "after MERGE 1",
    "before CUT 1",
    *(pytest.param(point, marks=pytest.mark.torture) for point in ("before MERGE 1", "after CUT 1")),
]
ALTERING = ["after ALTER 2"]
FILLING = ["after UPDATE 1", "before UPDATE 2"]
"""Points between ALTERs; `tests/silver/schema/test_ddl.py` continues after each statement, without Spark."""

COLUMNS = [("id", INT), ("count", INT), ("a", TEXT), ("b", TEXT)]
HALF_CHANGED = [("id", INT), ("count", INT), ("b", TEXT), ("a", TEXT), ("more", TEXT)]


class Stage(KilledStage):
    """Two tables.

    Every write increments all rows, adds two rows and deletes one: a lost or repeated write shows.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        super().__init__(spark, path)
        self.path = path
        self.shapes = [
            relation(name, COLUMNS, ["id"], relation_id=at) for at, name in ((1, "left"), (2, "right"))
        ]
        self.rows: dict[int, int] = {}
        self.bronze.relations(self.shapes)
        for shape in self.shapes:
            self.bronze.snapshot(shape, 10, [])

    def write(self) -> None:
        self.lsn += 10
        self.rows = {key: count + 1 for key, count in self.rows.items()}
        removed = min(self.rows, default=None)
        if removed is not None:
            del self.rows[removed]
        fresh = [self.lsn, self.lsn + 1]
        changes: list[dict[str, Any]] = []
        for shape in self.shapes:
            changes += [
                change(shape, "update", new=[str(key), str(count), "a", "b"])
                for key, count in self.rows.items()
            ]
            changes += [change(shape, "insert", new=[str(key), "0", "a", "b"]) for key in fresh]
            if removed is not None:
                changes.append(change(shape, "delete", old=[str(removed), None, None, None], old_is_key=True))
        self.rows |= dict.fromkeys(fresh, 0)
        self.bronze.add(self.lsn, changes)
        self.bronze.commit(self.lsn)

    def settings(self) -> SilverSettings:
        return SilverSettings()

    def check(self, cut: Cut | None) -> None:
        assert cut is not None
        assert cut.commit_lsn == self.lsn
        for shape in self.shapes:
            assert self.stored(shape.table.silver_name, "id, count", cut) == sorted(self.rows.items())


@pytest.fixture(scope="module")
def stage(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Load both tables; the first load ends at several points."""
    stage = Stage(spark, str(tmp_path_factory.mktemp("lake")))
    stage.write()
    for point in FIRST:
        stage.end_at(point)
        assert stage.control.latest_cut("silver") is None
    stage.check(stage.silver().cycle())
    return stage


@pytest.mark.spark
@pytest.mark.parametrize("point", LATER)
def test_a_cycle_may_end(point: str, stage: Stage) -> None:
    stage.write()
    stage.ends_at_and_goes_on(point)


@pytest.mark.spark
def test_a_shape_may_be_half_changed(stage: Stage) -> None:
    """Two swapped names and a new column: of four ALTERs only some ran."""
    stage.lsn += 10
    changed = relation("left", HALF_CHANGED, ["id"], relation_id=1, from_lsn=stage.lsn)
    stage.bronze.relations([changed])
    stage.bronze.add(stage.lsn, [change(changed, "insert", new=["999", "0", "was a", "was b", "m"])])
    stage.bronze.commit(stage.lsn)
    for point in ALTERING:
        stage.end_at(point)
    cut = stage.silver().cycle()
    assert cut is not None
    rows = [(key, count, "a", "b", None) for key, count in stage.rows.items()]
    stored = stage.stored(changed.table.silver_name, "id, count, b, a, more", cut)
    assert stored == sorted([*rows, (999, 0, "was a", "was b", "m")])


@pytest.mark.spark
def test_a_default_may_be_half_given(stage: Stage) -> None:
    """Two columns with a value for older rows: each needs an ALTER, an UPDATE and another ALTER."""
    stage.lsn += 10
    shape = relation("right", [*COLUMNS, ("n", NUMERIC), ("v", INT)], ["id"], relation_id=2)
    defaults = {"n": "NaN", "v": "7"}
    columns = [replace(column, missing=defaults.get(column.name)) for column in shape.columns]
    changed = replace(shape, columns=tuple(columns), from_lsn=Lsn(stage.lsn), after_lsn=Lsn(1))
    stage.bronze.relations([changed])
    touched = min(stage.rows)
    before = change(stage.shapes[1], "update", new=[str(touched), "5", "a", "b"])
    inserts = [["998", "0", "a", "b", None, None], ["999", "0", "a", "b", "1.5", "8"]]
    stage.bronze.add(stage.lsn, [before, *(change(changed, "insert", new=row) for row in inserts)])
    stage.bronze.commit(stage.lsn)
    for point in FILLING:
        stage.end_at(point)
    cut = stage.silver().cycle()
    assert cut is not None
    expected: list[tuple[Any, ...]] = [
        (key, 5 if key == touched else count, None, 7, "NaN") for key, count in stage.rows.items()
    ]
    expected += [(998, 0, None, None, None), (999, 0, Decimal("1.50"), 8, None)]
    stored = stage.stored(changed.table.silver_name, "id, count, n, v, _unrepresentable", cut)
    assert [(*cells, (lost or {}).get("n")) for *cells, lost in stored] == sorted(expected)


@pytest.mark.spark
def test_a_default_is_given_where_nothing_else_happens(stage: Stage) -> None:
    """Only the shape arrives, at an LSN that silver may already have passed."""
    last = stage.control.latest_cut("silver")
    assert last is not None
    shape = relation("left", [*HALF_CHANGED, ("w", TEXT)], ["id"], relation_id=1, from_lsn=stage.lsn - 1)
    columns = [*shape.columns[:-1], replace(shape.columns[-1], missing="it's")]
    stage.bronze.relations([replace(shape, columns=tuple(columns))])
    stage.end_at("after ALTER 1")
    silver = stage.silver()
    cut = silver.cycle()
    assert cut is not None
    assert (cut.commit_lsn, set(cut.tables)) == (last.commit_lsn, set(last.tables))
    values = stage.stored(shape.table.silver_name, "w", cut)
    assert values == [("it's",)] * (len(stage.rows) + 1)
    assert silver.cycle() is None, "once is enough"


@pytest.mark.torture
@pytest.mark.spark
def test_a_process_may_be_killed_during_its_merge(spark: SparkSession, tmp_path: object) -> None:
    stage = Stage(spark, str(tmp_path))
    stage.write()
    stage.check(stage.silver().cycle())
    stage.write()
    command = [sys.executable, "-m", "tests.silver.killed", stage.path, "during MERGE 1"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=500)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    stage.write()
    stage.check(stage.silver().cycle())
