"""The Delta sink: one commit per flush with its marks, bounded files, refusal of foreign lakes."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError, TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import compaction
from deltasmelt.bronze.lake.compaction import SmallFile, compact
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.folder_table import FolderTable
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.postgres.connection import ServerIdentity
from deltasmelt.bronze.shapes import Column, PgType, Relation
from deltasmelt.bronze.store.contract import CHANGES_SCHEMA, ROWS_SCHEMA
from deltasmelt.bronze.store.position import Position, SentTransaction, read_position
from deltasmelt.bronze.store.relations import ShapeLog, read_relations
from deltasmelt.bronze.store.sink import DeltaSink
from tests.bronze.replaying import read_snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.bronze.lake.table import Table

IDENTITY = ServerIdentity(system_identifier=7, timeline=1, version=160000, database="shop")


def open_sink(lake_path: str, pipeline: str = "shop", identity: ServerIdentity = IDENTITY) -> DeltaSink:
    return DeltaSink(Lake(lake_path), pipeline, identity)


def at(lsn: int) -> Position:
    return Position(Lsn(lsn), Lsn(lsn + 1), 0, None)


def rows(lsn: int, count: int, text: str = "x") -> pa.Table:
    plain = [
        {
            "commit_lsn": lsn, "seq": number, "op": "insert", "table_schema": "public", "table_name": "t",
            "relation_id": 1, "columns": ["id"], "new": [text], "end_of_tx": number == count - 1,
        }
        for number in range(count)
    ]  # fmt: skip
    return pa.Table.from_pylist(plain, schema=CHANGES_SCHEMA)


def contents(lake_path: str) -> list[tuple[int, int]]:
    table = DeltaTable(f"{lake_path}/bronze/changes").to_pyarrow_dataset().to_table()
    return sorted(zip(table["commit_lsn"].to_pylist(), table["seq"].to_pylist(), strict=True))


def shape(lsn: int, *names: str) -> Relation:
    columns = tuple(
        Column(name, at, PgType("base", "int4", oid=23), "integer") for at, name in enumerate(names, 1)
    )
    return Relation(1, TableName("public", "t"), columns, ("id",), "d", Lsn(lsn))


def test_rows_and_place_become_visible_in_one_version(lake_path: str) -> None:
    sink = open_sink(lake_path)
    assert sink.position is None
    sink.write(rows(10, 3))
    sink.write(rows(11, 2))
    assert contents(lake_path) == []
    committed = sink.commit(at(11))
    assert committed.version == 1
    assert contents(lake_path) == [(10, 0), (10, 1), (10, 2), (11, 0), (11, 1)]
    assert read_position(Lake(lake_path)) == committed
    assert [action["txn"] for action in _log(lake_path, 1) if "txn" in action]
    assert len([action for action in _log(lake_path, 1) if "add" in action]) == 1


def test_newest_transaction_counts_only_with_recorded_frontier(
    lake_path: str,
) -> None:
    sink = open_sink(lake_path)
    sent = SentTransaction(Lsn(9), 5)
    assert sink.commit(replace(at(10), sent=sent)) == read_position(Lake(lake_path))
    sink.commit(at(20))  # as a release does that records no such transaction
    assert (position := read_position(Lake(lake_path))) is not None
    assert (position.frontier, position.sent) == (20, None)
    sink.commit(replace(at(30), sent=sent))
    assert (position := read_position(Lake(lake_path))) is not None
    assert position.sent == sent


def test_marks_alone_are_a_commit_without_files(lake_path: str) -> None:
    sink = open_sink(lake_path)
    sink.commit(at(5))
    assert not [action for action in _log(lake_path, 1) if "add" in action]
    assert open_sink(lake_path).position == Position(Lsn(5), Lsn(6), 1, None)


def test_what_was_discarded_is_in_no_version(lake_path: str) -> None:
    sink = open_sink(lake_path)
    sink.write(rows(10, 3))
    sink.discard()
    sink.write(rows(11, 1))
    sink.commit(at(11))
    assert contents(lake_path) == [(11, 0)]


def test_large_transaction_spans_files_of_single_version(
    lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltasmelt.bronze.lake.parquet.FILE_BYTES", 20_000)
    sink = open_sink(lake_path)
    for _ in range(5):
        sink.write(rows(10, 1000))
    sink.commit(at(10))
    assert len([action for action in _log(lake_path, 1) if "add" in action]) == 5


def test_many_commits_leave_checkpoints_and_short_log(lake_path: str) -> None:
    sink = open_sink(lake_path)
    for lsn in range(1, 120):
        sink.commit(at(lsn))
    checkpoints = Path(lake_path, "bronze/changes/_delta_log").glob("*.checkpoint*.parquet")
    assert max(int(path.name.split(".")[0]) for path in checkpoints) >= 119 - 50
    position = read_position(Lake(lake_path))
    assert position is not None
    assert position.frontier == 119


@pytest.mark.parametrize(
    ("pipeline", "identity", "code"),
    [
        ("other", IDENTITY, "lake-of-another-pipeline"),
        ("shop", ServerIdentity(8, 1, 160000, "shop"), "lake-of-another-server"),
        ("shop", ServerIdentity(7, 1, 160000, "crm"), "lake-of-another-database"),
    ],
)
def test_a_foreign_lake_is_refused_with_a_remedy(
    lake_path: str, pipeline: str, identity: ServerIdentity, code: str
) -> None:
    open_sink(lake_path)
    with pytest.raises(DefiniteError, match=r"remedy: set another lake\.path") as caught:
        open_sink(lake_path, pipeline, identity)
    assert caught.value.code == code


def test_newer_timeline_of_same_cluster_is_accepted(lake_path: str) -> None:
    open_sink(lake_path).commit(at(5))
    promoted = ServerIdentity(7, 2, 160000, "shop")
    position = open_sink(lake_path, identity=promoted).position
    assert position is not None
    assert position.frontier == 5


def test_second_writer_is_detected_without_doubled_rows(lake_path: str) -> None:
    first, second = open_sink(lake_path), open_sink(lake_path)
    first.write(rows(10, 1))
    first.commit(at(10))
    second.write(rows(10, 1))
    with pytest.raises(DefiniteError) as caught:
        second.commit(at(10))
    assert caught.value.code == "lake-in-use"
    assert contents(lake_path) == [(10, 0)]


def test_second_writer_is_detected_behind_snapshot_commit(lake_path: str) -> None:
    first, second = open_sink(lake_path), open_sink(lake_path)
    first.write(rows(10, 1))
    first.commit(at(10))
    with pytest.raises(DefiniteError) as caught:
        second.tables.commit_snapshot(TableName("public", "t"), Lsn(3), [])
    assert caught.value.code == "lake-in-use"


def test_a_compaction_in_between_is_no_second_writer(lake_path: str) -> None:
    sink = open_sink(lake_path)
    for lsn in (10, 11):
        sink.write(rows(lsn, 1))
        sink.commit(at(lsn))
    DeltaTable(f"{lake_path}/bronze/changes").optimize.compact()
    sink.write(rows(12, 1))
    sink.commit(at(12))
    assert contents(lake_path) == [(10, 0), (11, 0), (12, 0)]


def test_small_files_are_joined_without_losing_rows(lake_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_COMPACT_AFTER_COMMITS", "_MANY_FILES"):
        monkeypatch.setattr(f"deltasmelt.bronze.store.sink.{name}", 8)
    sink = open_sink(lake_path)
    for lsn in range(1, 51):
        sink.write(rows(lsn, 3, "x" * lsn))
        sink.commit(at(lsn))
    table = DeltaTable(f"{lake_path}/bronze/changes")
    assert len(table.file_uris()) < 19
    assert contents(lake_path) == [(lsn, seq) for lsn in range(1, 51) for seq in range(3)]
    assert read_position(Lake(lake_path)) == sink.position
    texts = table.to_pyarrow_dataset().to_table()
    assert {len(text[0]) for text in texts["new"].to_pylist()} == set(range(1, 51))
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert sum(action["num_records"] for action in actions) == 150
    assert max(action["max.commit_lsn"] for action in actions) == 50
    # What an earlier version holds stays readable.
    table.load_as_version(5)
    assert table.to_pyarrow_dataset().to_table().num_rows == 15


def test_expired_entries_and_files_vanish_but_unnamed_stay(
    lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old log entries and joined files are removed; files without a commit yet stay."""
    monkeypatch.setattr("deltasmelt.bronze.store.sink._TIDY_EVERY", 150)
    monkeypatch.setattr(FolderTable, "tidy", partialmethod(FolderTable.tidy, retention_hours=0))
    folder = Path(lake_path, "bronze/changes")
    sink = open_sink(lake_path)
    of_a_snapshot = sink.parts("snapshot")
    of_a_snapshot.write(rows(500, 2).cast(ROWS_SCHEMA))
    (unnamed,) = of_a_snapshot.finish()
    for lsn in range(1, 140):
        sink.write(rows(lsn, 1))
        sink.commit(at(lsn))
    long_ago = time.time() - 2 * 24 * 3600
    for entry in [*folder.glob("_delta_log/*"), folder / unnamed.path]:
        os.utime(entry, (long_ago, long_ago))
    for lsn in range(140, 160):
        sink.write(rows(lsn, 1))
        sink.commit(at(lsn))
    entries = sorted(int(entry.stem) for entry in folder.glob("_delta_log/*.json"))
    assert 90 < entries[0] <= 100, "those before a checkpoint are gone"
    stream = {path.name for path in folder.glob("stream-*")}
    assert stream == {Path(uri).name for uri in DeltaTable(str(folder)).file_uris()} & stream
    assert contents(lake_path) == [(lsn, 0) for lsn in range(1, 160)]
    assert open_sink(lake_path).position == sink.position
    sink.tables.commit_snapshot(TableName("public", "t"), Lsn(500), [unnamed])
    assert len(contents(lake_path)) == 159 + 2


def test_statistics_state_relations_and_number_of_nulls(lake_path: str) -> None:
    sink = open_sink(lake_path)
    message = rows(2, 1).to_pylist()[0] | {"op": "message", "relation_id": None, "table_name": None}
    sink.write(rows(1, 2))
    sink.write(pa.Table.from_pylist([message], schema=CHANGES_SCHEMA))
    sink.commit(at(2))
    (file,) = pa.table(open_existing(f"{lake_path}/bronze/changes").get_add_actions(flatten=True)).to_pylist()
    assert (file["min.relation_id"], file["max.relation_id"]) == (1, 1)
    names = ("commit_lsn", "relation_id", "table_schema", "table_name")
    assert [file[f"null_count.{name}"] for name in names] == [0, 1, 0, 1]


def compact_changes(table: Table) -> bool:
    return compact(table, CHANGES_SCHEMA, many=2, prefix="stream", measured=["commit_lsn"])


@pytest.mark.parametrize("other", ["ours", "another tool's"])
def test_single_compaction_wins_without_doubled_rows(
    lake_path: str, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    sink = open_sink(lake_path)
    for lsn in range(1, 20):
        sink.write(rows(lsn, 1))
        sink.commit(at(lsn))
    uri = f"{lake_path}/bronze/changes"
    find = compaction.small_files

    def find_while_another_compacts(table: Table, **how: Any) -> list[SmallFile]:
        files = find(table, **how)
        monkeypatch.undo()
        if other == "ours":
            assert compact_changes(open_existing(uri))
        else:
            DeltaTable(uri).optimize.compact()
        return files

    monkeypatch.setattr(compaction, "small_files", find_while_another_compacts)
    assert not compact_changes(open_existing(uri))
    assert contents(lake_path) == [(lsn, 0) for lsn in range(1, 20)]
    sink.write(rows(20, 1))
    sink.commit(at(20))
    assert contents(lake_path) == [(lsn, 0) for lsn in range(1, 21)]


def test_compaction_behind_last_check_is_rejected_by_delta(lake_path: str) -> None:
    sink = open_sink(lake_path)
    for lsn in range(1, 20):
        sink.write(rows(lsn, 1))
        sink.commit(at(lsn))
    uri = f"{lake_path}/bronze/changes"
    late = DeltaTable(uri)
    version = late.version()
    assert compact_changes(open_existing(uri))
    with pytest.raises(CommitFailedError):
        late.create_write_transaction(
            [],
            mode="append",
            schema=CHANGES_SCHEMA,
            commit_properties=CommitProperties(
                app_transactions=[Transaction(compaction.COMPACTION_APP, version)]
            ),
        )


def test_snapshots_commit_from_other_threads_beside_the_stream(lake_path: str) -> None:
    sink = open_sink(lake_path)
    failures: list[BaseException] = []

    def copy(number: int) -> None:
        try:
            writer = sink.parts("snapshot")
            writer.write(rows(1000 + number, 2).cast(ROWS_SCHEMA))
            sink.tables.commit_snapshot(
                TableName("public", f"t{number}"), Lsn(1000 + number), writer.finish()
            )
        except BaseException as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    threads = [threading.Thread(target=copy, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for lsn in range(1, 20):
        sink.write(rows(lsn, 1))
        sink.commit(at(lsn))
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(contents(lake_path)) == 19 + 16
    assert [read_snapshot(Lake(lake_path), TableName("public", f"t{number}")) for number in range(8)] == list(
        range(1000, 1008)
    )


def test_unwritable_storage_is_transient_fault(lake_path: str) -> None:
    sink = open_sink(lake_path)
    sink.commit(at(5))
    folder = Path(lake_path, "bronze/changes/_delta_log")
    hidden = folder.rename(folder.with_name("hidden"))
    folder.write_text("a file where the log should be")
    with pytest.raises(TransientError) as caught:
        sink.commit(at(6))
    assert caught.value.code == "lake-unwritable"
    folder.unlink()
    hidden.rename(folder)
    assert sink.position == Position(Lsn(5), Lsn(6), 1, None)
    sink.discard()
    sink.commit(at(6))


def test_catalog_lake_is_rejected_with_remedy() -> None:
    with pytest.raises(ConfigurationError, match=r"set lake\.path"):
        DeltaSink(Lake(catalog="main"), "shop", IDENTITY)


def test_shape_is_appended_only_if_different_at_position(lake_path: str) -> None:
    sink = open_sink(lake_path)
    log = ShapeLog(sink.relations(), sink.add_relations)
    log.record([shape(50, "id")])
    log.record([shape(60, "id"), shape(200, "id", "more")])
    log.record([shape(210, "id", "more")])
    # Behind a snapshot's newer shape the stream announces what held before it.
    log.record([shape(120, "id", "more")])
    log.record([shape(100, "id")])
    recorded = [(relation.from_lsn, len(relation.columns)) for relation in read_relations(Lake(lake_path))]
    assert recorded == [(50, 1), (120, 2), (200, 2)]
    second_log = ShapeLog(sink.relations(), sink.add_relations)
    second_log.record([shape(300, "id", "more")])
    assert len(read_relations(Lake(lake_path))) == 3
    assert [relation.from_lsn for relation in second_log.until(Lsn(150))] == [50, 120]


def test_doubtful_columns_are_known_without_scan_of_versions(lake_path: str) -> None:
    """Until a later record at the position identifies the columns, and also after a restart."""
    sink = open_sink(lake_path)
    log = ShapeLog(sink.relations(), sink.add_relations)
    recorded = shape(60, "id", "b")
    doubtful = replace(recorded, columns=(recorded.columns[0], replace(recorded.columns[1], attnum=None)))
    log.record([shape(50, "id"), doubtful])
    log.record([replace(doubtful, from_lsn=Lsn(70))], ahead=True)
    for shape_log in (log, ShapeLog(sink.relations(), sink.add_relations)):
        assert shape_log.unknown_columns() == {recorded.relation_id: 70}
    log.record([replace(recorded, from_lsn=Lsn(70))])
    assert log.unknown_columns() == {recorded.relation_id: 60}
    log.record([recorded])
    assert log.unknown_columns() == {}
    many = [replace(shape(50, "id"), relation_id=number) for number in range(20_000)]
    large, start = ShapeLog(many, sink.add_relations), time.perf_counter()
    for _ in range(1000):
        large.unknown_columns()
    assert time.perf_counter() - start < 1, "it was two milliseconds a call, now it is one a thousand"


def test_shapes_of_transaction_are_recorded_in_order(lake_path: str) -> None:
    sink = open_sink(lake_path)
    log = ShapeLog(sink.relations(), sink.add_relations)
    first, second = shape(50, "id"), replace(shape(50, "id", "a"), after_lsn=Lsn(42))
    third = replace(shape(50, "id"), after_lsn=Lsn(44))
    log.record([first, second, third])
    log.record([first, second, third])
    assert sink.relations() == [first, second, third]
    assert log.before(third) == [first, second]
    assert log.before(first) == []
    ShapeLog(sink.relations(), sink.add_relations).record([replace(second, replica_identity="f")])
    assert [relation.replica_identity for relation in sink.relations()] == ["d", "f", "d"]


def test_copy_shape_outlasts_earlier_stream_announcement(lake_path: str) -> None:
    sink = open_sink(lake_path)
    log = ShapeLog(sink.relations(), sink.add_relations)
    log.record([shape(50, "id")])
    log.record([shape(100, "id")], ahead=True)
    log.record([shape(100, "id")], ahead=True)
    log.record([shape(70, "id", "tmp")])
    log.record([shape(120, "id")])
    assert [(relation.from_lsn, len(relation.columns)) for relation in sink.relations()] == [
        (50, 1),
        (70, 2),
        (100, 1),
    ]


def test_shape_with_failed_append_is_appended_on_reannouncement() -> None:
    durable: list[Relation] = []
    failures = [OSError("no space left on device")]

    def append(relations: Sequence[Relation]) -> None:
        if failures:
            raise failures.pop()
        durable.extend(relations)

    log = ShapeLog([shape(50, "id")], append)
    with pytest.raises(OSError, match="no space"):
        log.record([shape(60, "id", "a")])
    assert log.until(Lsn(100)) == [shape(50, "id")]
    log.record([shape(60, "id", "a")])
    assert durable == [shape(60, "id", "a")]


def _log(lake_path: str, version: int) -> Sequence[dict[str, Any]]:
    import json  # noqa: PLC0415

    entry = Path(lake_path, "bronze/changes/_delta_log", f"{version:020}.json")
    return [json.loads(line) for line in entry.read_text().splitlines()]
