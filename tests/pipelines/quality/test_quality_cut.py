"""Queries on the tables of a cut without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines.quality.cut import QualityCut, held_columns
from deltasmelt.pipelines.quality.expectations import CutTable
from deltasmelt.silver.schema.catalog import silver_catalog
from deltasmelt.silver.settings import SilverSettings
from tests.pipelines.quality_lake import shop_relations

if TYPE_CHECKING:
    from pathlib import Path


def test_unreadable_table_has_no_size_without_affecting_others(tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path))
    write_deltalake(str(tmp_path / "silver" / "orders"), pa.table({"id": [1]}))
    write_deltalake(str(tmp_path / "silver" / "orders"), pa.table({"id": [2]}), mode="append")
    log = tmp_path / "silver" / "odd" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text('{"protocol": {"minReaderVersion": 99, "minWriterVersion": 99}}')
    tables = tuple(CutTable("silver", name, 0) for name in ("odd", "missing", "orders"))
    sizes = QualityCut(Lsn(1), None, tables).sizes(lake)
    first = pa.table(DeltaTable(str(tmp_path / "silver" / "orders"), version=0).get_add_actions())
    assert sizes == {"silver.orders": sum(first["size_bytes"].to_pylist())}


def test_silver_columns_cover_existing_tables_and_histories(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "silver" / "orders"), pa.table({"id": [1], "note__4": [1]}))
    write_deltalake(str(tmp_path / "silver" / "orders__history"), pa.table({"id": [1]}))
    shapes = silver_catalog(shop_relations({}), SilverSettings()).values()
    assert held_columns(Lake(path=str(tmp_path)), shapes) == {
        "silver.orders": ["id", "note__4"],
        "silver.orders__history": ["id"],
    }
