"""Changes that PostgreSQL makes without an event, seen from silver: no cut shows a state that never existed.

Silver runs at the worst moment: the reader has detected such a change, the repairing copy is delayed, and
the stream continues with rows that were written after the change.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.config.sections import BronzeSettings
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.position import read_position
from tests.bronze.running import Running
from tests.fix_postgres import drop_database, make_database
from tests.patience import wait_for
from tests.pipelines.whole.test_end_to_end import Flow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Cut

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(600)]

CALM = "calm"
SILENT = {
    "retyped": "ALTER TABLE retyped ALTER a TYPE bigint USING a * 1000",
    "rewritten": "ALTER TABLE rewritten ALTER a TYPE int USING a + 1",
    "volatile": "ALTER TABLE volatile ADD v float8 DEFAULT random()",
    "parts": "ALTER TABLE parts ATTACH PARTITION with_rows FOR VALUES FROM (100) TO (200)",
    "without": "ALTER TABLE without DETACH PARTITION without_first",
}
SCHEMA = [
    *(
        f"CREATE TABLE {name} (id int PRIMARY KEY, a int)"
        for name in (CALM, "retyped", "rewritten", "volatile", "with_rows")
    ),
    "CREATE TABLE parts (id int PRIMARY KEY, a int) PARTITION BY RANGE (id)",
    "CREATE TABLE parts_first PARTITION OF parts FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE without (id int PRIMARY KEY, a int) PARTITION BY RANGE (id)",
    "CREATE TABLE without_first PARTITION OF without FOR VALUES FROM (0) TO (50)",
    "CREATE TABLE without_second PARTITION OF without FOR VALUES FROM (50) TO (100)",
    *(f"INSERT INTO {name} SELECT i, i FROM generate_series(1, 9) i" for name in (CALM, *SILENT)),
    "INSERT INTO with_rows SELECT i, i FROM generate_series(101, 105) i",
]
LATER = [f"INSERT INTO {name} (id, a) VALUES (60, 60)" for name in (CALM, *SILENT)]


@pytest.fixture(scope="module")
def flow(spark: SparkSession, server_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flow]:
    dsn = make_database(server_dsn)
    flow = Flow(spark, dsn, Lake(path=str(tmp_path_factory.mktemp("silent") / "lake")))
    flow.source = flow.source.model_copy(update={"exclude": ["public.with_rows", "public.without_first"]})
    flow.play(SCHEMA)
    yield flow
    flow.connection.close()
    drop_database(server_dsn, dsn)


@pytest.fixture(scope="module")
def cuts(flow: Flow) -> list[Cut]:
    """Return the cuts before the changes, during the delayed copies, and after the copies."""
    before = flow.carry()
    flow.play([*SILENT.values(), *LATER])
    stopped, go_on = threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "snapshot-locked":
            stopped.set()
            assert go_on.wait(300)

    row = flow.connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    assert row is not None
    now, lake_path = Lsn.parse(row[0]), str(flow.lake.path)
    # An idle reader, too, says soon how far it is.
    bronze = BronzeSettings(flush_interval=0.05, heartbeat=0.2)
    with Running(flow.source, lake_path, pipeline="e2e", reached=hold, bronze=bronze):
        try:
            wait_for(stopped.is_set)
            wait_for(lambda: (place := read_position(flow.lake)) is not None and place.frontier + 1 >= now)
            between = flow.silver.cycle()
            assert between is not None
            assert between.commit_lsn + 1 >= now
            flow.differences |= differences(flow, between)
        finally:
            go_on.set()
    return [before, between, flow.carry()]


def differences(flow: Flow, cut: Cut) -> dict[tuple[int, str], str]:
    """Compare every table in a cut with the source, which has not changed since the cut."""
    tables = [TableName("public", name) for name in cut.tables]
    texts = {table.name: flow.difference(table, cut) for table in tables}
    return {(cut.commit_lsn, name): text for name, text in texts.items() if text}


def test_silently_changed_table_leaves_cuts_until_copied(flow: Flow, cuts: list[Cut]) -> None:
    assert [set(cut.tables) for cut in cuts] == [{CALM, *SILENT}, {CALM}, {CALM, *SILENT}]
    assert flow.differences == {}


def test_after_the_copy_silver_is_the_source(flow: Flow, cuts: list[Cut]) -> None:
    assert differences(flow, cuts[-1]) == {}
    assert flow.control.open_errors() == []
