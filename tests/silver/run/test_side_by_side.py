"""Silver carries tables in parallel, and an error leaves the cycle early. Needs no Spark."""

from __future__ import annotations

import time
from threading import Barrier, Event, Lock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import pytest

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.run.worklist import Attempt
from deltasmelt.silver.settings import SilverSettings

if TYPE_CHECKING:
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.silver.plan.activity import Work


def test_no_table_is_processed_after_aborted_cycle(lake_path: str) -> None:
    """An unrecordable error leaves the cycle, like a stop."""
    lake = Lake(path=lake_path)
    silver = Silver(cast("Any", None), lake, SilverSettings(workers=2), ControlTables(lake))
    entered, exited = Event(), Event()

    def run(_silver: Silver, work: Work) -> None:
        if work.table.table.name == "fails":
            entered.wait()
            raise KeyboardInterrupt
        entered.set()
        time.sleep(0.3)
        exited.set()

    with patch.object(Silver, "_run", run), pytest.raises(KeyboardInterrupt):
        silver._run_all(_works("fails", "slow"), _ATTEMPT)
    assert exited.is_set()
    silver.close()


def test_workers_bound_the_tables_at_once(lake_path: str) -> None:
    """Of six tables, three run at once with `workers: 3`: each run waits for two others, never for more."""
    lake, lock, at_once = Lake(path=lake_path), Lock(), [0, 0]
    silver = Silver(cast("Any", None), lake, SilverSettings(workers=3), ControlTables(lake))
    three = Barrier(3, timeout=60)

    def run(_silver: Silver, _work: Work) -> None:
        with lock:
            at_once[0] += 1
            at_once[1] = max(at_once)
        three.wait()
        time.sleep(0.05)
        with lock:
            at_once[0] -= 1

    with patch.object(Silver, "_run", run), patch.object(silver._spark, "get"):
        silver._run_all(_works(*"abcdef"), _ATTEMPT)
    assert at_once == [0, 3]
    silver.close()


_ATTEMPT = Attempt(cast("Table", None), (), None, Lsn(10))


def _works(*names: str) -> list[Work]:
    return [cast("Work", SimpleNamespace(table=SimpleNamespace(table=TableName("public", name))))
            for name in names]  # fmt: skip
