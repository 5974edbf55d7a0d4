"""The end of old changes: the boundary as values, and the removal by the lake's reader at each kill point."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partialmethod
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from deltasmelt.bronze.drift.membership import NOT_CARRIED
from deltasmelt.bronze.errors import DefiniteError, TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.client import Transaction
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.folder_table import FolderTable
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.changes_table import commit_marks
from deltasmelt.bronze.store.contract import FORMAT_PROPERTY, OP_SNAPSHOT, ROWS_SCHEMA
from deltasmelt.bronze.store.gaps import is_whole, request_snapshots
from deltasmelt.bronze.store.marks import base_of, fingerprint_app, kept_from
from deltasmelt.bronze.store.retention import (
    ChangesFile,
    Need,
    boundary,
    due_at,
    files_of,
    growth,
    keep_from,
    remove_old,
    renewable,
    request_renewals,
    snapshot_needs,
)
from tests.bronze.store.test_sink import at, contents, open_sink, rows, shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltasmelt.bronze.lake.client import AddAction
    from deltasmelt.bronze.store.sink import DeltaSink

NOW = datetime(2026, 6, 1, tzinfo=UTC)
T, U, V = (TableName("public", name) for name in "tuv")


def file(first: int | None, last: int | None, size: int = 10, **values: Any) -> ChangesFile:
    lsns = [None if lsn is None else Lsn(lsn) for lsn in (first, last)]
    return ChangesFile(f"stream-{first}.parquet", size, lsns[0], lsns[1], NOW, **values)


FILES = [file(1, 10), file(10, 20, 20), file(21, 30, 40), file(31, 40, 80), file(None, None, 500)]


def test_least_need_bounds_what_may_go() -> None:
    free = boundary(FILES, Lsn(31), [Need("public.t", Lsn(31))], Lsn(0))
    assert (free.lsn, free.holders, free.held_bytes) == (31, (), 0)
    needs = [Need("silver.u", Lsn(21)), Need("public.t", Lsn(15)), Need("public.v", Lsn(35))]
    held = boundary(FILES, Lsn(31), needs, Lsn(5))
    assert (held.lsn, held.kept_from, held.due) == (15, 5, 31)
    assert [(holder.name, holder.lsn, holder.bytes) for holder in held.holders] == [
        ("public.t", 15, 60),
        ("silver.u", 21, 40),
    ]


def test_boundary_never_moves_back() -> None:
    assert boundary(FILES, Lsn(31), [Need("public.t", Lsn(3))], Lsn(21)).lsn == 21
    assert boundary(FILES, Lsn(0), [], Lsn(21)).lsn == 21
    # The reader has yet to remove the files before the mark.
    assert [boundary(FILES, Lsn(0), [], Lsn(kept)).unremoved_bytes for kept in (0, 11, 21)] == [0, 10, 30]


def test_table_behind_removed_changes_holds_nothing() -> None:
    needs = [Need("silver.t", Lsn(3), "silver"), Need("silver.u", Lsn(25), "silver")]
    decided = boundary(FILES, Lsn(31), needs, Lsn(21))
    assert (decided.lsn, decided.behind) == (25, (needs[0],))
    assert [holder.name for holder in decided.holders] == ["silver.u"]


def aged(sink: DeltaSink, lsn: int, days: float, count: int = 1) -> None:
    """Commit a transaction that bronze received some days before `NOW`."""
    changes = rows(lsn, count)
    received = pa.array([NOW - timedelta(days=days)] * count, pa.timestamp("us", tz="UTC"))
    at_column = changes.column_names.index("ingested_at")
    sink.write(changes.set_column(at_column, changes.schema.field(at_column), received))
    sink.commit(at(lsn))


def snapshot(sink: DeltaSink, table: TableName, lsn: int, count: int = 1) -> None:
    sink.tables.commit_snapshot(table, Lsn(lsn), copied(sink, table, lsn, count))


def renew(sink: DeltaSink, table: TableName, lsn: int) -> None:
    sink.tables.commit_renewal(table, Lsn(lsn), copied(sink, table, lsn, 1))


def copied(sink: DeltaSink, table: TableName, lsn: int, count: int) -> list[AddAction]:
    part = sink.parts("snapshot-1")
    plain = rows(lsn, count).to_pylist()
    named = [{**row, "op": OP_SNAPSHOT, "table_name": table.name, "ingested_at": NOW} for row in plain]

    part.write(pa.Table.from_pylist(named, schema=ROWS_SCHEMA))
    return part.finish()


def uri(lake_path: str) -> str:
    return f"{lake_path}/bronze/changes"


def test_time_of_receipt_decides_what_is_due(lake_path: str) -> None:
    sink = open_sink(lake_path)
    for lsn, days in ((10, 100), (20, 95), (30, 80), (40, 1)):
        aged(sink, lsn, days)
    changes = open_existing(uri(lake_path))
    files = files_of(changes)
    for days, due in ((200, 10), (97, 20), (90, 30), (50, 40), (0, 40)):  # the newest file always stays
        assert due_at(changes, files, NOW - timedelta(days=days)) == due
    measured = growth(changes, NOW)
    assert measured is not None
    assert measured.days == 100
    assert measured.bytes_per_day == pytest.approx(measured.size / 100)
    assert measured.after_a_year == pytest.approx(measured.size * (1 + 3.6525), abs=2)
    assert growth(changes, NOW - timedelta(days=99.5)) is None


def test_carried_tables_need_rows_since_copy_or_shape(lake_path: str) -> None:
    sink = open_sink(lake_path)
    snapshot(sink, T, 10)
    snapshot(sink, U, 20)
    commit_marks(open_existing(uri(lake_path)), [Transaction(fingerprint_app(U), NOT_CARRIED)])
    shapes = [replace(shape(lsn, "id"), table=table) for lsn in (25, 5) for table in (T, U, V)]

    def needs() -> list[Need]:
        return snapshot_needs(open_existing(uri(lake_path)), shapes)

    assert needs() == [Need("public.t", Lsn(10))]
    # The first copy of a table may have begun at any LSN, but no row is before the first shape.
    commit_marks(open_existing(uri(lake_path)), [Transaction(fingerprint_app(V), 7)])
    assert needs() == [Need("public.t", Lsn(10)), Need("public.v", Lsn(5))]


def test_renewal_stays_within_bytes_of_day(lake_path: str) -> None:
    sink = open_sink(lake_path)
    for table, lsn, count in ((T, 30, 1), (U, 10, 3000), (V, 20, 1)):
        snapshot(sink, table, lsn, count)
    changes = open_existing(uri(lake_path))
    sizes = {found.table: found.size for found in files_of(changes)}
    later = datetime.now(UTC) + timedelta(days=2)

    def chosen(budget: int, now: datetime = later, grown: int = 0) -> list[TableName]:
        return list(renewable(changes, files_of(changes), {T: 0, U: 0, V: grown}, budget, now))

    assert chosen(sum(sizes.values())) == [U, V, T]  # the oldest first
    assert chosen(sizes[U]) == [U]
    assert chosen(sizes[U] - 1) == [V, T]
    assert chosen(sizes[U] - 1, grown=sizes[U]) == [T]  # V has grown in silver since its snapshot
    assert chosen(0) == []
    assert (
        chosen(sum(sizes.values()), datetime.now(UTC)) == []
    )  # the snapshots of today are the load of today
    version = changes.version()
    request_renewals(uri(lake_path), {U: Lsn(10), T: Lsn(30)})
    changes = open_existing(uri(lake_path))
    assert changes.version() == version + 1  # one commit for all
    assert chosen(sizes[U] + sizes[T] + sizes[V]) == [V]  # U and T are requested already


def test_renewed_base_heals_and_settles_nothing(lake_path: str) -> None:
    sink, shapes = open_sink(lake_path), [replace(shape(5, "id"), table=T)]
    snapshot(sink, T, 10)
    assert sink.tables.to_copy([T, U]) == ({U}, set())
    request_renewals(uri(lake_path), {T: Lsn(10), U: Lsn(3)})
    assert sink.tables.to_copy([T, U]) == ({U}, {T})  # U has no base yet
    assert sink.tables.needing_copy([T]) == set()
    assert is_whole(open_existing(uri(lake_path)), T, Lsn(12))
    request_snapshots(uri(lake_path), [T], Lsn(12))
    renew(sink, T, 15)
    changes = open_existing(uri(lake_path))
    assert sink.tables.to_copy([T]) == ({T}, set())
    assert sink.tables.needing_copy([T]) == {T}
    assert not is_whole(changes, T, Lsn(20))
    assert sink.tables.snapshots([T]) == {T: 10}
    assert sink.tables.newest(shapes) == {T: 15}
    assert [base_of(changes, T, end) for end in (None, Lsn(14), Lsn(9))] == [15, 10, None]
    assert snapshot_needs(changes, shapes) == [Need("public.t", Lsn(15))]
    keep_from(uri(lake_path), Lsn(16))
    sink.commit(at(20))
    assert [found.last for found in files_of(open_existing(uri(lake_path)))] == [15]
    with pytest.raises(TransientError, match=r"the copy of public\.t is of 0/F"):
        renew(sink, T, 15)


def test_reader_removes_whole_files_before_mark(lake_path: str) -> None:
    sink = open_sink(lake_path)
    for lsn in (10, 20, 30):
        sink.write(rows(lsn, 2))
        sink.commit(at(lsn))
    keep_from(uri(lake_path), Lsn(21))
    keep_from(uri(lake_path), Lsn(15))  # the mark only grows
    assert kept_from(open_existing(uri(lake_path))) == 21
    assert len(contents(lake_path)) == 6  # only the reader removes files
    sink.commit(at(31))
    assert contents(lake_path) == [(30, 0), (30, 1)]
    removals = [action["remove"] for action in actions(lake_path) if "remove" in action]
    assert len(removals) == 2
    assert all(removal["dataChange"] for removal in removals)
    assert DeltaTable(uri(lake_path)).metadata().configuration["delta.appendOnly"] == "false"
    assert formats(lake_path) == ["1", "2"]  # before the removal
    version = DeltaTable(uri(lake_path)).version()
    sink.commit(at(32))
    assert DeltaTable(uri(lake_path)).version() == version + 1  # one removal for each mark
    sink.write(rows(33, 1))
    sink.commit(at(33))
    assert contents(lake_path) == [(30, 0), (30, 1), (33, 0)]
    # A version without the second format has removed changes.
    DeltaTable(uri(lake_path)).alter.set_table_properties({FORMAT_PROPERTY: "1"}, raise_if_not_exists=False)
    keep_from(uri(lake_path), Lsn(32))
    later = open_sink(lake_path)
    later.claim()
    later.commit(at(34))
    assert formats(lake_path) == ["1", "2", "1", "2"]
    assert contents(lake_path) == [(33, 0)]


def test_mark_too_high_takes_no_snapshot(lake_path: str) -> None:
    sink = open_sink(lake_path)
    snapshot(sink, T, 10)
    snapshot(sink, U, 10)
    snapshot(sink, U, 15)
    sink.commit(at(18))
    keep_from(uri(lake_path), Lsn(20))
    with pytest.raises(TransientError, match=r"the copy of public\.v is of 0/13") as caught:
        snapshot(sink, V, 19)
    assert caught.value.code == "copy-interrupted"
    snapshot(sink, V, 20)
    sink.commit(at(21))
    assert {(row.table, row.last) for row in files_of(open_existing(uri(lake_path)))} == {
        (T, 10),
        (U, 15),
        (V, 20),
    }
    commit_marks(open_existing(uri(lake_path)), [Transaction(fingerprint_app(T), NOT_CARRIED)])
    keep_from(uri(lake_path), Lsn(21))
    sink.commit(at(22))
    # The source no longer has T, so its rows go by age.
    assert {row.table for row in files_of(open_existing(uri(lake_path)))} == {U, V}


def actions(lake_path: str) -> Iterator[dict[str, Any]]:
    for entry in sorted(Path(uri(lake_path), "_delta_log").glob("*.json")):
        yield from (json.loads(line) for line in entry.read_text().splitlines())


def formats(lake_path: str) -> list[str]:
    """Return the formats that the lake had, in order."""
    stated = (action["metaData"]["configuration"] for action in actions(lake_path) if "metaData" in action)
    return [configuration[FORMAT_PROPERTY] for configuration in stated]


class KilledError(BaseException):
    """The end of a process at a point of its work."""


@pytest.mark.parametrize("point", ["property", "removal"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("ending", [KilledError, OSError])
def test_removal_survives_end_at_each_commit(
    lake_path: str, monkeypatch: pytest.MonkeyPatch, point: str, ending: type[BaseException], *, after: bool
) -> None:
    sink = open_sink(lake_path)
    for lsn in (10, 20):
        sink.write(rows(lsn, 1))
        sink.commit(at(lsn))
    keep_from(uri(lake_path), Lsn(20))
    name = "permit_removals" if point == "property" else "commit"
    original = getattr(FolderTable, name)

    def ends(self: FolderTable, *arguments: Any, **named: Any) -> Any:
        removes = name == "permit_removals" or any(
            hasattr(action, "deletion_timestamp") for action in arguments[0]
        )
        if removes and not after:
            raise ending
        result = original(self, *arguments, **named)
        if removes:
            raise ending
        return result

    with monkeypatch.context() as patched:
        patched.setattr(FolderTable, name, ends)
        sink.write(rows(30, 1))
        with pytest.raises((KilledError, TransientError)):
            sink.commit(at(30))
    position = open_sink(lake_path).position
    assert position is not None
    assert position.frontier == 30  # the commit of the stream stays
    readers = [sink, open_sink(lake_path)] if ending is OSError else [open_sink(lake_path)]
    reader = readers[0]
    reader.discard()
    if reader is not sink:
        reader.claim()
    reader.write(rows(40, 1))
    reader.commit(at(40))
    assert contents(lake_path) == [(20, 0), (30, 0), (40, 0)]


def test_replaced_reader_removes_nothing(lake_path: str) -> None:
    earlier = open_sink(lake_path)
    earlier.claim()
    for lsn in (10, 20):
        earlier.write(rows(lsn, 1))
        earlier.commit(at(lsn))
    owner = earlier._changes.owner
    open_sink(lake_path).claim()
    keep_from(uri(lake_path), Lsn(20))
    assert not remove_old(open_existing(uri(lake_path)), owner)
    with pytest.raises(DefiniteError):
        earlier.commit(at(21))
    assert contents(lake_path) == [(10, 0), (20, 0)]


def test_compaction_and_removal_never_both_succeed(lake_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = open_sink(lake_path)
    sink.claim()
    for lsn in range(1, 40):
        sink.write(rows(lsn, 1))
        monkeypatch.setattr("deltasmelt.bronze.store.sink._COMPACT_AFTER_COMMITS", 10_000)
        sink.commit(at(lsn))
    keep_from(uri(lake_path), Lsn(20))
    owner, original = sink._changes.owner, FolderTable.commit

    def compacts_first(self: FolderTable, *arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(FolderTable, "commit", original)
        sink._compact()
        original(self, *arguments, **named)

    monkeypatch.setattr(FolderTable, "commit", compacts_first)
    assert not remove_old(open_existing(uri(lake_path)), owner)
    assert contents(lake_path) == [(lsn, 0) for lsn in range(1, 40)]
    sink.commit(at(41))  # the joined file has needed rows, and stays
    assert contents(lake_path) == [(lsn, 0) for lsn in range(1, 40)]


def test_log_and_files_become_flat(lake_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FolderTable, "tidy", partialmethod(FolderTable.tidy, retention_hours=0))
    monkeypatch.setattr("deltasmelt.bronze.store.sink._TIDY_EVERY", 25)
    monkeypatch.setattr("deltasmelt.bronze.lake.compaction._CLASSES", (30_000,))  # a joined file is larger
    sink, counts, lsn = open_sink(lake_path), [], 0
    sink.claim()
    folder = Path(uri(lake_path))
    for _ in range(4):
        for _ in range(50):
            lsn += 1
            sink.write(rows(lsn, 1, token_hex(2000)))
            sink.commit(at(lsn))
        keep_from(uri(lake_path), Lsn(lsn - 9))
        for entry in folder.glob("_delta_log/*"):  # Delta compares the age of entries
            os.utime(entry, (entry.stat().st_atime, entry.stat().st_mtime - 3600 * 24 * 40))
        counts.append((len(list(folder.glob("*.parquet"))), len(list(folder.glob("_delta_log/*")))))
    sink.commit(at(lsn + 1))
    assert all(files < 100 and entries < 120 for files, entries in counts), counts
    assert counts[-1] <= counts[1]
    remaining = [row for row, _ in contents(lake_path)]
    assert remaining[0] > 100
    assert {*range(lsn - 9, lsn + 1)} <= {*remaining}


@pytest.mark.process
def test_store_lake_removes_and_continues(place: str) -> None:
    sink, where = open_sink(place), Lake(place).uri("bronze", "changes")
    sink.claim()
    for lsn, days in ((10, 100), (20, 95), (30, 80), (40, 1)):
        aged(sink, lsn, days)
    changes = open_existing(where)
    keep_from(where, due_at(changes, files_of(changes), NOW - timedelta(days=90)))
    for lsn in (41, 42):
        sink.write(rows(lsn, 1))
        sink.commit(at(lsn))
    changes = open_existing(where)
    assert kept_from(changes) == 30
    remaining = pa.Table.from_batches(list(changes.batches(["commit_lsn"])))
    assert sorted(remaining["commit_lsn"].to_pylist()) == [30, 40, 41, 42]
