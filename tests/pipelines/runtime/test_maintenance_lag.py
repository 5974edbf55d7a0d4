"""Gold far behind silver keeps all needed silver versions, also against foreign cleanups."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from deltasmelt.bronze.lake.control import Cut, Run
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.folder_table import FolderTable
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines.runtime.log_entries import cut_log, hours_to_state, positions
from deltasmelt.pipelines.runtime.maintenance import Maintenance, expired
from deltasmelt.silver.spark.tuning import settings
from tests.pipelines.aged import age
from tests.pipelines.runtime.test_maintenance import DAY, Shop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Layer


@pytest.mark.spark
def test_a_vacuum_by_hand_spares_a_lagging_gold(spark: SparkSession, tmp_path: Path) -> None:
    with patch("deltasmelt.silver.run.step_runner._TINY_TARGET", 0):
        shop = Shop(spark, str(tmp_path))
        first = shop.step()
        shop.control.record_cut(Cut("gold", first.commit_lsn, first.commit_ts, {}))
        shop.step()
        assert shop.maintain(10 * DAY)["left"].done == ["clustered"], "the files of both cuts are replaced"
        age(spark, shop.root, days=3)
        shop.step()
        upkeep = Maintenance(spark, shop.lake, shop.control, retention=DAY, documents=True)
        list(upkeep.all_tables())
        age(spark, shop.root, hours=22)
        # VACUUM would list the table's one folder by 10,000 tasks.
        with settings(spark, {"spark.sql.sources.parallelPartitionDiscovery.parallelism": "2"}):
            spark.sql(f"VACUUM {shop.lake.sql('silver', 'left')}").collect()
    assert shop.control.cuts("silver")[0].commit_lsn == first.commit_lsn
    assert shop.check_all() >= 2


def test_a_table_states_a_day_more_in_time() -> None:
    hour = 3600.0
    assert hours_to_state(0.0, None) == 24
    assert hours_to_state(168 * hour, None) == 192
    assert hours_to_state(180 * hour, 192) == 192
    assert hours_to_state(180 * hour + 1, 192) == 205, "less than half a day would be left"
    assert hours_to_state(144 * hour, 192) == 192
    assert hours_to_state(143 * hour, 192) == 167, "more than two days too many"
    hours_set: list[int] = []
    for lag in range(24 * 14):
        hours_set.append(hours_to_state((168 + lag) * hour, hours_set[-1] if hours_set else None))
    assert len(set(hours_set)) < 28, "a need that grows by the hour is said twice a day"
    for every in (1, 6, 12, 13, 24):
        current = None
        for need in range(168, 168 + 24 * 14, every):
            current = hours_to_state(need * hour, current)
            assert current >= need + every, "it is enough until the next upkeep"


def test_documents_stand_at_marks_and_newest_cuts(lake_path: str) -> None:
    """The documents: with an error, rewritten by maintenance, and removed with its table."""
    lake = Lake(lake_path)
    control = ControlTables(lake)
    control.record_cut(Cut("gold", Lsn(10), None, {"failed": 0, "joined": 0, "removed": 0}))
    control.record_cut(Cut("gold", Lsn(30), None, {"joined": 1}))
    for name, lsn in (("failed", 10), ("joined", 20)):
        mark = CommitProperties(app_transactions=[Transaction("deltasmelt.gold", lsn)])
        write_deltalake(lake.uri("gold", name), pa.table({"id": [1]}), commit_properties=mark)
        write_deltalake(lake.uri("gold", name), pa.table({"id": [2]}), mode="append")
    assert positions(lake, control) == {Lsn(10), Lsn(20), Lsn(30)}


class Days:
    """A lake with logs and cuts of many days; each commit writes a single row."""

    def __init__(self, path: str) -> None:
        self.lake, self.lsn = Lake(path), 10
        self.control = ControlTables(self.lake)
        self.versions = dict.fromkeys(("orders", "countries", "busy", "quiet", "failing"), -1)
        self.marks: dict[str, Lsn] = {}

    def write(self, layer: Layer, name: str) -> None:
        """Commit once, with a mark if the table is a document."""
        app = CommitProperties(app_transactions=[Transaction("deltasmelt.gold", self.lsn)])
        write_deltalake(
            self.lake.uri(layer, name),
            pa.table({"id": [self.lsn]}),
            mode="overwrite",
            commit_properties=app if layer == "gold" else None,
        )
        self.versions[name] = self.versions.get(name, -1) + 1
        self.marks[name] = Lsn(self.lsn)

    def cycle(self, now: datetime, silver: Sequence[str], gold: Sequence[str]) -> None:
        """Record silver's and gold's cut, and a document's run."""
        cuts: tuple[tuple[Layer, Sequence[str]], ...] = (("silver", silver), ("gold", gold))
        for layer, names in cuts:
            tables = {name: self.versions[name] for name in names}
            marks = {name: self.marks[name] for name in names}
            self.control.record_cut(Cut(layer, Lsn(self.lsn), now, tables, now, marks=marks))
        self.control.record_runs([Run("gold", "busy", "incremental", None, Lsn(self.lsn), started_at=now)])

    def maintain(self, now: datetime) -> Counter[str]:
        """Expire control rows and shorten logs as maintenance does; count the remains by name."""
        control = self.control
        expired(self.lake, control, now, 2 * DAY, documents=True)
        totals: Counter[str] = Counter()
        layers: tuple[Layer, ...] = ("silver", "gold")
        for layer in layers:
            for name in control.names(layer):
                table, oldest = FolderTable(self.lake.uri(layer, name)), control.oldest_version(layer, name)
                assert oldest is not None
                table.create_checkpoint()
                cut_log(table, oldest)
                totals[f"pinned versions of {name}"] = table.version() - oldest
                totals[f"log of {name}"] = len(list(Path(table.table_uri, "_delta_log").glob("*.json")))
            totals[f"names of {layer}"] = len(control.names(layer))
            totals[f"cuts of {layer}"] = len(control.cuts(layer))
        totals["runs"] = len(control.runs(limit=10_000))
        return totals


def test_eight_days_leave_no_more_than_four(tmp_path: Path) -> None:
    """A busy document, a quiet document that every second cut omits, and a document failing from day two.

    Each day has a new silver table, dropped on the next day. The retention of cuts is two days.
    """
    days, counts = Days(str(tmp_path)), []
    for name in ("countries", "quiet", "failing"):
        days.write("silver" if name == "countries" else "gold", name)
    for day in range(8):
        days.write("silver", f"of_day_{day}")
        for turn in range(2):
            now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day, hours=9 * turn)
            days.write("silver", "orders")
            days.write("gold", "busy")
            gold = ["busy", *(["quiet"] if turn else []), *(["failing"] if day < 2 else [])]
            days.cycle(now, ["orders", "countries", f"of_day_{day}"], gold)
            days.lsn += 10
        counts.append(days.maintain(now))
    first = Counter(
        {name: max(count[name] for count in counts[:4]) for count in counts[:4] for name in count}
    )
    grown = {
        name: number for name, number in counts[-1].items() if "of_day" not in name and number > first[name]
    }
    assert not grown
    assert not [name for name in counts[-1] if "failing" in name], "no cut names what failed days ago"
    assert counts[-1]["names of silver"] <= 2 + 4
    # The quiet document goes on from the newest cut that names it, at once.
    last = days.control.last_named("gold", "quiet")
    assert last is not None
    assert last.commit_lsn == days.lsn - 10
    assert days.control.latest_cut("silver", at=last.commit_lsn) is not None
