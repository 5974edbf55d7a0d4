"""History and soft deletes under kills, and soft deletes switched on and off: a cycle may end anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.run import key_ranges, step_runner
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, TEXT, change, relation
from tests.silver.killed import KilledStage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Cut

SHAPE = relation("counted", [("id", INT), ("count", INT), ("big", TEXT)], ["id"], relation_id=1)
KEPT = SilverSettings(deletes="soft", history=["public.counted"])
NAMES = {"counted", "counted__history"}

FIRST = ["after CREATE 1", "before MERGE 1"]
WITHIN = ["before MERGE 1", "after MERGE 1"]
"""At each point a table is behind: by its whole window, then by half of the window."""

AT_ITS_END = ["before CUT 1", "after CUT 1"]
SWITCHED_ON = ["after UPDATE 1"]
SWITCHED_OFF = ["after DELETE 1"]


class Stage(KilledStage):
    """A table whose rows count up with every transaction; each transaction deletes one row and adds two."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        super().__init__(spark, path)
        self.rows: dict[int, int] = {}
        self.gone: dict[int, int] = {}
        self.past: dict[int, dict[int, int]] = {}
        self.shape = SHAPE
        self.bronze.relations([SHAPE])
        self.bronze.snapshot(SHAPE, 10, [])

    def sent(self, *values: str | None) -> list[str | None]:
        """Return a tuple of the newest shape."""
        return [*values, *[None] * (len(self.shape.columns) - len(values))]

    def write(self, *, parted: bool = False) -> None:
        """Write two transactions; between their changes, add a column and truncate the table."""
        for at in range(2):
            self.lsn += 10
            changes: list[dict[str, Any]] = []
            if parted and at:
                columns = [(column.name, column.type) for column in self.shape.columns]
                columns.append((f"added_{self.lsn}", TEXT))
                self.shape = relation("counted", columns, ["id"], relation_id=1, from_lsn=self.lsn)
                self.bronze.relations([self.shape])
                changes.append(change(self.shape, "truncate"))
                self.gone |= self.rows
                self.rows = {}
            self.rows = {key: count + 1 for key, count in self.rows.items()}
            if leaves := min(self.rows, default=None):
                self.gone[leaves] = self.rows.pop(leaves) - 1
                changes.append(change(self.shape, "delete", old=self.sent(str(leaves)), old_is_key=True))
            changes += [
                change(self.shape, "update", new=self.sent(str(key), str(count)), unchanged=["big"])
                for key, count in self.rows.items()
            ]
            self.rows |= {self.lsn: 0, self.lsn + 1: 0}
            changes += [
                change(self.shape, "insert", new=self.sent(str(key), "0", f"B{key}"))
                for key in (self.lsn, self.lsn + 1)
            ]
            self.bronze.add(self.lsn, changes)
            self.past[self.lsn] = dict(self.rows)
        self.bronze.commit(self.lsn)

    def settings(self) -> SilverSettings:
        return KEPT

    def check(self, cut: Cut | None) -> None:
        assert cut is not None
        assert (cut.commit_lsn, set(cut.tables)) == (self.lsn, NAMES)
        living = [(key, count, f"B{key}", False) for key, count in self.rows.items()]
        deleted = [(key, count, f"B{key}", True) for key, count in self.gone.items()]
        assert self.stored("counted", "id, count, big, _deleted", cut) == sorted([*living, *deleted])
        columns = "id, count, big, _valid_from_lsn, _valid_to_lsn"
        versions = self.stored("counted__history", columns, cut)
        for lsn, rows in self.past.items():
            matching = [row[:3] for row in versions if row[3] <= lsn and (row[4] is None or lsn < row[4])]
            assert matching == sorted((key, count, f"B{key}") for key, count in rows.items()), lsn


@pytest.fixture(autouse=True)
def ranged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each MERGE its key ranges as literals, although the small table has few files to skip."""
    monkeypatch.setattr(key_ranges, "_RANGES_ABOVE", 1)
    monkeypatch.setattr(key_ranges, "_RANGE_HOLDS", 2.0)
    monkeypatch.setattr(step_runner, "_RANGED_ABOVE", -1)


@pytest.fixture(scope="module")
def stage(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(spark, str(tmp_path_factory.mktemp("lake")))


@pytest.mark.spark
def test_the_first_cycle_may_end_anywhere(stage: Stage) -> None:
    stage.write()
    for point in FIRST:
        stage.end_at(point)
        assert stage.control.latest_cut("silver") is None
    stage.check(stage.silver().cycle())


@pytest.mark.spark
def test_window_may_end_between_statements(stage: Stage) -> None:
    """A new shape splits a window into two statements per table; each end leaves more done.

    The cycle after some ends begins with more changes than the ended cycles saw.
    """
    before = stage.control.latest_cut("silver")
    stage.write(parted=True)
    for point in WITHIN:
        stage.end_at(point)
        assert stage.control.latest_cut("silver") == before
    stage.write()
    for point in AT_ITS_END:
        assert stage.control.latest_cut("silver") == before
        stage.end_at(point)
    stage.check(stage.control.latest_cut("silver"))
    assert stage.silver().cycle() is None


@pytest.mark.spark
def test_soft_deletes_and_history_are_switched(stage: Stage) -> None:
    """Off removes deleted rows. On again, existing rows are not deleted, and history continues."""
    hard = SilverSettings()
    for point in SWITCHED_OFF:
        stage.end_at(point, hard)
    cut = stage.silver(hard).cycle()
    assert cut is not None
    assert set(cut.tables) == {"counted"}
    columns = set(stage.spark.table(stage.lake.sql("silver", "counted")).columns)
    assert "_deleted" not in columns
    living = sorted((key, count, f"B{key}") for key, count in stage.rows.items())
    assert stage.stored("counted", "id, count, big", cut) == living
    stage.gone = {}
    stage.write()
    assert stage.silver(hard).cycle() is not None
    stage.gone = {}  # what was deleted meanwhile is not there
    for point in SWITCHED_ON:
        stage.end_at(point)
    stage.check(stage.silver().cycle())
    assert stage.silver().cycle() is None
    stage.write()
    stage.check(stage.silver().cycle())
    for name in NAMES:  # these MERGEs skipped files by key ranges (`ranged`)
        merged = DeltaTable(stage.lake.uri("silver", name)).history(1)[0]["operationParameters"]
        assert ">=" in merged["predicate"], merged


@pytest.mark.spark
def test_later_history_begins_with_newest_snapshot(stage: Stage) -> None:
    """Bronze still has all later changes: the new history equals the kept history."""
    second_folder = Path(stage.lake.path or "").parent / "again"
    second_folder.mkdir()
    (second_folder / "bronze").symlink_to(Path(stage.lake.path or "") / "bronze")
    cut = Silver(
        stage.spark, Lake(path=str(second_folder)), KEPT, ControlTables(Lake(path=str(second_folder)))
    ).cycle()
    assert cut is not None
    columns = "id, count, big, _valid_from_lsn, _valid_to_lsn, _commit_ts"
    history_rows = stage.stored("counted__history", columns, stage.control.latest_cut("silver") or cut)
    stage.lake = Lake(path=str(second_folder))
    assert stage.stored("counted__history", columns, cut) == history_rows
