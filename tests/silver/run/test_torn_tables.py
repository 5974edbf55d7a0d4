"""A process that only reads silver's tables skips the table with a torn log entry, and no other."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.silver.run.read_only import PinnedLog


@pytest.mark.parametrize("of", ["orders", "orders__history"])
@pytest.mark.parametrize("left", [0, 100])
def test_a_torn_entry_is_its_tables_reason(tmp_path: Path, left: int, of: str) -> None:
    lake = Lake(str(tmp_path))
    for name in ("orders", "orders__history", "items"):
        for _ in range(2):
            write_deltalake(lake.uri("silver", name), pa.table({"id": [1]}), mode="append")
    entry = max(Path(lake.uri("silver", of), "_delta_log").glob("*.json"))
    entry.write_bytes(entry.read_bytes()[:left])
    log = PinnedLog(lake)
    tables = {"orders": TableName("public", "orders"), "items": TableName("public", "items")}
    log.pin(tables)
    ((table, reason),) = log.torn(tables).items()
    assert table == tables["orders"]
    assert reason.startswith(f"{entry}: the newest entry 1 of the table's log is torn; start the pipeline: ")
    assert log.read("items") is not None
