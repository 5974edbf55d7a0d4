"""Maintenance, retention and rebuilds: no named cut is lost, whichever process ends at which moment."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from deltalake import DeltaTable

from deltasmelt.bronze import backoff
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines.commands.maintain import run_maintain
from deltasmelt.pipelines.commands.rebuild import rebuild_silver
from deltasmelt.pipelines.health.stalled import standing_still
from deltasmelt.pipelines.health.status import read_status
from deltasmelt.pipelines.runtime import maintenance
from deltasmelt.pipelines.runtime.locks import writing
from deltasmelt.pipelines.runtime.log_entries import cut_log
from deltasmelt.pipelines.runtime.maintenance import Maintenance
from deltasmelt.pipelines.runtime.table_files import Files
from deltasmelt.pipelines.settings import Pipeline, load_pipeline
from deltasmelt.pipelines.spark.lake_sql import cut_at
from deltasmelt.pipelines.terminal.failures import Failure
from deltasmelt.pipelines.terminal.output import Output
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.rebuild import SCRATCH
from deltasmelt.silver.settings import SilverSettings
from tests.fix_spark import rows_of, signed
from tests.pipelines.aged import age
from tests.silver.histories import INT, TEXT, BronzeWriter, change, relation
from tests.silver.killed import EndedError, end, ending
from tests.silver.run import test_versions_killed as kept
from tests.silver.run.test_killed import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

DAY = 86400.0
ROOT = Path(__file__).parents[3]
COLUMNS = "id, count, a, b, _commit_lsn, _commit_ts, _unrepresentable"


def pipeline_of(path: str, more: str = "") -> Pipeline:
    file = Path(path) / "pipeline.yml"
    source = "source: {dsn: 'postgresql://127.0.0.1:1/x', slot: s, publication: p}"
    file.write_text(f"pipeline: p\n{source}\nlake: {{path: '{path}'}}\n{more}")
    return load_pipeline(file)


class Shop(Stage):
    """Two tables, `left` and `right`; only `left` changes. The shop records the rows at each LSN."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        super().__init__(spark, path)
        self.root = Path(path)
        self.then: dict[int, dict[str, dict[int, int]]] = {}
        self.rest: dict[int, int] = {}
        self.folding = self.silver()

    def write(self) -> None:
        """Update every second row and insert six rows: files keep rows, and MERGE marks the updated rows."""
        self.lsn += 10
        first_shape, second_shape = self.shapes
        changed = [key for at, key in enumerate(sorted(self.rows)) if at % 2]
        self.rows |= {key: self.rows[key] + 1 for key in changed}
        fresh = [self.lsn + number for number in range(6)]
        changes = [
            change(first_shape, "update", new=[str(key), str(self.rows[key]), "a", "b"]) for key in changed
        ]
        changes += [change(first_shape, "insert", new=[str(key), "0", "a", "b"]) for key in fresh]
        if not self.rest:
            self.rest = dict.fromkeys(fresh, 0)
            changes += [change(second_shape, "insert", new=[str(key), "0", "a", "b"]) for key in fresh]
        self.rows |= dict.fromkeys(fresh, 0)
        self.bronze.add(self.lsn, changes)
        self.bronze.commit(self.lsn)

    def step(self) -> Cut:
        self.write()
        return self.fold()

    def remove(self) -> Cut:
        """Delete one row, so that MERGE marks the row and writes no file."""
        self.lsn += 10
        removed = min(self.rows)
        del self.rows[removed]
        old = [str(removed), None, None, None]
        self.bronze.add(self.lsn, [change(self.shapes[0], "delete", old=old, old_is_key=True)])
        self.bronze.commit(self.lsn)
        return self.fold()

    def fold(self) -> Cut:
        cut = self.folding.cycle()
        assert cut is not None
        self.then[self.lsn] = {"left": dict(self.rows), "right": dict(self.rest)}
        return cut

    def maintenance(self, retention: float) -> Maintenance:
        return Maintenance(self.spark, self.lake, self.control, retention=retention, documents=False)

    def maintain(self, retention: float) -> dict[str, Any]:
        return {result.name: result for result in self.maintenance(retention).all_tables()}

    def check_all(self) -> int:
        """Check that every recorded cut equals the source at the cut's LSN; return the number of cuts."""
        cuts = self.control.cuts("silver")
        rows_of_versions: dict[
            tuple[str, int], list[tuple[Any, ...]]
        ] = {}  # several cuts name a version of `right`
        for cut in cuts:
            for shape in self.shapes:
                name = shape.table.silver_name
                version = name, cut.tables[name]
                if version not in rows_of_versions:
                    rows_of_versions[version] = self.stored(name, "id, count", cut)
                assert rows_of_versions[version] == sorted(self.then[cut.commit_lsn][name].items())
        return len(cuts)

    def ends(self, point: str, retention: float) -> None:
        """End maintenance at a point, as a kill does."""
        with ending(point, end), pytest.raises(EndedError):
            self.maintain(retention)

    def parquet(self) -> set[str]:
        return {path.name for path in (self.root / "silver" / "left").rglob("*.parquet")}

    def table(self) -> DeltaTable:
        return DeltaTable(self.lake.uri("silver", "left"))


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Create a shop whose tables are written as large tables: MERGE marks rows and keeps files."""
    with patch("deltasmelt.silver.run.step_runner._TINY_TARGET", 0):
        shop = Shop(spark, str(tmp_path_factory.mktemp("shop")))
        shop.step()
        yield shop


@pytest.mark.spark
def test_small_files_are_joined_without_deletion_vectors(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.step()
    shop.ends("before OPTIMIZE 1", 10 * DAY)
    result = shop.maintain(10 * DAY)["left"]
    assert result.done == ["clustered"]
    assert result.before.count > result.after.count == 1
    assert result.before.deleted_rows == result.before.rows - len(shop.rows) > 0
    assert (result.after.deleted_rows, result.after.rows) == (0, len(shop.rows))
    assert result.removed_files == result.removed_log_entries == 0
    run_maintain(pipeline_of(shop.path), Output())
    first_line, second_line = capsys.readouterr().out.splitlines()
    assert first_line.startswith("silver.left: nothing to do; files 1 → 1, ")
    assert second_line.startswith("silver.right: nothing to do; ")
    assert shop.check_all() == 2


@pytest.mark.spark
def test_a_cut_and_its_files_go_after_retention(shop: Shop) -> None:
    first, second = shop.control.cuts("silver")
    files = {
        uri.rsplit("/", 1)[-1]
        for uri in DeltaTable(shop.lake.uri("silver", "left"), version=second.tables["left"]).file_uris()
    }
    for _ in range(2):
        age(shop.spark, shop.root, days=4)
        shop.step()
    results = shop.maintain(3 * DAY)
    assert results["right"].done == [], "nothing had happened to it"
    assert results["left"].removed_files >= len(files) > 1
    assert not files & shop.parquet()
    assert shop.check_all() == 2, "the cut that was the newest three days ago, and the later one"
    with pytest.raises(DefiniteError, match="the oldest cut is") as refused:
        cut_at(shop.control, with_gold=False, at=first.commit_lsn, lake="lake")
    assert refused.value.code == "no-cut"


@pytest.mark.spark
def test_the_newest_cut_stays_readable_however_old(shop: Shop) -> None:
    """The cut names versions from before the maintenance, which may end, and no later cut follows."""
    age(shop.spark, shop.root, days=9)
    shop.ends("after VACUUM 1", 0.0)
    shop.maintain(0.0)
    assert shop.check_all() == 1
    assert shop.folding.cycle() is None


@pytest.mark.spark
def test_the_docs_recipe_reads_tables_at_a_cut(shop: Shop) -> None:
    older = shop.control.latest_cut("silver")
    assert older is not None
    shop.step()
    recipe = (ROOT / "docs" / "silver" / "cuts.md").read_text()
    sql, loop = re.findall(r"```(?:sql|python)\n(.*?)```", recipe, re.DOTALL)[:2]
    sql = sql.replace("/lake/", f"{shop.path}/").replace("23803720", str(int(older.commit_lsn) + 3))
    shop.spark.sql(sql.partition(";")[0])
    exec(loop.replace("/lake/", f"{shop.path}/"), {"spark": shop.spark})  # noqa: S102 - our own docs
    for shape in shop.shapes:
        name = shape.table.silver_name
        rows = shop.spark.sql(f"SELECT id, count FROM `{name}`").collect()
        assert sorted(tuple(row) for row in rows) == sorted(shop.then[older.commit_lsn][name].items())
        shop.spark.catalog.dropTempView(name)


@pytest.mark.spark
def test_upkeep_in_a_run_lets_cycles_go_first(shop: Shop) -> None:
    maintenance = shop.maintenance(10 * DAY)
    calls = 0
    while maintenance._waiting or not calls:
        list(maintenance.when_it_pays())
        calls += 1
    version = shop.table().version()
    assert list(maintenance.when_it_pays()) == []
    assert shop.table().version() == version, "one round in half a minute"
    with writing(shop.lake, "silver"):
        maintaining = threading.Thread(target=shop.maintain, args=(10 * DAY,))
        maintaining.start()
        shop.step()
        assert maintaining.is_alive(), "it waits for the cycle"
    maintaining.join()
    shop.check_all()


@pytest.mark.spark
def test_the_log_keeps_the_oldest_named_version_readable(shop: Shop) -> None:
    target = shop.lake.sql("silver", "left")
    shop.spark.sql(f"ALTER TABLE {target} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    shop.step()
    folder = shop.root / "silver/left/_delta_log"
    assert cut_log(open_existing(shop.lake.uri("silver", "left")), 0) == 0
    result = shop.maintain(0.0)["left"]
    oldest = min(int(path.name[:20]) for path in folder.glob("*.json"))
    assert result.removed_log_entries > oldest > 0
    assert (folder / f"{oldest:020}.checkpoint.parquet").exists(), "what is left begins with a checkpoint"
    assert shop.check_all() == 1
    shop.step()
    shop.ends("after OPTIMIZE 1", 0.0)
    assert shop.check_all() == 1, "a file that had gone would not have come back"


@pytest.mark.spark
def test_a_table_named_by_older_cuts_is_maintained(spark: SparkSession, lake_path: str) -> None:
    lake = Lake(lake_path)
    control = ControlTables(lake)
    work = Maintenance(spark, lake, control, retention=DAY, documents=False)
    for lsn, tables in ((10, {"dropped": 3, "stays": 1}), (20, {"stays": 2})):
        control.record_cut(Cut("silver", Lsn(lsn), None, tables))
    assert work._tables() == [("silver", "dropped"), ("silver", "stays")]


@pytest.mark.spark
def test_a_decision_about_bronze_fails_alone(spark: SparkSession, lake_path: str) -> None:
    """Its error is closed once `bronze.retention` is removed; a lake that does not answer ends no run."""
    lake = Lake(lake_path)
    control = ControlTables(lake)
    BronzeWriter(lake).commit(10)
    control.record_cut(Cut("silver", Lsn(10), None, {"stays": 1}))

    def fails() -> None:
        raise OSError("no answer")

    with_retention = Maintenance(spark, lake, control, retention=DAY, documents=False, retain=fails)
    assert not with_retention.decide()
    with_retention._tables()
    assert [error.name for error in control.open_errors()] == ["bronze.changes"]
    without = Maintenance(spark, lake, control, retention=DAY, documents=False)
    with patch.object(control, "open_errors", side_effect=OSError("no answer")):
        assert without.decide()
        assert list(without.when_it_pays()) == []
    without._tables()
    assert control.open_errors() == []


@pytest.mark.spark
def test_a_rebuild_that_ended_before_heals_a_table(shop: Shop) -> None:
    cut = shop.step()
    maintained = shop.stored(shop.shapes[0].table.silver_name, COLUMNS, cut)
    target = shop.lake.sql("silver", "left")
    with signed(shop.spark):
        shop.spark.sql(f"UPDATE {target} SET a = 'wrong', id = IF(count > 1, -id, id)")
    damaged, pipeline = shop.shapes[0].table, pipeline_of(shop.path)
    with ending("before CUT 1", end), pytest.raises(EndedError):
        rebuild_silver(shop.spark, pipeline, [damaged], Output())
    assert shop.control.latest_cut("silver") == cut
    assert rebuild_silver(shop.spark, pipeline, [damaged], Output()) == []
    after = shop.control.latest_cut("silver")
    assert after is not None
    assert after.commit_lsn == cut.commit_lsn
    assert after.tables["left"] > cut.tables["left"]
    assert after.tables["right"] == cut.tables["right"]
    assert shop.stored(shop.shapes[0].table.silver_name, COLUMNS, after) == maintained
    assert shop.stored(shop.shapes[0].table.silver_name, COLUMNS, cut) == maintained, (
        "readers of the old version read on"
    )
    assert not (shop.root / SCRATCH).exists()
    assert shop.control.runs("silver", "left", limit=1)[0].reason == "smelt rebuild"
    shop.step()
    shop.check_all()


@pytest.mark.spark
def test_a_failed_upkeep_stops_nothing_and_is_repeated(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(maintenance, "_LOOK_EVERY", 0.0)
    shop.step()
    upkeep = shop.maintenance(0.0)

    def round_() -> dict[str, str]:
        list(upkeep.when_it_pays())
        while upkeep._waiting:
            list(upkeep.when_it_pays())
        assert {error.code for error in shop.control.open_errors()} <= {"upkeep-failed"}
        return {error.name: error.message for error in shop.control.open_errors()}

    damage = shop.root / "silver/left/_delta_log" / f"{shop.table().version() + 1:020}.json"
    damage.write_text('{"add": 1}')  # JSON, so that nobody takes the entry for a torn one
    try:
        with patch.object(shop.control, "tidy", side_effect=OSError("no answer")):
            messages = round_()
            assert set(messages) == {"control.cuts", "silver.left"}
            assert messages["control.cuts"] == "maintenance failed: OSError: no answer"
            assert set(round_()) == {"control.cuts", "silver.left"}
        assert set(upkeep._last) == {("silver", "left"), ("silver", "right")}
        assert upkeep._last["silver", "right"].removed_at > 0
        with pytest.raises(Failure, match=r"maintenance failed: silver\.left$") as ended:
            run_maintain(pipeline_of(shop.path), Output())
        assert ended.value.exit_code == 3
        said_there = capsys.readouterr()
        assert said_there.out.startswith("silver.right: ")
        assert "silver.left: " in said_there.err
        assert not standing_still(shop.lake, shop.settings(), ["silver"], ())
        tables = read_status(pipeline_of(shop.path)).tables
        assert {table.name: table.state for table in tables} == dict.fromkeys(
            ("public.left", "public.right"), "streaming"
        )
    finally:
        damage.unlink()
    assert round_() == {}
    assert upkeep.failed == {}
    assert shop.check_all() >= 1


def killed(shop: Shop, command: str, point: str) -> None:
    file = pipeline_of(shop.path).path
    arguments = [sys.executable, "-m", "tests.pipelines.killed_upkeep", str(file), command, point]
    ended = subprocess.run(arguments, check=False, capture_output=True, text=True, cwd=ROOT, timeout=110)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


@pytest.mark.torture
@pytest.mark.spark
def test_a_killed_rebuild_leaves_the_table_right(shop: Shop) -> None:
    shop.step()
    killed(shop, "rebuild", "during INSERT 2")
    shop.check_all()
    shop.step()
    assert rebuild_silver(shop.spark, pipeline_of(shop.path), [shop.shapes[0].table], Output()) == []
    shop.check_all()


@pytest.mark.torture
@pytest.mark.spark
def test_a_killed_upkeep_leaves_tables_right(shop: Shop) -> None:
    shop.maintain(0.0)
    shop.remove()
    killed(shop, "maintain", "during REORG 1")
    shop.check_all()
    shop.remove()
    result = shop.maintain(0.0)["left"]
    assert "purged" in result.done
    assert (result.before.deleted_rows > 0, result.after.deleted_rows) == (True, 0)
    shop.check_all()


@pytest.mark.spark
def test_what_bronze_lacks_cannot_be_derived(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    before = shop.table().version()
    shop.bronze.gap(shop.shapes[0], shop.lsn)
    assert rebuild_silver(shop.spark, pipeline_of(shop.path), [shop.shapes[0].table], Output()) == ["left"]
    assert "[rebuild-incomplete]" in (output := capsys.readouterr().err)
    assert "smelt snapshot FILE public.left" in output
    assert shop.table().version() == before


@pytest.mark.spark
def test_a_rebuild_keeps_rows_from_before_the_snapshot(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = kept.Stage(spark, str(tmp_path))
    pipeline = pipeline_of(str(tmp_path), "silver: {deletes: soft, history: [public.counted]}\n")
    silver = stage.silver()
    columns = {"counted": "id, count, big, _commit_lsn, _commit_ts, _deleted"}
    columns["counted__history"] = (
        "id, count, big, _commit_lsn, _valid_from_lsn, coalesce(_valid_to_lsn, 0), _valid_from, "
        "coalesce(_valid_to, timestamp '2000-01-01')"
    )

    stage.write()
    silver.cycle()
    # A copy that has all rows but one, and one of them changed: what ended before it is in silver alone.
    stage.lsn += 5
    removed, changed = sorted(stage.rows)[:2]
    stage.gone[removed] = stage.rows.pop(removed)
    stage.rows[changed] += 1
    rows = [[str(key), str(count), f"B{key}"] for key, count in stage.rows.items()]
    stage.bronze.snapshot(kept.SHAPE, stage.lsn, rows)
    stage.past[stage.lsn] = dict(stage.rows)
    stage.lsn += 5
    stage.write()
    before = silver.cycle()
    stage.check(before)
    assert before is not None
    maintained = {name: stage.read(name, listed, before) for name, listed in columns.items()}
    for name in columns:
        lost = "id = IF(id % 2 = 0, -id, id)"  # rows that ended are those of the version before
        spark.sql(f"UPDATE {stage.lake.sql('silver', name)} SET big = 'wrong', {lost}")
    assert rebuild_silver(spark, pipeline, [kept.SHAPE.table], Output()) == []
    after = stage.control.latest_cut("silver")
    assert after is not None
    for name, listed in columns.items():
        assert stage.read(name, listed, after) == maintained[name], name
    # With another shape since, those from before it could not be kept as they are.
    counted_shape = relation(
        "counted", [("id", INT), ("count", INT), ("big", TEXT), ("n", INT)], ["id"], relation_id=1
    )
    stage.lsn += 10
    stage.bronze.relations([replace(counted_shape, from_lsn=Lsn(stage.lsn))])
    stage.bronze.add(stage.lsn, [change(counted_shape, "insert", new=["7", "0", "B7", "1"])])
    stage.bronze.commit(stage.lsn)
    stage.rows[7] = 0
    stage.past[stage.lsn] = dict(stage.rows)
    cut = silver.cycle()
    stage.check(cut)
    assert rebuild_silver(spark, pipeline, [kept.SHAPE.table], Output()) == list(columns)
    assert capsys.readouterr().err.count("[rebuild-incomplete]") == 2
    assert stage.control.latest_cut("silver") == cut
    # What cannot be rebuilt is left as it is, also where others wrote to it.
    spark.sql(f"DELETE FROM {stage.lake.sql('silver', 'counted')} WHERE _deleted")
    version = DeltaTable(stage.lake.uri("silver", "counted")).version()
    assert "counted" in rebuild_silver(spark, pipeline, [kept.SHAPE.table], Output())
    assert DeltaTable(stage.lake.uri("silver", "counted")).version() == version


def test_upkeep_pays_for_many_files_or_holes() -> None:
    assert not Files().many_small
    assert not Files().many_deleted_rows, "an empty table has none"
    assert not Files(count=23, small=23, size=9, rows=100, deleted_rows=20).many_small
    assert not Files(count=23, small=23, size=9, rows=100, deleted_rows=20).many_deleted_rows
    assert Files(count=24, small=24, size=9, rows=100, deleted_rows=0).many_small
    assert Files(count=1, small=1, size=9, rows=100, deleted_rows=21).many_deleted_rows


@pytest.mark.spark
def test_a_refused_rebuild_leaves_other_tables_alone(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two cases: a history with a second table's name, and a type that does not fit a column's text."""
    lake = Lake(str(tmp_path))
    bronze, control = BronzeWriter(lake), ControlTables(lake)
    shapes = [
        relation(name, [("id", INT), ("note", TEXT)], ["id"], relation_id=at)
        for at, name in enumerate(("orders", "orders__history", "overridden", "plain"), 1)
    ]
    bronze.relations(shapes)
    for shape in shapes:
        bronze.snapshot(shape, 10, [["1", shape.table.name]])
    bronze.commit(20)
    silver = Silver(spark, lake, SilverSettings(), control)
    silver.cycle()
    silver.close()
    before = {
        shape.table.name: DeltaTable(lake.uri("silver", shape.table.name)).version() for shape in shapes
    }
    settings_text = "silver: {history: [public.orders], types: {public.overridden.note: array<string>}}\n"
    names = [shape.table for shape in shapes]
    failed = rebuild_silver(spark, pipeline_of(str(tmp_path), settings_text), names, Output())
    assert failed == ["orders", "orders__history", "overridden"]
    output = capsys.readouterr().err
    assert "which belongs to the history of public.orders" in output
    assert "public.overridden" in output
    after = {shape.table.name: DeltaTable(lake.uri("silver", shape.table.name)).version() for shape in shapes}
    assert after.pop("plain") > before.pop("plain")
    assert after == before
    rows = rows_of(spark, f"SELECT id, note FROM {lake.sql('silver', 'orders__history')}")
    assert [tuple(row) for row in rows] == [(1, "orders__history")]
    assert {error.code for error in control.open_errors()} == {"silver-settings-clash", "type-override"}
