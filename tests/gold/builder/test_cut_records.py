"""Test the record of silver's cut behind a document, and which documents' errors stay open. No Spark."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.gold.incremental.starts import built_from, holds_the_same

if TYPE_CHECKING:
    from pathlib import Path

START = datetime(2026, 1, 1, tzinfo=UTC)
FIRST = Cut("silver", Lsn(10), None, {"orders": 4}, START)


def tables(cut: Cut | None) -> dict[str, int] | None:
    return None if cut is None else cut.tables


def test_rerecorded_cut_counts_only_if_gold_names_record(
    tmp_path: Path,
) -> None:
    control = ControlTables(Lake(path=str(tmp_path)))
    control.record_cut(FIRST)
    assert built_from(control, Lsn(10), None) == FIRST
    assert built_from(control, Lsn(11), None) is None
    joined = {**FIRST.tables, "customers": 0}
    control.record_cut(replace(FIRST, tables=joined, recorded_at=START + timedelta(seconds=2)))
    assert tables(built_from(control, Lsn(10), None)) == joined, "a table that joined is no other state"
    derived = {**joined, "orders": 5}
    control.record_cut(replace(FIRST, tables=derived, recorded_at=START + timedelta(seconds=4)))
    assert built_from(control, Lsn(10), None) is None
    assert tables(built_from(control, Lsn(10), START + timedelta(seconds=1))) == FIRST.tables
    assert tables(built_from(control, Lsn(10), START + timedelta(seconds=3))) == joined
    assert tables(built_from(control, Lsn(10), START + timedelta(seconds=5))) == derived


def test_rerecorded_cut_with_equal_rows_is_equal(tmp_path: Path) -> None:
    control = ControlTables(Lake(path=str(tmp_path)))
    control.record_cut(FIRST)
    joined = {"orders": 6, "customers": 0}
    control.record_cut(replace(FIRST, tables=joined, recorded_at=START + timedelta(seconds=2)))
    requested = []

    def same(name: str, since: int, until: int) -> bool:
        requested.append((name, since, until))
        return True

    assert built_from(control, Lsn(10), None) is None
    assert tables(built_from(control, Lsn(10), None, same)) == joined
    assert ("orders", 4, 6) in requested
    control.record_cut(replace(FIRST, tables={"customers": 0}, recorded_at=START + timedelta(seconds=4)))
    assert built_from(control, Lsn(10), None, same) is None, "a table left the cut"


def test_compaction_and_property_versions_hold_same_rows(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    for number in range(3):
        write_deltalake(uri, pa.table({"id": [number]}), mode="append")
    table = DeltaTable(uri)
    table.optimize.compact()
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    assert table.version() == 4
    assert holds_the_same(uri, 2, 4)
    assert holds_the_same(uri, 4, 4)
    assert not holds_the_same(uri, 1, 4), "version 2 wrote a row"
    assert not holds_the_same(uri, 4, 2), "made again"
    assert not holds_the_same(uri, 4, 5), "not there"
    DeltaTable(uri).create_checkpoint()
    for number in range(4):
        (tmp_path / "t" / "_delta_log" / f"{number:020}.json").unlink()
    assert not holds_the_same(uri, 2, 4), "nobody knows"
