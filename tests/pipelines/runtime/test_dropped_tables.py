"""Silver's table of a gone table goes with the setting, and only once nothing can need the table."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyarrow.fs import FileSelector

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.lake import delta, objects
from deltasmelt.bronze.lake.client import Transaction
from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.parquet import file_system
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.changes_table import commit_marks
from deltasmelt.bronze.store.contract import CHANGES_SCHEMA, RELATIONS_SCHEMA
from deltasmelt.bronze.store.marks import KEPT_APP
from deltasmelt.bronze.store.relations import append_relations
from deltasmelt.pipelines.runtime.dropped_tables import remove_dropped
from deltasmelt.pipelines.runtime.maintenance import expired
from deltasmelt.silver.run.stored import SILVER_APP
from deltasmelt.silver.settings import SilverSettings
from tests.bronze.store.test_sink import shape
from tests.pipelines.runtime.test_maintenance import pipeline_of

if TYPE_CHECKING:
    from pathlib import Path

    from deltasmelt.bronze.lake.place import Location

SCHEMA = pa.schema([pa.field("id", pa.int32())])
NOW = datetime(2026, 11, 27, tzinfo=UTC)
SETTINGS = SilverSettings(on_drop_table="drop")


def filled(lake: Lake) -> Lake:
    """Fill a lake: `t` is carried, `Gone/1` has ended, a cut names `cut`, and `foreign` is not ours."""
    changes = delta.open_or_create(lake.uri("bronze", "changes"), CHANGES_SCHEMA, description="")
    commit_marks(changes, [Transaction(KEPT_APP, 50)])
    relations = delta.open_or_create(lake.uri("bronze", "relations"), RELATIONS_SCHEMA, description="")
    append_relations(relations, [shape(60, "id")])
    for name in ("t", "t__history", "Gone/1", "Gone/1__history", "cut", "foreign"):
        table = delta.open_or_create(lake.uri("silver", name), SCHEMA, description="")
        table.append(pa.table({"id": [1]}, schema=SCHEMA))
        if name != "foreign":
            commit_marks(table, [Transaction(SILVER_APP, 40)])
    control = ControlTables(lake)
    control.record_cut(Cut("silver", Lsn(40), None, {"t": 1, "cut": 1}, NOW - timedelta(days=3)))
    control.record_cut(Cut("silver", Lsn(60), None, {"t": 1}, NOW - timedelta(days=1)))
    return lake


def folders(lake: Lake) -> set[str]:
    system = file_system(lake.root)
    return {folder.base_name for folder in system.get_file_info(FileSelector("silver"))}


def test_gone_table_and_history_are_removed(tmp_path: Path) -> None:
    lake = filled(pipeline_of(str(tmp_path)).lake_address())
    control = ControlTables(lake)
    assert sorted(remove_dropped(lake, control, SETTINGS)) == ["Gone/1", "Gone/1__history"]
    assert folders(lake) == {"t", "t__history", "cut", "foreign"}
    assert remove_dropped(lake, control, SETTINGS) == []
    expired(lake, control, NOW, timedelta(days=2).total_seconds(), documents=False)
    assert folders(lake) == {"t", "t__history", "cut", "foreign"}
    expired(lake, control, NOW, timedelta(hours=12).total_seconds(), documents=False)
    assert remove_dropped(lake, control, SETTINGS) == ["cut"]


def test_killed_removal_is_finished_by_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = filled(pipeline_of(str(tmp_path)).lake_address())
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", _killed)
        with pytest.raises(KeyboardInterrupt):
            remove_dropped(lake, ControlTables(lake), SETTINGS)
    assert len(folders(lake)) == 6, "one of them has another name"
    remove_dropped(lake, ControlTables(lake), SETTINGS)
    assert folders(lake) == {"t", "t__history", "cut", "foreign"}


@pytest.mark.process
def test_store_table_goes_also_after_killed_removal(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = filled(Lake(path=place))
    before = folders(lake)
    with monkeypatch.context() as patched:
        patched.setattr(objects, "delete_below", _killed)
        with pytest.raises(KeyboardInterrupt):
            remove_dropped(lake, ControlTables(lake), SETTINGS)
    assert folders(lake) == before
    remove_dropped(lake, ControlTables(lake), SETTINGS)
    assert folders(lake) == {"t", "t__history", "cut", "foreign"}


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_nothing_goes_before_bronze_removed_changes(tmp_path: Path) -> None:
    lake = filled(pipeline_of(str(tmp_path)).lake_address())
    commit_marks(delta.open_existing(lake.uri("bronze", "changes")), [Transaction(KEPT_APP, 0)])
    assert remove_dropped(lake, ControlTables(lake), SETTINGS) == []


def test_setting_without_retention_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="on_drop_table"):
        pipeline_of(str(tmp_path), "silver: {on_drop_table: drop}\n")
    pipeline_of(str(tmp_path), "silver: {on_drop_table: drop}\nbronze: {retention: 1d}\n")
