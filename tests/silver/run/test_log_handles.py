"""Test a cached handle of a table's log after the table was restored or removed. Needs no Spark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from deltasmelt.bronze.lake.location import Lake
from deltasmelt.silver.run.stored import SILVER_APP
from deltasmelt.silver.run.table_log import SilverLog

_PHYSICAL = "delta.columnMapping.physicalName"


class Table:
    """A silver table `t`, written without Spark, and a log reader with a cached handle."""

    def __init__(self, lake: Lake) -> None:
        self.folder = lake.uri("silver", "t")
        self.log = SilverLog(lake)
        self.write("first", 1, 2, 3)
        assert self.read() == (2, 3, ["first"])

    def write(self, column: str, *marks: int) -> None:
        rows = pa.table({column: pa.array([1], pa.int32())})
        for mark in marks:
            properties = CommitProperties(app_transactions=[Transaction(SILVER_APP, mark)])
            write_deltalake(self.folder, rows, mode="append", commit_properties=properties)

    def read(self) -> tuple[int, int | None, list[str]] | None:
        stored = self.log.read("t")
        if stored is None:
            return None
        mark = None if stored.mark is None else int(stored.mark)
        return stored.version, mark, [field.name for field in stored.fields]


@pytest.fixture
def table(lake_path: str) -> Table:
    return Table(Lake(path=lake_path))


def test_rolled_back_table_is_read_in_current_state(table: Table) -> None:
    for entry in Path(table.folder, "_delta_log").glob("*2.json"):
        entry.unlink()
    assert table.read() == (1, 2, ["first"])


def test_recreated_shorter_table_is_read_in_current_state(table: Table) -> None:
    shutil.rmtree(table.folder)
    table.write("second", 8, 9)
    assert table.read() == (1, 9, ["second"])


@pytest.mark.parametrize("versions", [3, 5])
def test_a_forgotten_table_is_opened_anew(table: Table, versions: int) -> None:
    shutil.rmtree(table.folder)
    table.log.forget(["t", "never seen"])
    assert table.read() is None
    table.write("second", *range(11, 11 + versions))
    assert table.read() == (versions - 1, 10 + versions, ["second"])
    assert table.log.size("t")[0] == versions


@pytest.mark.parametrize(
    ("configuration", "stored_as", "expected"),
    [
        ({}, "_unrepresentable", 2),
        ({"delta.columnMapping.mode": "name"}, "col-7", 2),
        ({"delta.dataSkippingStatsColumns": "id"}, None, None),
    ],
    ids=["plain", "mapped", "without statistics"],
)
def test_unrepresentable_values_are_counted_or_marked_uncounted(
    lake_path: str, configuration: dict[str, str], stored_as: str | None, expected: int | None
) -> None:
    lake = Lake(path=lake_path)
    types = {
        "id": "integer",
        "_unrepresentable": {
            "type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True,
        },
    }  # fmt: skip
    fields: list[dict[str, Any]] = [
        {"name": name, "type": type_, "nullable": True, "metadata": {}} for name, type_ in types.items()
    ]
    if stored_as == "col-7":
        for number, field in enumerate(fields, 6):
            field["metadata"] = {"delta.columnMapping.id": number, _PHYSICAL: f"col-{number}"}
    stats = {"numRecords": 5, "nullCount": {} if stored_as is None else {stored_as: 3}}
    actions: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
        {
            "metaData": {
                "id": "x",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": [],
                "configuration": configuration,
            }
        },
        {
            "add": {
                "path": "a.parquet",
                "partitionValues": {},
                "size": 1,
                "modificationTime": 0,
                "dataChange": True,
                "stats": json.dumps(stats),
            }
        },
    ]
    entry = Path(lake.uri("silver", "t"), "_delta_log", f"{0:020}.json")
    entry.parent.mkdir(parents=True)
    entry.write_text("\n".join(map(json.dumps, actions)))
    assert SilverLog(lake).unrepresentable("t") == expected
    assert SilverLog(lake).unrepresentable("none") == 0
