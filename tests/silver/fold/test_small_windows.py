"""In small windows silver reads bronze once, only matches known rows, and rewrites small files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from deltalake import DeltaTable

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.run.bronze_window import Later, Source, files_after
from deltasmelt.silver.settings import SilverSettings
from tests.fix_spark import rows_of, signed
from tests.silver.histories import INT, TEXT, BronzeWriter, change, relation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.shapes import Relation

pytestmark = pytest.mark.spark

COLUMNS = (("id", INT), ("note", TEXT), ("big", TEXT))
robbed = relation("robbed", COLUMNS, ["id"], relation_id=1)
beyond_repair = relation("beyond_repair", COLUMNS, ["id"], relation_id=2)
grows = relation("grows", COLUMNS, ["id"], relation_id=3)


class Stage:
    """A lake of three tables with fifty rows each; every window is a cycle."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark, self.lake = spark, Lake(path=path)
        self.bronze = BronzeWriter(self.lake)
        self.bronze.relations([robbed, beyond_repair, grows])
        for shape in (robbed, beyond_repair, grows):
            self.bronze.snapshot(shape, 10, [[str(key), "first", "b" * 10] for key in range(1, 51)])
        self.bronze.commit(10)
        self.control = ControlTables(self.lake)
        self.silver = Silver(spark, self.lake, SilverSettings(), self.control)
        self.silver.cycle()

    def window(self, lsn: int, *changes: dict[str, Any]) -> None:
        self.bronze.add(lsn, changes)
        self.bronze.commit(lsn)
        self.silver.cycle()

    def rows(self, shape: Relation) -> dict[int, tuple[str, str]]:
        table = self.lake.sql("silver", shape.table.silver_name)
        stored = rows_of(self.spark, f"SELECT id, note, big FROM {table}")
        assert len({row["id"] for row in stored}) == len(stored)
        return {row["id"]: (row["note"], row["big"]) for row in stored}

    def take_away(self, shape: Relation, key: int) -> None:
        table = self.lake.sql("silver", shape.table.silver_name)
        with signed(self.spark):
            self.spark.sql(f"DELETE FROM {table} WHERE id = {key}")

    def table(self, shape: Relation) -> DeltaTable:
        return DeltaTable(self.lake.uri("silver", shape.table.silver_name))


def update(shape: Relation, key: int, note: str, **cells: Any) -> dict[str, Any]:
    return change(shape, "update", new=[str(key), note, "c"], **cells)


@pytest.fixture(scope="module")
def stage(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    built = Stage(spark, str(tmp_path_factory.mktemp("small") / "lake"))
    yield built
    built.silver.close()


def test_removed_row_returns_with_next_update(stage: Stage) -> None:
    stage.take_away(robbed, 7)
    stage.take_away(beyond_repair, 7)
    left_out = change(beyond_repair, "update", new=["7", "second", None], unchanged=["big"])
    stage.window(20, update(robbed, 7, "second"), update(robbed, 8, "second"), left_out)
    expected = dict.fromkeys(range(1, 51), ("first", "b" * 10)) | dict.fromkeys((7, 8), ("second", "c"))
    assert stage.rows(robbed) == expected
    errors = {error.name: error.code for error in stage.control.open_errors()}
    assert errors == {"public.beyond_repair": "value-missing"}, "its value is nowhere"
    cut = stage.control.latest_cut("silver")
    assert cut is not None
    assert "beyond_repair" not in cut.tables
    assert cut.tables["robbed"] == stage.table(robbed).version()


def test_merge_of_known_rows_inserts_nothing(stage: Stage) -> None:
    """Only a window with new rows has an insert clause in its MERGE."""
    stage.window(30, update(robbed, 9, "third"))
    newest = stage.table(robbed).history(1)[0]
    assert json.loads(newest["operationParameters"]["notMatchedPredicates"]) == []
    assert newest["operationMetrics"]["numSourceRows"] == "1"
    moved = change(robbed, "update", new=["52", "moved", "m"], old=["51", None, None], old_is_key=True)
    insert = change(robbed, "insert", new=["51", "new", "n"])
    gone = change(robbed, "delete", old=["1", None, None], old_is_key=True)
    stage.window(31, update(robbed, 10, "third"), insert, moved, gone)
    newest = stage.table(robbed).history(1)[0]
    assert len(json.loads(newest["operationParameters"]["notMatchedPredicates"])) == 1
    rows = stage.rows(robbed)
    assert set(rows) == {*range(2, 51), 52}
    assert rows[9] == rows[10] == ("third", "c")
    assert rows[52] == ("moved", "m")


def test_small_file_is_rewritten_without_deletion_vector(stage: Stage) -> None:
    for number, key in enumerate((1, 2), 40):
        stage.window(number, update(grows, key, f"at {number}"))
        newest = stage.table(grows).history(1)[0]["operationMetrics"]
        assert newest["numTargetDeletionVectorsAdded"] == "0"
        assert newest["numTargetRowsCopied"] == "49"
        assert len(stage.table(grows).file_uris()) == 1
    assert stage.rows(grows)[2] == ("at 41", "c")


def test_small_cycle_runs_few_jobs(stage: Stage) -> None:
    """The fold is one job, Delta's MERGE six; no job counts the changes."""
    jobs = stage.spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs
    before = jobs()
    stage.window(50, update(grows, 3, "alone"))
    assert jobs() - before <= 7
    before = jobs()
    stage.window(51, change(grows, "snapshot", new=["60", "no end", None]))
    assert jobs() == before, "rows of a copy that has not ended"


def test_large_window_is_read_in_place(stage: Stage) -> None:
    with patch("deltasmelt.silver.run.bronze_window._ROWS", 1):
        stage.window(60, update(grows, 4, "direct"), update(grows, 5, "direct"))
    assert stage.rows(grows)[4] == stage.rows(grows)[5] == ("direct", "c")


@pytest.mark.parametrize("files", [0, 32], ids=["by Delta", "from the files"])
def test_cached_window_is_stable_while_bronze_continues(
    spark: SparkSession, tmp_path: object, files: int
) -> None:
    lake = Lake(path=f"{tmp_path}/lake")
    writer = BronzeWriter(lake)
    for lsn in (20, 30):
        writer.add(lsn, [update(robbed, lsn, "kept"), update(grows, lsn, "of another table")])
        writer.commit(lsn)
    bronze = open_existing(lake.uri("bronze", CHANGES))
    assert [files_after(bronze, Lsn(lsn)).rows for lsn in (0, 20, 30)] == [4, 2, 0]
    assert files_after(bronze, Lsn(30)) == Later((), 0, 0)
    source = Source(lake)
    with patch("deltasmelt.silver.run.bronze_window._FILES", files):
        later = files_after(bronze, Lsn(10))
        kept_changes = source.keep(
            spark, bronze, later, relations=[robbed.relation_id], low=Lsn(10), end=Lsn(30), small=True
        )
    writer.add(25, [update(robbed, 25, "later")])
    writer.commit(40)
    second_session = spark.newSession()
    for session in (spark, second_session, second_session):
        rows = session.sql(
            f"SELECT new[0] AS id, new[1] AS note FROM {kept_changes} ORDER BY commit_lsn"
        ).collect()
        assert [tuple(row) for row in rows] == [("20", "kept"), ("30", "kept")]
    source.close()
    assert not spark.catalog.tableExists(kept_changes)


def test_files_of_bronze_say_whose_rows_they_hold(tmp_path: object) -> None:
    lake = Lake(path=f"{tmp_path}/lake")
    writer = BronzeWriter(lake)
    copied, growing_id = robbed.relation_id, grows.relation_id
    for lsn, rows in (
        (20, [change(robbed, "snapshot", new=[str(key), "copied", "c"]) for key in range(3)]),
        (20, [change(robbed, "snapshot", new=["3", "copied", "c"]), update(grows, 1, "beside")]),
        (30, [update(robbed, 1, "changed")]),
    ):
        writer.add(lsn, rows)
        writer.commit(lsn)
    bronze = open_existing(lake.uri("bronze", CHANGES))
    assert files_after(bronze, Lsn(10)).snapshots == {copied: 3}
    assert files_after(bronze, Lsn(10), Lsn(15)).snapshots == {}
    assert files_after(bronze, Lsn(20)).snapshots == {}
    assert [
        files_after(bronze, Lsn(10), None, {relation_id}).rows for relation_id in (copied, growing_id)
    ] == [6, 2]
    assert files_after(bronze, Lsn(10), None, {growing_id}).snapshots == {}


def test_how_much_is_little() -> None:
    assert Later((), 100_000, 2**20).is_small
    assert not Later((), 100_001, 2**20).is_small
    assert not Later((), 1, 2**30).is_small
