"""A kept handle of a table's log, where the table is put back or removed. Needs no Spark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from bronze.lake.location import Lake
from silver.run.stored import SILVER_APP
from silver.run.table_log import SilverLog


class Table:
    """A silver table `t`, written without Spark, and a log reader that has a handle of it."""

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


def test_a_table_that_was_put_back_is_read_as_it_is(table: Table) -> None:
    for entry in Path(table.folder, "_delta_log").glob("*2.json"):
        entry.unlink()
    assert table.read() == (1, 2, ["first"])


def test_a_table_that_was_made_anew_with_fewer_versions_is_read_as_it_is(table: Table) -> None:
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
