"""Unnamed files are removed: by the writer, or by the next reader. All further files stay."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from deltasmelt.bronze.config.sections import SnapshotSettings, SourceSettings
from deltasmelt.bronze.drift.observed_storage import ObservedStorage
from deltasmelt.bronze.drift.storage import Part, Storage
from deltasmelt.bronze.drift.streamed import StreamedPart
from deltasmelt.bronze.effects import Effect, guarded
from deltasmelt.bronze.errors import DefiniteError, SmeltError, TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.reader.changed_tables import resnapshot_unpublished
from deltasmelt.bronze.store.catalog_log import StorageLog
from deltasmelt.bronze.store.contract import ROWS_SCHEMA
from deltasmelt.bronze.store.gaps import is_open
from deltasmelt.bronze.store.landing import Landing
from deltasmelt.bronze.store.relations import ShapeLog, read_relations
from tests.bronze.faults import Fault, Faults
from tests.bronze.replaying import assert_bronze_equals_source, execute, read_all, source_of
from tests.bronze.store.test_sink import at, contents, open_sink, rows, shape

if TYPE_CHECKING:
    from deltasmelt.bronze.store.sink import DeltaSink


def files(lake_path: str, table: str = "bronze/changes") -> set[str]:
    return {path.name for path in Path(lake_path, table).glob("*.parquet")}


def rows_of(lake_path: str, table: str) -> int:
    return int(DeltaTable(f"{lake_path}/{table}").to_pyarrow_table().num_rows)


def leave_unnamed(sink: DeltaSink) -> set[str]:
    """Leave files of an open transaction and of a running copy, like a killed process."""
    copied = sink.parts("snapshot-1")
    copied.write(rows(500, 2).cast(ROWS_SCHEMA))
    sink.write(rows(600, 2))
    return {action.path for action in [*copied.finish(), *sink._writer.finish()]}


def test_new_reader_removes_only_never_committed_files(lake_path: str) -> None:
    sink = open_sink(lake_path)
    for lsn in range(1, 40):
        sink.write(rows(lsn, 1))
        sink.commit(at(lsn))
    file_names = files(lake_path)
    assert len(file_names) > len(DeltaTable(f"{lake_path}/bronze/changes").file_uris()), "some were joined"
    unnamed = leave_unnamed(sink)
    Path(lake_path, "bronze/changes/of another tool.parquet").touch()
    assert files(lake_path) == file_names | unnamed | {"of another tool.parquet"}
    second_sink = open_sink(lake_path)
    second_sink.claim()
    assert files(lake_path) == file_names | {"of another tool.parquet"}
    assert contents(lake_path) == [(lsn, 0) for lsn in range(1, 40)]
    writer = second_sink.parts("snapshot-1")
    writer.write(rows(500, 2).cast(ROWS_SCHEMA))
    part = writer.finish()
    second_sink.claim()
    second_sink.tables.commit_snapshot(TableName("public", "t"), Lsn(500), part)
    assert len(contents(lake_path)) == 39 + 2


def test_replaced_reader_cannot_commit_removed_files(lake_path: str) -> None:
    old = open_sink(lake_path)
    old.commit(at(5))
    old.write(rows(10, 3))
    copied = old.parts("snapshot-1")
    copied.write(rows(7, 2).cast(ROWS_SCHEMA))
    part = copied.finish()
    new = open_sink(lake_path)
    new.claim()
    with pytest.raises(SmeltError):  # on a local path it misses the file first
        old.commit(at(10))
    for call in (
        lambda: old._changes.commit([], at(10).marks(), at(10)),
        lambda: old.tables.commit_snapshot(TableName("public", "t"), Lsn(7), part),
        lambda: old.position,
        old._compact,
    ):
        with pytest.raises(DefiniteError) as caught:
            call()
        assert caught.value.code == "lake-in-use"
    new.write(rows(10, 3))
    new.commit(at(10))
    assert contents(lake_path) == [(10, 0), (10, 1), (10, 2)]


@pytest.mark.parametrize("moment", [Effect.REFRESH, Effect.COMMIT])
def test_compaction_of_replaced_reader_fails(lake_path: str, moment: Effect) -> None:
    old = open_sink(lake_path)
    for lsn in range(1, 32):
        old.write(rows(lsn, 1))
        old.commit(at(lsn))

    def claim_meanwhile(door: Effect, where: str, effect: Any) -> Any:
        joined.update([door])
        if door is moment and Effect.FLUSH in joined and not claimed:
            claimed.append(open_sink(lake_path))
            claimed[0].claim()
        return effect()

    joined: set[Effect] = set()
    claimed: list[DeltaSink] = []
    old.write(rows(32, 1))
    part = old._writer.finish()
    old._changes.commit(part, at(32).marks(), at(32))
    with guarded(claim_meanwhile), pytest.raises(DefiniteError):
        old._compact()
    assert claimed
    assert contents(lake_path) == [(lsn, 0) for lsn in range(1, 33)]


def test_files_of_failed_session_are_removed_immediately(lake_path: str) -> None:
    sink = open_sink(lake_path)
    sink.commit(at(5))
    before = files(lake_path)
    sink.write(rows(10, 3))
    sink.discard()
    sink.write(rows(10, 3))
    with guarded(Faults(Fault(Effect.FLUSH, 1, "before"))), pytest.raises(TransientError):
        sink.commit(at(10))
    assert files(lake_path) == before


def test_small_bronze_tables_compact_without_loss(lake_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("store.sink", "store.catalog_log", "lake.control_table"):
        monkeypatch.setattr(f"deltasmelt.bronze.{module}.COMPACT_ABOVE", 10)
    sink, control = open_sink(lake_path), ControlTables(Lake(lake_path))
    shapes = ShapeLog([], sink.add_relations)
    for number in range(1, 40):
        shapes.record([shape(number, *(f"c{at}" for at in range(number % 3 + 1)))])
        sink.tables.record_storages(
            {TableName("public", f"t{number % 7}"): ObservedStorage(Storage(number, {}, {}))}
        )
        control.open_error(OpenError("table", f"t{number}", "some-code", "broken"))
        if number % 2:
            control.close_errors("table", f"t{number}")
    for table in ("bronze/relations", "control/storage", "control/errors"):
        assert len(DeltaTable(f"{lake_path}/{table}").file_uris()) <= 11, table
    assert [relation.from_lsn for relation in read_relations(Lake(lake_path))] == list(range(1, 40))
    log = StorageLog(f"{lake_path}/control/storage")
    recorded = [log.known(TableName("public", f"t{number}")) for number in range(7)]
    assert [version and version.storage.relation_id for version in recorded] == [35, 36, 37, 38, 39, 33, 34]
    assert rows_of(lake_path, "control/storage") <= 7 + 10, "of each table the newest record counts"
    assert {error.name for error in ControlTables(Lake(lake_path)).open_errors()} == {
        f"t{number}" for number in range(2, 40, 2)
    }


SOURCE = SourceSettings(slot="smelt", publication="smelt")


def test_a_dropped_table_is_forgotten_behind_the_stream(
    lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new table each day: a poll finds the table, and the table is dropped the next day."""
    monkeypatch.setattr("deltasmelt.bronze.store.catalog_log.COMPACT_ABOVE", 5)
    sink = open_sink(lake_path)
    sink.commit(at(10))
    landing = Landing(sink, ShapeLog([], sink.add_relations))
    stays = TableName("public", "stays")
    sink.tables.record_storages({stays: ObservedStorage(Storage(1, {}, {}))})
    sizes = []
    for day in range(2, 20):
        table, lsn = TableName("public", f"day{day}"), Lsn(day * 100)
        frontier = Lsn(lsn - 50)

        def look(seen: dict[TableName, int], frontier: Lsn = frontier, lsn: Lsn = lsn) -> None:
            resnapshot_unpublished(landing, SOURCE, list(seen), seen, lsn, frontier=frontier, ruled=())

        look({stays: 5, table: 7})
        landing.shapes.record([replace(shape(lsn - 60, "id"), relation_id=day, table=table)])
        sink.tables.record_storages({table: ObservedStorage(Storage(day, {}, {day: Part(table.name, day)}))})
        sink.tables.note_streamed([StreamedPart(table, day + 10_000, lsn, 7)])
        sink.tables.commit_snapshot(table, Lsn(lsn - 55), [])
        look({stays: 5})
        assert sink.tables.observed_storage(table) is not None, (
            "the stream may still read changes from before"
        )
        look({stays: 5}, frontier=lsn)
        assert sink.tables.observed_storage(table) is None
        assert table not in sink.tables.streamed()
        sizes.append(rows_of(lake_path, "control/storage") + rows_of(lake_path, "control/partitions"))
    assert max(sizes[9:]) <= max(sizes[:9])
    assert sink.tables.observed_storage(stays) == ObservedStorage(Storage(1, {}, {}))
    recreated = TableName("public", "day15")
    resnapshot_unpublished(
        landing, SOURCE, [recreated], {recreated: 7}, Lsn(7000), frontier=Lsn(6000), ruled=()
    )
    assert sink.tables.needing_copy([recreated]) == {recreated}
    assert is_open(open_existing(sink.uri), recreated), "what was changed meanwhile is missing"
    sink.tables.record_storages({recreated: ObservedStorage(Storage(15, {}, {15: Part("day15", 15)}))})
    after_a_start = open_sink(lake_path)
    for table, count in ((stays, 1), (recreated, 15)):
        observed = after_a_start.tables.observed_storage(table)
        assert observed is not None
        assert observed.storage.relation_id == count


def test_error_closed_during_compaction_stays_closed(lake_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deltasmelt.bronze.lake.control_table.COMPACT_ABOVE", 10)
    joining, closing = ControlTables(Lake(lake_path)), ControlTables(Lake(lake_path))
    for number in range(10):
        joining.open_error(OpenError("table", f"t{number}", "some-code", "broken"))
    steps: list[str] = []

    def close_meanwhile(door: Effect, where: str, effect: Any) -> Any:
        result = effect()
        if door is Effect.READ_FILE and not steps:
            steps.append("closed")
            closing.close_errors("table", "t3")
        return result

    with guarded(close_meanwhile):
        joining.open_error(OpenError("table", "t10", "some-code", "broken"))
    assert steps
    names = {error.name for error in ControlTables(Lake(lake_path)).open_errors()}
    assert names == {f"t{number}" for number in range(11)} - {"t3"}


@pytest.mark.postgres
def test_failed_or_stopped_copy_leaves_no_file(database: str, lake_path: str) -> None:
    source = source_of(database)
    execute(
        source,
        "CREATE TABLE items (id int PRIMARY KEY, name text)",
        "INSERT INTO items SELECT i, repeat('x', 200) FROM generate_series(1, 20000) i",
    )
    small = SnapshotSettings(chunk_rows=3000, workers=2)
    file_sets: list[set[str]] = []
    stop = threading.Event()

    def look(point: str) -> None:
        if point == "snapshot-block-written":
            file_sets.append({name for name in files(lake_path) if name.startswith("snapshot-")})
            if len(file_sets) >= 5:
                stop.set()
                time.sleep(0.5)

    read_all(source, lake_path, reached=look, snapshot=small, stop=stop)
    assert file_sets[-1], "it was writing"
    assert not [name for name in files(lake_path) if name.startswith("snapshot-")]
    faults = Faults(Fault(Effect.WRITE_PART, 4, "before"))
    with guarded(faults):
        read_all(source, lake_path, snapshot=small)
    assert faults.failed
    file_names = {Path(uri).name for uri in DeltaTable(f"{lake_path}/bronze/changes").file_uris()}
    assert files(lake_path) == file_names
    assert_bronze_equals_source(source, lake_path, "public.items")
