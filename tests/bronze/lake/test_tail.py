"""A table followed entry by entry equals the table of a new handle."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from deltasmelt.bronze.lake.delta import open_or_create
from deltasmelt.bronze.lake.entries import advance
from deltasmelt.bronze.lake.folder_table import FolderTable
from deltasmelt.bronze.lake.store_table import StoreTable
from deltasmelt.bronze.lake.tail import Tail, tail_of
from tests.object_store import Faults

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deltasmelt.bronze.lake.table import Table
    from tests.object_store import ObjectStore

VECTOR = {"storageType": "u", "pathOrInlineDv": "a", "offset": 1, "sizeInBytes": 34, "cardinality": 1}


def entry(*actions: dict[str, Any]) -> bytes:
    return "\n".join(json.dumps(action) for action in actions).encode()


def add(path: str, rows: int | None, size: int, **more: Any) -> dict[str, Any]:
    stats = None if rows is None else json.dumps({"numRecords": rows})
    return {"add": {"path": path, "size": size, "stats": stats, "dataChange": True, **more}}


def remove(path: str) -> dict[str, Any]:
    return {"remove": {"path": path, "dataChange": True}}


def state_of(table: Table, column: str | None = None) -> Tail:
    return tail_of(table.version(), pa.table(table.get_add_actions()), column)


def mark(lsn: int) -> dict[str, Any]:
    return {"txn": {"appId": "silver", "version": lsn}}


@pytest.mark.parametrize("order", [1, -1], ids=["removed first", "added first"])
def test_file_gaining_deletion_vector_counts_once(order: int) -> None:
    tail = Tail(3, {"a b.parquet": (10, 100), "c.parquet": (5, 50)})
    actions = [remove("a%20b.parquet"), add("a%20b.parquet", 10, 100, deletionVector=VECTOR)]
    commit_info = {"commitInfo": {"operation": "MERGE"}}
    assert tail.follow(entry(commit_info, *actions[::order], mark(7)))
    assert tail.follow(entry(remove("c.parquet"), add("d.parquet", None, 8)))
    assert tail.files == {"a b.parquet": (10, 100), "d.parquet": (0, 8)}
    assert (tail.version, tail.size(), tail.marks) == (5, (10, 108), {"silver": 7})
    assert tail.said == {4: {"operation": "MERGE"}, 5: {}}


def counted(path: str, rows: int | None, **nulls: int) -> dict[str, Any]:
    stats = {"nullCount": nulls} if rows is None else {"numRecords": rows, "nullCount": nulls}
    return {"add": {"path": path, "size": 1, "stats": json.dumps(stats)}}


def test_columns_are_counted_if_all_files_have_statistics() -> None:
    tail = Tail(3, {}, column="col-1")
    assert tail.total() == 0
    assert tail.follow(entry(counted("a", 10, **{"col-1": 7}), counted("b", 5, **{"col-1": 5})))
    assert (tail.values, tail.total()) == ({"a": 3}, 3)
    for incomplete in (counted("c", 5, other=1), counted("c", None, **{"col-1": 1}), add("c", None, 1)):
        assert tail.follow(entry(incomplete))
        assert tail.total() is None
    assert tail.follow(entry(counted("c", 5, **{"col-1": 5})))
    assert tail.total() == 3


def test_column_counts_match_table_handle(tmp_path: Path) -> None:
    empty = open_or_create(str(tmp_path / "empty"), pa.schema([("id", pa.int64())]), description="")
    assert state_of(empty, "id").total() == 0
    rows = pa.table({"id": [1, 2, 3], "text": ["x", None, None]})
    write_deltalake(tmp_path / "t", rows)
    write_deltalake(tmp_path / "t", rows, mode="append")
    table = FolderTable(str(tmp_path / "t"))
    assert [state_of(table, name).total() for name in ("id", "text", "none", None)] == [6, 2, None, 0]
    write_deltalake(tmp_path / "first", rows, configuration={"delta.dataSkippingStatsColumns": "id"})
    assert state_of(FolderTable(str(tmp_path / "first")), "text").total() is None


@pytest.mark.parametrize(
    "actions",
    [
        entry(add("new", 1, 1), {"metaData": {"id": "x"}}),
        entry(add("new", 1, 1), {"protocol": {"minReaderVersion": 3}}),
        entry(add("new", 1, 1), {"sidecar": {}}),
        entry(add("new", 1, 1)) + b'\n{"txn": {"appId"',
        entry({"add": {"path": "new"}}),
        entry(mark(1), {"txn": {"appId": "silver"}}),
        b"[]",
    ],
    ids=["columns", "protocol", "unknown", "torn", "no size", "no version", "no action"],
)
def test_what_is_not_understood_changes_nothing(actions: bytes) -> None:
    tail = Tail(3, {"a": (1, 1)}, {"silver": 5})
    assert not tail.follow(actions)
    assert tail == Tail(3, {"a": (1, 1)}, {"silver": 5})


@pytest.mark.process
def test_store_versions_match_table_handle(store: ObjectStore, place: str) -> None:
    options = store.options()

    def write(mode: Any, *ids: int, lsn: int) -> None:
        properties = CommitProperties(app_transactions=[Transaction("silver", lsn)])
        rows = pa.table({"id": pa.array(ids, pa.int64())})
        write_deltalake(place, rows, mode=mode, commit_properties=properties, storage_options=options)

    def newest() -> StoreTable:
        return StoreTable(place)

    write("append", 1, 2, lsn=1)
    tail = state_of(newest())
    statements: list[Callable[[], object]] = [
        lambda: write("append", 3, 4, 5, lsn=2),
        lambda: newest().delete("id = 4"),
        lambda: write("append", 6, lsn=3),
        lambda: [newest().optimize.compact()],
        lambda: write("overwrite", 9, lsn=4),
    ]
    for statement in statements:
        statement()
        store.forget()
        before = tail.version
        assert advance(tail, place)
        assert [request.status for request in store.requests()] == [200] * (tail.version - before) + [404]
        last_tail = state_of(newest())
        assert (tail.version, tail.files) == (last_tail.version, last_tail.files)
        assert tail.marks["silver"] == newest().transaction_version("silver")
    write("append", 10, lsn=5)
    write("append", 11, lsn=6)
    store.forget()
    assert advance(tail, place, lambda tail: tail.marks["silver"] >= 5)
    assert [request.status for request in store.requests()] == [200]
    store.set_faults(Faults(gone=True))
    with pytest.raises(OSError, match="NoSuchBucket"):
        advance(tail, place)
