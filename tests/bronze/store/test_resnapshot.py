"""Resnapshot marks: set by another process in parallel with a running sink, settled by a newer snapshot."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.gaps import request_snapshots
from tests.bronze.replaying import read_snapshot
from tests.bronze.store.test_sink import at, contents, open_sink, rows

T, U = TableName("public", "t"), TableName("public", "u")

_OTHER_PROCESS = """
import sys
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.gaps import request_snapshots
for lsn in range(int(sys.argv[2]), int(sys.argv[3])):
    request_snapshots(sys.argv[1], [TableName("public", "t")], Lsn(lsn))
"""


def changes(lake_path: str) -> str:
    return f"{lake_path}/bronze/changes"


def test_table_needs_copy_until_snapshot_passes_mark(lake_path: str) -> None:
    sink = open_sink(lake_path)
    assert sink.tables.needing_copy([T])
    sink.tables.commit_snapshot(T, Lsn(100), [])
    assert not sink.tables.needing_copy([T])
    request_snapshots(
        changes(lake_path), [T], Lsn(100)
    )  # the snapshot may not have what was committed at 100
    assert sink.tables.needing_copy([T])
    sink.tables.commit_snapshot(T, Lsn(101), [])
    assert not sink.tables.needing_copy([T])
    assert sink.tables.needing_copy([T, U]) == {U}


def test_marks_only_grow(lake_path: str) -> None:
    sink = open_sink(lake_path)
    request_snapshots(changes(lake_path), [T, U], Lsn(50))
    version = DeltaTable(changes(lake_path)).version()
    request_snapshots(changes(lake_path), [T], Lsn(40))
    assert DeltaTable(changes(lake_path)).version() == version
    request_snapshots(changes(lake_path), [T, U], Lsn(60))
    assert sink.tables.requests([T, U, TableName("public", "v")]) == {T: 60, U: 60}


def test_another_process_may_ask_while_the_stream_commits(lake_path: str) -> None:
    sink = open_sink(lake_path)
    sink.tables.commit_snapshot(T, Lsn(1), [])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _OTHER_PROCESS, changes(lake_path), str(first), str(first + 10)]
        )
        for first in (100, 200)
    ]
    lsn = 0
    while lsn < 20 or any(process.poll() is None for process in processes):
        lsn += 1
        sink.write(rows(lsn, 1))
        sink.commit(at(lsn))
    assert [process.returncode for process in processes] == [0, 0]
    assert contents(lake_path) == [(number, 0) for number in range(1, lsn + 1)]
    assert sink.tables.requests([T]) == {T: 209}
    assert sink.tables.needing_copy([T])
    position = sink.position
    assert position is not None
    assert position.frontier == lsn


def test_snapshot_commits_despite_request_for_same_table(lake_path: str) -> None:
    sink = open_sink(lake_path)

    def ask() -> None:
        for lsn in range(10, 30):
            request_snapshots(changes(lake_path), [T], Lsn(lsn))

    requesting = threading.Thread(target=ask)
    requesting.start()
    for lsn in range(10, 20):
        sink.tables.commit_snapshot(T, Lsn(lsn), [])
    requesting.join()
    assert sink.tables.needing_copy([T])
    assert (read_snapshot(Lake(lake_path), T), sink.tables.requests([T])) == (19, {T: 29})


def test_a_mark_outlives_checkpoints(lake_path: str) -> None:
    sink = open_sink(lake_path)
    sink.tables.commit_snapshot(T, Lsn(5), [])
    request_snapshots(changes(lake_path), [T], Lsn(7))
    for lsn in range(1, 120):
        sink.commit(at(lsn))
    assert list(Path(changes(lake_path), "_delta_log").glob("*.checkpoint.parquet"))
    assert open_sink(lake_path).tables.needing_copy([T])


@pytest.mark.parametrize("name", ['we"ird', "dotted.name"])
def test_any_table_names_have_separate_marks(lake_path: str, name: str) -> None:
    sink = open_sink(lake_path)
    request_snapshots(changes(lake_path), [TableName("public", name)], Lsn(5))
    assert sink.tables.requests([TableName("public", name), T]) == {TableName("public", name): 5}
