"""`smelt snapshot` of a healthy table while silver folds: the rows arrive, and no cut mixes old and new."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.config.sections import BronzeSettings
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.store.gaps import request_snapshots
from deltasmelt.bronze.store.position import read_position
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.settings import SilverSettings
from tests.bronze.replaying import current_lsn, execute, read_snapshot, source_of
from tests.bronze.running import Running
from tests.patience import wait_for
from tests.silver.stored import cells_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Cut
    from deltasmelt.bronze.lsn import Lsn

pytestmark = [pytest.mark.postgres, pytest.mark.spark]
ITEMS = TableName("public", "items")


class Folding:
    """Silver in parallel with a running reader."""

    def __init__(self, spark: SparkSession, lake_path: str) -> None:
        self.lake = Lake(lake_path)
        self.spark = spark
        self.control = ControlTables(self.lake)
        self.silver = Silver(spark, self.lake, SilverSettings(history=["public.items"]), self.control)

    def rows(self, table: str) -> list[tuple[object, ...]]:
        return cells_at(self.spark, self.lake, table, "id, note")

    def cycle_past(self, lsn: Lsn) -> Cut:
        """Run one cycle after bronze has everything up to an LSN; return the newest cut."""
        wait_for(lambda: (position := read_position(self.lake)) is not None and position.frontier >= lsn, 40)
        self.silver.cycle()
        cut = self.control.latest_cut("silver")
        assert cut is not None
        assert cut.commit_lsn >= lsn
        return cut


def test_table_taken_again_gets_its_snapshot(spark: SparkSession, database: str, lake_path: str) -> None:
    source = source_of(database, timing=Timing(poll_marks=0.1))
    execute(
        source,
        "CREATE TABLE items (id int PRIMARY KEY, note text)",
        "INSERT INTO items SELECT i, 'first' FROM generate_series(1, 4) i",
        "CREATE TABLE others (id int PRIMARY KEY, note text)",
    )
    copying, go_on = threading.Event(), threading.Event()
    go_on.set()

    def hold(point: str) -> None:
        if point == "snapshot-exported":
            copying.set()
            assert go_on.wait(120)

    def end() -> Lsn:
        with connect(source) as connection:
            return current_lsn(connection)

    folding = Folding(spark, lake_path)
    # An idle reader, too, soon records its position.
    bronze = BronzeSettings(flush_interval=0.05, heartbeat=0.2)
    with Running(source, lake_path, reached=hold, bronze=bronze):
        wait_for(lambda: read_snapshot(folding.lake, ITEMS) is not None, 40)
        execute(source, "INSERT INTO others VALUES (1, 'o')")
        cut = folding.cycle_past(end())
        assert set(cut.tables) == {"items", "items__history", "others"}
        # The copy must restore rows that silver lost and that are in no event.
        spark.sql(f"DELETE FROM {folding.lake.sql('silver', 'items')} WHERE id IN (1, 2)")
        copying.clear()
        go_on.clear()
        request_snapshots(f"{lake_path}/bronze/changes", [ITEMS], end())
        try:
            assert copying.wait(40)
            execute(source, "UPDATE items SET note = 'while copied' WHERE id = 3")
            cut = folding.cycle_past(end())
            assert set(cut.tables) == {"others"}, "what is being replaced is in no cut"
            execute(source, "DELETE FROM items WHERE id = 4")
            folding.cycle_past(end())
        finally:
            go_on.set()
        copy = read_snapshot(folding.lake, ITEMS)
        wait_for(lambda: read_snapshot(folding.lake, ITEMS) != copy, 40)
        execute(source, "INSERT INTO items VALUES (5, 'after')")
        cut = folding.cycle_past(end())
    assert set(cut.tables) == {"items", "items__history", "others"}
    assert folding.control.open_errors() == []
    assert folding.rows("items") == [(1, "first"), (2, "first"), (3, "while copied"), (5, "after")]
    ended = [row for row in folding.rows("items__history") if row[0] in (3, 4)]
    assert ended == [(3, "first"), (3, "while copied"), (4, "first")], "a request is no gap in a history"
    folding.silver.close()
