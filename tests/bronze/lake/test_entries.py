"""Log entries that deltasmelt writes itself: equal to `deltalake`'s, written once, after a known entry."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import obstore
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from deltasmelt.bronze.lake import delta, entries, objects
from deltasmelt.bronze.lake.compaction import compact
from deltasmelt.bronze.lake.log_table import LogTable
from deltasmelt.bronze.lake.parquet import PartWriter
from tests.object_store import Faults

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from deltalake.transaction import AddAction

    from deltasmelt.bronze.lake.place import Location
    from deltasmelt.bronze.lake.table import Table
    from tests.object_store import ObjectStore

pytestmark = pytest.mark.process

SCHEMA = pa.schema({"id": pa.int64()})


@pytest.fixture
def uri(place: Location) -> Location:
    return place / "changes"


def made(uri: str, properties: Mapping[str, str] | None = None) -> LogTable:
    table = delta.open_or_create(uri, SCHEMA, description="", properties=properties)
    assert isinstance(table, LogTable)
    return table


def part(uri: str, *ids: int) -> list[AddAction]:
    writer = PartWriter(uri, "stream", schema=SCHEMA, measured=["id"])
    writer.write(pa.table({"id": ids}, SCHEMA))
    return writer.finish()


def commit(table: Table, *ids: int, marks: Mapping[str, int] | None = None) -> None:
    transactions = [Transaction(name, version) for name, version in (marks or {}).items()]
    table.commit(part(table.table_uri, *ids), SCHEMA, transactions)


def ids_in(uri: str) -> list[int]:
    table = delta.open_existing(uri)
    return sorted(row for path in table.paths() for row in table.read_file(path)["id"].to_pylist())


def entry(uri: str, version: int) -> list[dict[str, Any]]:
    stored = objects.read(uri, f"_delta_log/{version:020}.json")
    assert stored is not None
    return [json.loads(line) for line in stored.body.splitlines()]


def is_ours(uri: str, version: int) -> bool:
    return bool(entry(uri, version)[0]["commitInfo"]["engineInfo"] == "deltasmelt")


def test_an_entry_says_what_deltalake_writes(uri: str, tmp_path: Path) -> None:
    ours, theirs = made(uri), made(str(tmp_path / "changes"))
    for table in (ours, theirs):
        commit(table, 1, 2, marks={"app": 7})
    log = (tmp_path / "changes/_delta_log/00000000000000000001.json").read_text()
    _, *expected = [json.loads(line) for line in log.splitlines()]
    commit_info, *actions = entry(uri, 1)
    for added in (expected[0]["add"], actions[0]["add"]):
        for differs in ("path", "modificationTime"):
            del added[differs]
    assert actions == [{name: without_nulls(action) for name, action in line.items()} for line in expected]
    assert commit_info["commitInfo"]["deltasmelt.actions"] == "2"
    assert is_ours(uri, 1)
    assert ours.refresh() == 1
    assert ours.history(1)[0]["operation"] == "WRITE"


def without_nulls(action: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in action.items() if value is not None}


def test_commit_after_unknown_commit_uses_deltalake(uri: str) -> None:
    table, second_handle = made(uri), delta.open_existing(uri)
    commit(second_handle, 1)
    commit(table, 2)
    assert ids_in(uri) == [1, 2]
    assert not is_ours(uri, 2)


def test_concurrently_set_mark_is_rejected(uri: str) -> None:
    table, second_handle = made(uri), delta.open_existing(uri)
    commit(second_handle, 1, marks={"app": 1})
    with pytest.raises(CommitFailedError):
        commit(table, 2, marks={"app": 2})
    assert ids_in(uri) == [1]


def test_commit_with_lost_answer_applies_once(store: ObjectStore, uri: str) -> None:
    table = made(uri)
    store.set_faults(Faults(lose=r"_delta_log/0*1\.json"))
    commit(table, 1, marks={"app": 1})
    assert table.refresh(after=0) == 1
    assert ids_in(uri) == [1]


def test_unresponsive_store_is_lake_error(
    store: ObjectStore, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, parts = made(uri), part(uri, 1)
    monkeypatch.setattr("deltasmelt.bronze.lake.objects._TIMEOUT", objects._TIMEOUT / 10)
    store.set_faults(Faults(unavailable=60))
    with pytest.raises(OSError):
        table.commit(parts, SCHEMA)


def test_recreated_table_gets_no_log_entry(uri: str) -> None:
    table = made(uri)
    for number in range(3):
        commit(table, number)
        table.refresh()
    objects.delete_below(uri, "_delta_log")
    made(uri)
    with pytest.raises((DeltaError, OSError)):
        commit(table, 4)
    assert ids_in(uri) == []


def test_expired_entry_gets_no_successor(uri: str) -> None:
    """Nothing is written after an entry that retention has removed."""
    table, ahead = made(uri), made(uri)
    for number in range(3):
        commit(ahead, number)
        ahead.refresh()
    ahead.create_checkpoint()
    for version in range(3):
        obstore.delete(*objects._object(uri, f"_delta_log/{version:020}.json"))
    assert not entries.put_next(table, part(uri, 4), [])
    assert not objects.exists(uri, "_delta_log/00000000000000000001.json")


def test_table_with_newer_features_uses_deltalake(uri: str) -> None:
    table = made(uri, {"delta.enableChangeDataFeed": "true"})
    assert table.protocol().min_writer_version > 2
    commit(table, 1)
    assert ids_in(uri) == [1]
    assert not is_ours(uri, 1)


def test_own_marks_are_cached_and_foreign_marks_read(uri: str) -> None:
    table, second_handle = made(uri), delta.open_existing(uri)
    assert table.transaction_version("app") is None
    for number in range(1, 4):
        commit(table, number, marks={"app": number})
        table.refresh(after=number - 1)
        assert table.transaction_version("app") == number == DeltaTable.transaction_version(table, "app")
    second_handle.refresh()
    commit(second_handle, 4, marks={"other": 4})
    commit(table, 5, marks={"app": 5})
    table.refresh()
    assert [table.transaction_version(name) for name in ("app", "other")] == [5, 4]
    assert [DeltaTable.transaction_version(table, name) for name in ("app", "other")] == [5, 4]


def test_compacted_files_survive_lost_answer(store: ObjectStore, uri: str) -> None:
    table = made(uri)
    for number in range(4):
        commit(table, number)
        table.refresh()
    store.set_faults(Faults(lose=r"_delta_log/0*5\.json"))
    assert compact(table, SCHEMA, many=2, prefix="stream")
    assert len(table.paths()) == 1
    assert ids_in(uri) == [0, 1, 2, 3]
