"""A session starts when needed: cycles that need a session, and failures of the session itself. No Spark."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.changes_table import commit_marks
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.marks import STREAM_APP
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.run.failed_tables import FailedTables
from deltasmelt.silver.run.read_only import UnavailableTables
from deltasmelt.silver.run.stored import SILVER_APP
from deltasmelt.silver.schema.ddl import FEED
from deltasmelt.silver.settings import SilverSettings
from deltasmelt.silver.spark.failure_scope import answers
from deltasmelt.silver.spark.lazy_session import LazySession
from deltasmelt.silver.spark.tuning import GUARDED
from tests.silver.histories import INT, TEXT, BronzeWriter, change, relation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS = relation("orders", [("id", INT), ("note", TEXT)], ["id"], relation_id=1)
NO_JAVA = ConfigurationError("Java is missing", code="java-missing")


class Starts:
    """Counts starts; each start fails with an error that, as a table's error, would stop the table."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> SparkSession:
        self.count += 1
        raise NO_JAVA


class Folded:
    """A bronze of one table, and silver folded up to LSN 20."""

    def __init__(self, path: str) -> None:
        self.lake, self.starts = Lake(path), Starts()
        self.control, self.bronze = ControlTables(self.lake), BronzeWriter(self.lake)
        self.bronze.relations([ORDERS])
        self.bronze.snapshot(ORDERS, 10, [["1", "a"]])
        self.bronze.commit(20)
        fields = [("id", pa.int32()), ("note", pa.string())]
        columns = [
            pa.field(name, of, metadata={"comment": f"attribute {at}"})
            for at, (name, of) in enumerate(fields, 1)
        ]
        rows = pa.Table.from_pylist([{"id": 1, "note": "a"}], schema=pa.schema(columns))
        marks = CommitProperties(app_transactions=[Transaction(SILVER_APP, 20)])
        uri = self.lake.uri("silver", "orders")
        write_deltalake(uri, rows, commit_properties=marks, configuration={FEED: "true"})
        self.control.record_cut(Cut("silver", Lsn(20), None, {"orders": 0}, marks={"orders": Lsn(20)}))
        self.silver = Silver(LazySession(self.starts), self.lake, SilverSettings(), self.control)

    def idle(self, frontier: int) -> None:
        """Record, like the reader, that the stream advanced without a change."""
        uri = self.lake.uri("bronze", CHANGES)
        commit_marks(delta.open_existing(uri), [Transaction(STREAM_APP, frontier)])


def test_unchanged_cycle_records_cut_without_starting_spark(lake_path: str) -> None:
    folded = Folded(lake_path)
    assert folded.silver.cycle() is None
    folded.idle(30)
    cut = folded.silver.cycle()
    assert cut is not None
    assert (cut.commit_lsn, cut.tables) == (Lsn(30), {"orders": 0})
    assert folded.control.latest_cut("silver") == cut
    assert folded.starts.count == 0


def test_sparkless_cycle_notices_foreign_and_restored_tables(
    lake_path: str,
) -> None:
    folded = Folded(lake_path)
    uri = folded.lake.uri("silver", "orders")
    rows = DeltaTable(uri).to_pyarrow_table()
    for _ in range(2):
        write_deltalake(uri, rows, mode="append")
    folded.idle(30)
    cut = folded.silver.cycle()
    assert cut is not None
    assert cut.tables == {}, "it is in no cut"
    (error,) = folded.control.open_errors()
    assert (error.code, error.name) == ("table-written-by-others", "public.orders")
    assert "version 1 (WRITE)" in error.message
    for version in (1, 2):  # put back as it was, beside a silver that runs
        Path(uri, "_delta_log", f"{version:020}.json").unlink()
    folded.silver.close()
    second_silver = Silver(LazySession(folded.starts), folded.lake, SilverSettings(), folded.control)
    cut = second_silver.cycle()
    assert cut is not None
    assert (cut.commit_lsn, cut.tables, cut.marks) == (Lsn(30), {"orders": 0}, {"orders": 20})
    assert folded.control.open_errors() == []
    assert second_silver.cycle() is None
    assert folded.starts.count == 0


@pytest.mark.parametrize("what", ["a change", "a new table", "a table that was removed"])
def test_work_starts_spark_without_blaming_tables(lake_path: str, what: str) -> None:
    """A failed start of Spark is no error of a table."""
    folded = Folded(lake_path)
    folded.idle(30)
    folded.silver.cycle()
    if what == "a change":
        folded.bronze.add(40, [change(ORDERS, "insert", new=["2", "b"])])
    elif what == "a new table":
        new = relation("new", [("id", INT)], ["id"], relation_id=2, from_lsn=35)
        folded.bronze.relations([new])
        folded.bronze.snapshot(new, 35, [["1"]])
    else:
        shutil.rmtree(folded.lake.uri("silver", "orders"))
        folded.silver = Silver(LazySession(folded.starts), folded.lake, SilverSettings(), folded.control)
    folded.bronze.commit(50)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="Java is missing"):
            folded.silver.cycle()
    assert folded.starts.count == 1
    assert folded.control.open_errors() == []
    cut = folded.control.latest_cut("silver")
    assert cut is not None
    assert cut.commit_lsn == Lsn(30)


@pytest.mark.parametrize("error", [NO_JAVA, RuntimeError("it ended"), OSError(12, "no memory")], ids=repr)
def test_failed_start_inside_table_is_raised_unchanged(lake_path: str, error: Exception) -> None:
    def start() -> SparkSession:
        raise error

    control, lazy = ControlTables(Lake(lake_path)), LazySession(start)
    failed, undecided = FailedTables(lazy, Lake(lake_path), control), dict[TableName, Exception]()
    assert answers(lazy), "what was never asked has failed nobody"
    with (
        pytest.raises(type(error)) as raised,
        failed.isolated(TableName("public", "orders"), undecided),
    ):
        lazy.get()
    assert raised.value is error
    assert (undecided, control.open_errors(), failed.tables) == ({}, [], frozenset())
    assert not answers(lazy)


@pytest.mark.parametrize("kind", [FailedTables, UnavailableTables])
def test_guarded_setting_is_no_tables_error(lake_path: str, kind: type[FailedTables]) -> None:
    guarded = DefiniteError("the server forbids every write", code=GUARDED)
    lazy, control = LazySession(lambda: cast("SparkSession", None)), ControlTables(Lake(lake_path))
    failed, undecided = (
        kind(cast("SparkSession", lazy), Lake(lake_path), control),
        dict[TableName, Exception](),
    )
    with pytest.raises(DefiniteError), failed.isolated(TableName("public", "orders"), undecided):
        raise guarded
    assert (undecided, control.open_errors(), failed.tables) == ({}, [], frozenset())
    assert getattr(failed, "reasons", {}) == {}


def test_session_is_started_once_by_first_caller() -> None:
    numbers: list[int] = []
    session = cast("SparkSession", object())

    def start() -> SparkSession:
        numbers.append(1)
        time.sleep(0.05)
        return session

    lazy, all_sessions = LazySession(start), list[Any]()
    lazy.prepare()
    threads = [threading.Thread(target=lambda: all_sessions.append(lazy.get())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all_sessions == [session] * 4
    assert numbers == [1]
    assert lazy.started
