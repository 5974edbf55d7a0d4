"""Upkeep, retention and rebuilds: no cut that is still named is lost, whatever ends when."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from bronze.control import Cut
from bronze.control_tables import ControlTables
from bronze.errors import DefiniteError
from bronze.lake import Lake
from bronze.lsn import Lsn
from pipelines.lock import writing
from pipelines.maintenance import Maintenance, cut_log
from pipelines.output import Output
from pipelines.rebuild import rebuild_silver
from pipelines.settings import load_pipeline
from pipelines.sql import choose_cut
from silver.rebuild import SCRATCH
from tests.silver.histories import change
from tests.silver.killed import EndedError, end, ending
from tests.silver.test_killed import Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOREVER = 86400.0


class Kept(Stage):
    """Remembers what the source held at each LSN."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        super().__init__(spark, path)
        self.root = Path(path)
        self.then: dict[int, dict[int, int]] = {}
        self.folding = self.silver()

    def write(self) -> None:
        """Only every other row counts up, so that files keep rows and MERGE marks the others."""
        self.lsn += 10
        changed = [key for at, key in enumerate(sorted(self.rows)) if at % 2]
        self.rows |= {key: self.rows[key] + 1 for key in changed}
        fresh = [self.lsn + number for number in range(6)]
        changes: list[dict[str, Any]] = []
        for shape in self.shapes:
            changes += [
                change(shape, "update", new=[str(key), str(self.rows[key]), "a", "b"]) for key in changed
            ]
            changes += [change(shape, "insert", new=[str(key), "0", "a", "b"]) for key in fresh]
        self.rows |= dict.fromkeys(fresh, 0)
        self.bronze.add(self.lsn, changes)
        self.bronze.commit(self.lsn)

    def step(self) -> Cut:
        self.write()
        self.then[self.lsn] = dict(self.rows)
        cut = self.folding.cycle()
        assert cut is not None
        return cut

    def maintenance(self, retention: float) -> Maintenance:
        return Maintenance(self.spark, self.lake, self.control, retention=retention, documents=False)

    def maintain(self, retention: float) -> None:
        assert len(list(self.maintenance(retention).all_tables())) == 2

    def check_all(self) -> int:
        """Every cut that is named equals the source as of then; returns how many there are."""
        cuts = self.control.cuts("silver")
        for cut in cuts:
            for shape in self.shapes:
                assert self.read(shape, "id, count", cut) == sorted(self.then[cut.commit_lsn].items())
        return len(cuts)


@pytest.fixture(scope="module")
def stage(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    stage = Kept(spark, str(tmp_path_factory.mktemp("maintained")))
    stage.step()
    return stage


@pytest.mark.spark
def test_a_cut_is_readable_until_retention_after_the_next_and_then_refused(stage: Kept) -> None:
    for _ in range(4):
        stage.step()
    old = stage.control.cuts("silver")[0]
    before = set(DeltaTable(stage.lake.uri("silver", "left")).file_uris())
    stage.maintain(FOREVER)
    files = DeltaTable(stage.lake.uri("silver", "left")).file_uris()
    assert len(files) == 1 < len(before)
    assert stage.check_all() == 5, "nothing is past a day"
    time.sleep(3.0)
    stage.step()
    kept = stage.step()
    stage.maintain(2.0)
    time.sleep(2.5)
    stage.step()
    stage.maintain(2.0)
    remaining = stage.check_all()
    assert 1 <= remaining <= 3
    assert kept.commit_lsn in {cut.commit_lsn for cut in stage.control.cuts("silver")}
    with pytest.raises(DefiniteError, match="the oldest cut is"):
        choose_cut(stage.control, with_gold=False, at=old.commit_lsn, lake="lake")
    system = {path.name for path in (stage.root / "silver" / "left").rglob("*.parquet")}
    assert not system & {uri.rsplit("/", 1)[-1] for uri in before}, "what no cut names is gone"


@pytest.mark.spark
@pytest.mark.parametrize(
    "point", ["after ALTER 1", "before OPTIMIZE 1", "after OPTIMIZE 1", "after REORG 1", "after VACUUM 1"]
)
def test_upkeep_may_end_anywhere(stage: Kept, point: str) -> None:
    stage.step()
    stage.step()
    retention = FOREVER + len(point) if "ALTER" in point else 0.5
    if "ALTER" not in point:
        stage.maintain(retention)
        stage.step()
        stage.step()
        time.sleep(0.6)
    maintenance = stage.maintenance(retention)
    with ending(point, end), pytest.raises(EndedError):
        list(maintenance.all_tables())
    stage.check_all()
    stage.step()
    stage.check_all()
    stage.maintain(retention)
    stage.check_all()


@pytest.mark.spark
def test_the_log_is_cut_off_where_the_oldest_named_version_can_still_be_read(stage: Kept) -> None:
    target = stage.lake.sql("silver", "left")
    stage.spark.sql(f"ALTER TABLE {target} SET TBLPROPERTIES ('delta.checkpointInterval' = '3')")
    stage.maintain(FOREVER)
    for _ in range(4):
        stage.step()
    stage.check_all()
    folder = stage.root / "silver/left/_delta_log"
    newest = max(int(path.name[:20]) for path in folder.glob("*.checkpoint.parquet"))
    assert cut_log(DeltaTable(stage.lake.uri("silver", "left")), 0) == 0
    time.sleep(1.0)
    stage.maintain(0.5)
    oldest = min(int(path.name[:20]) for path in folder.glob("*.json"))
    assert 0 < oldest <= newest + 6
    assert (folder / f"{oldest:020}.checkpoint.parquet").exists(), "what is left begins with a checkpoint"
    stage.check_all()
    stage.step()
    assert stage.check_all() >= 2


@pytest.mark.spark
def test_upkeep_beside_cycles_neither_fails_nor_loses(stage: Kept, tmp_path: Path) -> None:
    failures: list[BaseException] = []
    stop = threading.Event()

    def maintain() -> None:
        try:
            while not stop.is_set():
                stage.maintain(1.0)
        except BaseException as error:  # noqa: BLE001 - told by the test
            failures.append(error)

    thread = threading.Thread(target=maintain)
    thread.start()
    for _ in range(5):
        with writing(stage.lake, "silver"):
            stage.step()
    stop.set()
    thread.join()
    assert not failures
    stage.check_all()


@pytest.mark.spark
@pytest.mark.parametrize("point", ["", "after CREATE 1", "before INSERT 2", "after INSERT 2", "before CUT 1"])
def test_a_rebuild_from_bronze_equals_the_maintained_table_wherever_it_ended(
    stage: Kept, tmp_path: Path, point: str
) -> None:
    cut = stage.step()
    file = tmp_path / "pipeline.yml"
    file.write_text(
        "pipeline: p\nsource: {dsn: 'postgresql://x', slot: s, publication: p}\n"
        f"lake: {{path: '{stage.path}'}}\n"
    )
    pipeline = load_pipeline(file)
    columns = "id, count, a, b, _commit_lsn, _commit_ts, _unrepresentable"
    maintained: Any = stage.read(stage.shapes[0], columns, cut)
    stage.spark.sql(f"UPDATE {stage.lake.sql('silver', 'left')} SET a = 'wrong'")
    if point:
        with ending(point, end), pytest.raises(EndedError):
            rebuild_silver(stage.spark, pipeline, "left", Output())
        stage.check_all()
    assert rebuild_silver(stage.spark, pipeline, "public.left", Output()) == []
    after = stage.control.latest_cut("silver")
    assert after is not None
    assert after.commit_lsn == cut.commit_lsn
    assert after.tables["left"] > cut.tables["left"]
    assert after.tables["right"] == cut.tables["right"]
    assert stage.read(stage.shapes[0], columns, after) == maintained
    assert stage.read(stage.shapes[0], columns, cut) == maintained, "readers of the old version read on"
    assert not (stage.root / SCRATCH).exists()
    stage.step()
    stage.check_all()


def test_gold_keeps_the_silver_cut_that_it_stands_at(lake_path: str) -> None:
    control = ControlTables(Lake(path=lake_path))
    for lsn in (100, 200, 300):
        control.record_cut(Cut("silver", Lsn(lsn), None, {"a": lsn, "b": lsn}))
        if lsn == 100:
            control.record_cut(Cut("gold", Lsn(lsn), None, {"d": 1}))
    assert control.expire_cuts(datetime.now(UTC), gold=True) == 1
    assert [int(cut.commit_lsn) for cut in control.cuts("silver")] == [100, 300]
    assert control.cuts("silver")[0].tables == {"a": 100, "b": 100}
    assert control.expire_cuts(datetime.now(UTC), gold=False) == 1
    assert [int(cut.commit_lsn) for cut in control.cuts("silver")] == [300]
    assert control.latest_cut("gold") is not None
