"""What a gone table leaves in bronze ends with its rows, and a table of its name begins anew."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Transaction

from deltasmelt.bronze.drift.membership import NOT_CARRIED
from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.delta import open_existing, open_or_create
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.parquet import file_system
from deltasmelt.bronze.lake.transactions import ENDED
from deltasmelt.bronze.lsn import LAST, ZERO, Lsn
from deltasmelt.bronze.store.changes_table import commit_marks
from deltasmelt.bronze.store.gaps import healed_at, is_left_out, is_open, is_whole, needs_snapshot, note
from deltasmelt.bronze.store.gone import gone_relations, unneeded_shapes
from deltasmelt.bronze.store.marks import detached_app, fingerprint_app, snapshot_app, snapshot_of
from deltasmelt.bronze.store.relations import ShapeLog, read_relations
from deltasmelt.bronze.store.retention import keep_from
from tests.bronze.store.test_sink import at, open_sink, rows, shape

if TYPE_CHECKING:
    from deltasmelt.bronze.lake.place import Location
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.store.sink import DeltaSink

T, U = TableName("public", "t"), TableName("public", "u")


def named(relation_id: int, table: TableName, lsn: int, after: int = 0) -> Relation:
    return replace(shape(lsn, "id", f"c{lsn}"), relation_id=relation_id, table=table, after_lsn=Lsn(after))


def test_superseded_and_unselected_relations_are_gone() -> None:
    shapes = [
        named(1, T, 10),
        named(2, T, 20),
        named(3, U, 5),
        named(3, T, 8),
        named(4, T, 3),
        named(4, U, 30),
    ]
    assert gone_relations(shapes, [T, U]) == {1, 3}
    assert gone_relations(shapes, [T]) == {1, 3, 4}
    assert gone_relations(shapes, []) == {1, 2, 3, 4}


def test_version_at_the_horizon_keeps_its_predecessor() -> None:
    shapes = [named(1, T, 10), named(1, T, 20, 18), named(1, T, 20, 19), named(1, T, 30), named(2, U, 12)]
    assert unneeded_shapes(shapes, ZERO, {2: Lsn(1)}) == [named(2, U, 12)] * False
    assert unneeded_shapes(shapes, Lsn(20), {}) == []
    assert unneeded_shapes(shapes, Lsn(21), {2: Lsn(22)}) == shapes[:2]
    assert unneeded_shapes(shapes, Lsn(31), {2: Lsn(31)}) == [*shapes[:3], shapes[4]]


class Bronze:
    """A bronze with a carried table `u`, and a table `t` that went at 30."""

    def __init__(self, path: str) -> None:
        self.path, self.lake = path, Lake(path)
        self.sink = open_sink(path)
        self.sink.claim()
        self.shapes = ShapeLog([], self.sink.add_relations)
        self.shapes.record([named(1, T, 10), named(1, T, 12), named(2, U, 11), named(2, U, 15)])
        for lsn, table in ((10, T), (11, U)):
            self.sink.tables.commit_snapshot(table, Lsn(lsn), [])
        note(self.sink.uri, {T: 7, U: 8}, [], Lsn(12))
        self.write(20)

    def write(self, lsn: int) -> None:
        self.sink.write(rows(lsn, 2))
        self.sink.commit(at(lsn))

    def poll(self, end: int, sink: DeltaSink | None = None) -> None:
        """Poll as the reader: `t` is gone, and the stream has come past its end."""
        sink = sink or self.sink
        note(sink.uri, {U: 8}, sorted(self.shapes.tables() - {U}), Lsn(end))
        sink.gone._next = 0.0
        sink.gone.forget(self.shapes, [U], Lsn(end))

    def remove_until(self, lsn: int) -> None:
        keep_from(self.sink.uri, Lsn(lsn))
        self.sink.position  # noqa: B018 - reads the mark
        self.sink.commit(at(lsn + 100))

    def changes(self) -> Table:
        return open_existing(self.sink.uri)

    def marks(self, table: TableName) -> dict[str, int]:
        found = self.changes().marks() or {}
        return {app: mark for app, mark in found.items() if app.endswith(f":{table.quoted}")}

    def places(self) -> list[tuple[int, int]]:
        return [(one.relation_id, int(one.from_lsn)) for one in read_relations(self.lake)]


@pytest.fixture
def bronze(lake_path: str) -> Bronze:
    return Bronze(lake_path)


def test_gone_table_ends_with_its_last_row(bronze: Bronze) -> None:
    everything = [(1, 10), (1, 12), (2, 11), (2, 15)]
    bronze.poll(30)
    bronze.write(40)
    bronze.poll(41)
    assert bronze.places() == everything, "without a retention each row stays"
    keep_from(bronze.sink.uri, Lsn(35))
    bronze.poll(42)
    assert bronze.places() == [(1, 12), (2, 15)], "a file still has rows of 20"
    assert is_left_out(bronze.changes(), T)
    bronze.remove_until(35)
    bronze.poll(43)
    assert bronze.places() == [(2, 15)]
    assert bronze.marks(T) == {}
    assert bronze.marks(U) == {snapshot_app(U): 11, fingerprint_app(U): 8}
    assert snapshot_of(bronze.changes(), T) is None
    assert not is_left_out(bronze.changes(), T)
    assert bronze.shapes.tables() == {U}
    before = bronze.changes().version()
    bronze.poll(44)
    assert bronze.changes().version() == before, "nothing is left to do"


def checkpointed(table: Table) -> dict[str, int]:
    """Make a checkpoint; return its marks as another program reads them."""
    any_table: Any = table
    any_table.checkpoint()
    (hint,) = Path(table.table_uri, "_delta_log").glob("_last_checkpoint")
    stated = json.loads(hint.read_text())
    file = hint.with_name(f"{stated['version']:020}.checkpoint.parquet")
    found = pq.read_table(file)
    assert stated["size"] == found.num_rows
    return {row["appId"]: row["version"] for row in found["txn"].to_pylist() if row is not None}


def test_next_checkpoint_leaves_ended_marks_out(bronze: Bronze) -> None:
    old_handle = bronze.changes()
    assert snapshot_of(old_handle, T) == 10
    for lsn, end in ((40, 30), (50, 45)):
        bronze.write(lsn)
        bronze.poll(end)
    bronze.remove_until(46)
    bronze.poll(47)
    files = {path: bronze.changes().read_file(path) for path in bronze.changes().paths()}
    marks = checkpointed(bronze.changes())
    assert not [app for app in marks if app.endswith(T.quoted)]
    assert marks[snapshot_app(U)] == 11
    newest = bronze.changes()
    assert {path: newest.read_file(path) for path in newest.paths()} == files
    assert DeltaTable(bronze.sink.uri).transaction_version(snapshot_app(T)) is None
    assert DeltaTable(bronze.sink.uri).transaction_version(snapshot_app(U)) == 11
    old_handle.refresh()
    assert snapshot_of(old_handle, T) is None, "also with marks that were read before"
    bronze.write(200)
    assert checkpointed(bronze.changes()) == {**marks, **(bronze.changes().marks() or {})}


def test_returning_name_begins_anew_with_gap(bronze: Bronze) -> None:
    bronze.poll(30)
    bronze.write(40)
    bronze.remove_until(35)
    bronze.poll(43)
    returned = named(9, T, 150)
    bronze.shapes.record([returned])
    assert not is_whole(bronze.changes(), T, LAST), "silver's table may have the rows of long ago"
    assert note(bronze.sink.uri, {T: 99, U: 8}, [], Lsn(160)) == []
    changes = bronze.changes()
    assert needs_snapshot(changes, T)
    assert is_open(changes, T)
    assert gone_relations(bronze.shapes.until(LAST), [T, U]) == set()
    bronze.poll(161)
    assert (9, 150) in bronze.places(), "its rows are not past"
    bronze.sink.tables.commit_snapshot(T, Lsn(170), [])
    assert healed_at(bronze.changes(), T) == 170
    assert is_whole(bronze.changes(), T, LAST)


def test_failed_removal_and_killed_process_are_repeated(
    bronze: Bronze, monkeypatch: pytest.MonkeyPatch
) -> None:
    bronze.poll(30)
    bronze.write(40)
    bronze.remove_until(35)

    def refuse(_: object) -> None:
        raise TransientError("no", code="lake-unwritable", where="", remedy="")

    with monkeypatch.context() as patched:
        patched.setattr(bronze.sink.gone, "_remove", refuse)
        with pytest.raises(TransientError):
            bronze.poll(43)
    assert len(bronze.places()) == 4, "nothing was removed"
    assert is_left_out(bronze.changes(), T)
    # The next process, which finds the versions again; it is killed between shapes and marks.
    bronze.shapes = ShapeLog(read_relations(bronze.lake), bronze.sink.add_relations)
    second = open_sink(bronze.path)
    with monkeypatch.context() as patched:
        patched.setattr("deltasmelt.bronze.store.gone.apps_of_ended", lambda *_: [])
        note(second.uri, {U: 8}, [T], Lsn(50))
        second.gone._gone_at = {1: Lsn(30)}
        bronze.poll(50, second)
    assert bronze.places() == [(2, 15)]
    assert is_left_out(bronze.changes(), T)
    third = open_sink(bronze.path)
    bronze.poll(60, third)
    assert bronze.marks(T) == {}


def test_marks_of_present_and_unknown_tables_stay(bronze: Bronze) -> None:
    """A table with a problem has no shape, and a relation's own mark belongs to no table."""
    others = [
        Transaction(fingerprint_app(TableName("public", "problem")), NOT_CARRIED),
        Transaction(fingerprint_app(TableName("public", 'od:d"')), NOT_CARRIED),
        Transaction(snapshot_app(TableName("public", "never polled")), 5),
        Transaction(detached_app(77), 1),
    ]
    commit_marks(bronze.changes(), others)
    bronze.sink.gone.forget(bronze.shapes, [T, U, TableName("public", "problem")], Lsn(30))
    found = bronze.changes().marks() or {}
    assert [app for app in (mark.app_id for mark in others) if app in found] == [
        others[0].app_id, others[2].app_id, others[3].app_id,
    ]  # fmt: skip


@pytest.mark.process
def test_checkpoint_in_a_store_leaves_ended_out(place: Location) -> None:
    table = open_or_create(place / "t", pa.schema([pa.field("a", pa.int64())]), description="")
    commit_marks(table, [Transaction("one", 1), Transaction("other", 2)])
    commit_marks(table, [Transaction("one", ENDED)])
    assert table.marks() == {"other": 2}
    any_table: Any = table
    any_table.checkpoint()
    newest = open_existing(place / "t")
    assert newest.marks() == {"other": 2}
    log = file_system(place / "t")
    with log.open_input_file(f"_delta_log/{newest.version():020}.checkpoint.parquet") as file:
        found = pq.read_table(file)["txn"].drop_null().to_pylist()
    assert [(row["appId"], row["version"]) for row in found] == [("other", 2)]
    newest.append(pa.table({"a": [1]}))
    assert newest.row_count() == 1
