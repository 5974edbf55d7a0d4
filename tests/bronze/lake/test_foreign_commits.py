"""The writer of a commit, and whether the commit changed rows: entries of `deltalake` and of Spark."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from deltasmelt.bronze.lake.folder_table import FolderTable
from deltasmelt.bronze.lake.foreign_commits import (
    Commit,
    added_by_others,
    commit_of,
    first_foreign,
    restored,
)
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.silver.run.stored import SILVER_APP
from deltasmelt.silver.run.table_log import SilverLog

ROWS = pa.table({"id": pa.array([1, 2], pa.int32())})


def ours(lsn: int) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction(SILVER_APP, lsn)])


def entry(info: dict[str, Any], *actions: dict[str, Any]) -> bytes:
    lines = [{"commitInfo": info}, *actions]
    return "\n".join(json.dumps(line, separators=(",", ":")) for line in lines).encode()


def file(*, change: bool) -> dict[str, Any]:
    """Return the action of a file that has a value like a part of an entry."""
    stats = json.dumps({"maxValues": {"note": '"dataChange":true'}})
    return {"add": {"path": "a", "size": 1, "dataChange": change, "stats": stats}}


def test_log_reports_foreign_row_changes_and_harmless_commits(lake_path: str) -> None:
    """The log shows foreign commits with changed rows, and foreign commits without."""
    lake = Lake(lake_path)
    uri, log = lake.uri("silver", "t"), SilverLog(lake)

    def found(since: int = -1) -> tuple[int, str] | None:
        stored = log.read("t")
        assert stored is not None
        first = log.foreign("t", stored.version, since)
        return None if first is None else (first.version, first.operation)

    for lsn in (10, 20):
        write_deltalake(uri, ROWS, mode="append", commit_properties=ours(lsn))
    table = DeltaTable(uri)
    table.optimize.compact()
    table.alter.set_table_properties({"delta.checkpointInterval": "20"})
    write_deltalake(uri, ROWS, mode="append", commit_properties=ours(30))
    assert found() is None
    DeltaTable(uri).restore(1)
    at = DeltaTable(uri).version()
    assert found() == (at, "RESTORE"), "marks are as they were"
    write_deltalake(uri, ROWS, mode="append", commit_properties=ours(40))
    DeltaTable(uri).delete("id = 1")
    assert found() == (at, "RESTORE"), "the first of several, and it stays found"
    assert found(at) == (at + 2, "DELETE")
    assert found(at + 2) is None
    signed = CommitProperties(custom_metadata={"userMetadata": "deltasmelt"})
    write_deltalake(uri, ROWS, mode="overwrite", commit_properties=signed)
    assert found() is None, "every row is another one since"
    write_deltalake(uri, ROWS, mode="append")
    assert found() == (at + 4, "WRITE")
    assert FolderTable(uri).entry(at + 5) is None


OVERWRITE = {"operation": "WRITE", "operationParameters": {"mode": "Overwrite"}}
PART = {"operation": "WRITE", "operationParameters": {"mode": "Overwrite", "predicate": "id = 1"}}


@pytest.mark.parametrize(
    ("written", "stated"),
    [
        (
            entry(
                {"operation": "MERGE", "userMetadata": "deltasmelt: known rows after 7"}, file(change=True)
            ),
            "ours, changes rows",
        ),
        (entry({"operation": "UPDATE"}, file(change=True)), "changes rows"),
        (entry({"operation": "OPTIMIZE"}, file(change=False)), ""),
        (entry({"operation": "VACUUM END"}), ""),
        (entry({"operation": "DROP COLUMNS"}), "changes rows"),
        (entry(OVERWRITE, file(change=True)), "changes rows, replaces all"),
        (entry(PART), ""),
        (entry({"operation": "WRITE", "userMetadata": '{"deltasmelt":{"marks":{}}}'}), "ours"),
        (entry({}, file(change=True)), "changes rows"),
    ],
)
def test_entry_states_owner_and_effect(written: bytes, stated: str) -> None:
    commit = commit_of(written)
    words = {"ours": commit.ours, "changes rows": commit.changes_rows, "replaces all": commit.replaces_all}
    assert ", ".join(word for word, holds in words.items() if holds) == stated


@pytest.mark.parametrize(
    ("info", "added"),
    [
        ({"operation": "OPTIMIZE"}, {"a b"}),
        ({"operation": "OPTIMIZE", "userMetadata": "deltasmelt"}, set()),
        ({"operation": "MERGE", "userMetadata": "theirs"}, {"a b"}),
    ],
)
def test_owned_files_are_recognized_by_signature_not_mark(info: dict[str, Any], added: set[str]) -> None:
    mark = {"txn": {"appId": SILVER_APP, "version": 7}}
    come, removed = {"add": {"path": "a%20b", "dataChange": False}}, {"remove": {"path": "c"}}
    assert added_by_others(entry(info, mark, come, removed)) == added


def test_only_restore_counts_as_foreign_in_catalog_history() -> None:
    """A gap in the history is passed over."""
    names = enumerate(["MERGE", "UPDATE", "RESTORE"])
    commits: dict[int, dict[str, Any]] = {at: {"version": at, "operation": name} for at, name in names}

    def commit_at(version: int) -> Commit:
        return restored(commits.get(version))

    first = first_foreign(range(4, -1, -1), commit_at)
    assert (str(first), first_foreign([1, 0], commit_at)) == ("version 2 (RESTORE)", None)


def test_truncated_log_is_read_to_oldest_entry_only() -> None:
    versions: list[int] = []

    def commit_at(version: int) -> Commit | None:
        versions.append(version)
        return commit_of(entry({"operation": "MERGE", "userMetadata": "deltasmelt"})) if version > 7 else None

    assert first_foreign(range(9, -1, -1), commit_at) is None
    assert versions == [9, 8, 7]
