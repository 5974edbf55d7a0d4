"""Changes that the stream skips, batch after batch, open a single gap; the newest decides the healing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.effects import Effect, guarded
from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.gaps import is_open
from tests.bronze.faults import Fault, Faults
from tests.bronze.store.test_sink import at, open_sink

if TYPE_CHECKING:
    from deltasmelt.bronze.store.sink import DeltaSink

T, U = TableName("public", "t"), TableName("public", "u")


@pytest.fixture
def sink(lake_path: str) -> DeltaSink:
    sink_made = open_sink(lake_path)
    sink_made.claim()
    sink_made.commit(at(5))
    return sink_made


def version(lake_path: str) -> int:
    table: int = open_existing(f"{lake_path}/bronze/changes").version()
    return table


def opened(lake_path: str, table: TableName = T) -> bool:
    return is_open(open_existing(f"{lake_path}/bronze/changes"), table)


def test_many_batches_are_one_commit_for_each_table(sink: DeltaSink, lake_path: str) -> None:
    before = version(lake_path)
    assert sink.tables.leave_out({T: Lsn(10), U: Lsn(12)}) == [T, U]
    for lsn in range(20, 60):
        assert sink.tables.leave_out({T: Lsn(lsn)}) == []
    assert version(lake_path) == before + 1
    assert opened(lake_path)
    assert opened(lake_path, U)


def test_snapshot_before_newest_omission_heals_nothing(sink: DeltaSink, lake_path: str) -> None:
    sink.tables.leave_out({T: Lsn(10)})
    sink.tables.leave_out({T: Lsn(50)})
    sink.tables.commit_snapshot(T, Lsn(30), [])
    assert opened(lake_path)
    assert sink.tables.requests([T]) == {T: Lsn(50)}
    assert sink.tables.needing_copy([T]) == {T}
    sink.tables.commit_snapshot(T, Lsn(70), [])
    assert not opened(lake_path)
    assert sink.tables.leave_out({T: Lsn(80)}) == [T], "since that snapshot"
    assert opened(lake_path)


def test_omission_before_snapshot_hides_no_later_omission(sink: DeltaSink, lake_path: str) -> None:
    sink.tables.commit_snapshot(T, Lsn(30), [])
    assert sink.tables.leave_out({T: Lsn(20)}) == []
    assert not opened(lake_path)
    assert sink.tables.leave_out({T: Lsn(40), U: Lsn(40)}) == [T, U]
    assert opened(lake_path)
    assert sink.tables.needing_copy([T]) == {T}


def test_unconfirmed_snapshot_counts_for_nothing(sink: DeltaSink, lake_path: str) -> None:
    """The snapshot was committed, but the answer was lost."""
    sink.tables.leave_out({T: Lsn(10)})
    fault = Faults(Fault(Effect.COMMIT, 1, "after"))
    with guarded(fault), pytest.raises(TransientError):
        sink.tables.commit_snapshot(T, Lsn(30), [])
    assert not opened(lake_path)
    assert sink.tables.leave_out({T: Lsn(40)}) == [T]
    assert opened(lake_path)


def test_reader_after_crash_snapshots_behind_all_omissions(sink: DeltaSink, lake_path: str) -> None:
    sink.tables.leave_out({T: Lsn(10)})
    sink.tables.leave_out({T: Lsn(50)})
    del sink
    later = open_sink(lake_path)
    later.claim()
    assert opened(lake_path)
    later.tables.commit_snapshot(T, Lsn(60), [])
    assert not opened(lake_path)
