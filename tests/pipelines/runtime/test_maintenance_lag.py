"""A gold that stands far behind keeps what it needs of silver, also from whoever else cleans up."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from bronze.lake.control import Cut
from bronze.lake.control_tables import ControlTables
from bronze.lake.location import Lake
from bronze.lsn import Lsn
from pipelines.runtime.maintenance import Maintenance
from pipelines.runtime.stated_retention import hours_to_state, positions
from tests.pipelines.aged import age
from tests.pipelines.runtime.test_maintenance import DAY, Shop

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_a_vacuum_by_hand_within_a_day_leaves_the_files_that_a_lagging_gold_needs(
    spark: SparkSession, tmp_path: Path
) -> None:
    with patch("silver.run.step_runner._TINY_TARGET", 0):
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
        spark.sql(f"VACUUM {shop.lake.sql('silver', 'left')}").collect()
    assert shop.control.cuts("silver")[0].commit_lsn == first.commit_lsn
    assert shop.check_all() >= 2


def test_a_table_says_a_day_more_than_is_needed_and_says_it_again_before_that_is_used_up() -> None:
    hour = 3600.0
    assert hours_to_state(0.0, None) == 24
    assert hours_to_state(168 * hour, None) == 192
    assert hours_to_state(180 * hour, 192) == 192
    assert hours_to_state(180 * hour + 1, 192) == 205, "less than half a day would be left"
    assert hours_to_state(144 * hour, 192) == 192
    assert hours_to_state(143 * hour, 192) == 167, "more than two days too many"
    said: list[int] = []
    for lag in range(24 * 14):
        said.append(hours_to_state((168 + lag) * hour, said[-1] if said else None))
    assert len(set(said)) < 28, "a need that grows by the hour is said twice a day"
    for every in (1, 6, 12, 13, 24):
        stated = None
        for need in range(168, 168 + 24 * 14, every):
            stated = hours_to_state(need * hour, stated)
            assert stated >= need + every, "it is enough until the next upkeep"


def test_documents_may_stand_at_their_marks_and_at_the_newest_cuts_that_name_them(lake_path: str) -> None:
    """One has an error, one was written again by an upkeep, one was removed with its table."""
    lake = Lake(lake_path)
    control = ControlTables(lake)
    control.record_cut(Cut("gold", Lsn(10), None, {"failed": 0, "joined": 0, "removed": 0}))
    control.record_cut(Cut("gold", Lsn(30), None, {"joined": 1}))
    for name, lsn in (("failed", 10), ("joined", 20)):
        mark = CommitProperties(app_transactions=[Transaction("deltasmelt.gold", lsn)])
        write_deltalake(lake.uri("gold", name), pa.table({"id": [1]}), commit_properties=mark)
        write_deltalake(lake.uri("gold", name), pa.table({"id": [2]}), mode="append")
    assert positions(lake, control) == {Lsn(10), Lsn(20), Lsn(30)}
