"""A log entry torn by a power cut counts as no commit; with later entries the torn entry is an error."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from deltasmelt.bronze.effects import Effect, guarded
from deltasmelt.bronze.errors import DefiniteError, TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import delta, torn_log
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.torn_log import set_torn_aside
from deltasmelt.bronze.store.changes_table import commit_changes
from deltasmelt.bronze.store.marks import gap_app
from deltasmelt.bronze.store.relations import RelationsWatch
from deltasmelt.silver.run.stored import SILVER_APP
from deltasmelt.silver.run.table_log import SilverLog
from tests.bronze.store.test_sink import at, contents, open_sink, rows, shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltasmelt.bronze.lake.location import Layer

GAPS = [TableName("public", f"a_table_with_a_rather_long_name_{number}") for number in range(100)]


def newest(lake_path: str, table: str = "bronze/changes") -> Path:
    return max(Path(lake_path, table, "_delta_log").glob("*.json"))


def in_pages(size: int) -> Callable[[bytes], bytes]:
    return lambda whole: whole[:size]


def with_zeros(whole: bytes) -> bytes:
    return whole[:4096] + bytes(len(whole) - 4096)


def bytes_of_zero(whole: bytes) -> bytes:
    return bytes(len(whole))


def at_a_line(whole: bytes) -> bytes:
    """Cut the entry before its last line; Delta accepts the rest as a whole entry."""
    return whole[: whole.rindex(b"\n")]


@pytest.mark.parametrize(
    "tear", [in_pages(4096), in_pages(8192), with_zeros, at_a_line, in_pages(0), in_pages(50), bytes_of_zero]
)
def test_torn_last_entry_is_rolled_back(lake_path: str, tear: Callable[[bytes], bytes]) -> None:
    sink = open_sink(lake_path)
    sink.write(rows(100, 2))
    sink.commit(at(100))
    sink.write(rows(200, 2))
    marks = [*at(200).marks(), *(Transaction(gap_app(table), 1) for table in GAPS)]
    commit_changes(sink._changes._table, sink._writer.finish(), marks)
    entry = newest(lake_path)
    whole = entry.read_bytes()
    assert len(whole) > 10_000
    entry.write_bytes(tear(whole))

    second_sink = open_sink(lake_path)
    assert second_sink.position is not None
    assert second_sink.position.frontier == 100
    assert contents(lake_path) == [(100, 0), (100, 1)]
    second_sink.write(rows(200, 2))
    second_sink.commit(at(200))
    assert contents(lake_path) == [(100, 0), (100, 1), (200, 0), (200, 1)]


def test_every_commit_says_how_many_actions_it_has(lake_path: str) -> None:
    sink = open_sink(lake_path)
    for lsn in range(100, 200):  # joins files on its way
        sink.write(rows(lsn, 1))
        sink.commit(at(lsn))
    control = ControlTables(Lake(lake_path))
    for number in range(20):
        control.open_error(OpenError("table", f"t{number}", "some-code", "said", None))
        control.close_errors("table", f"t{number}")
    for reopened in (open_sink(lake_path), open_sink(lake_path)):
        assert reopened.position is not None
        assert reopened.position.frontier == 199
    assert ControlTables(Lake(lake_path)).open_errors() == []
    assert not list(newest(lake_path).parent.glob("*.torn"))
    assert not list(newest(lake_path, "control/errors").parent.glob("*.torn"))


@pytest.mark.parametrize("tear", [in_pages(0), at_a_line, lambda whole: whole[:-10]])
def test_early_reader_sees_replacement_of_torn_entry(lake_path: str, tear: Callable[[bytes], bytes]) -> None:
    """Delta accepts the first two as whole entries, and reads no version twice."""
    lake, sink = Lake(lake_path), open_sink(lake_path)
    control = ControlTables(lake)
    control.open_error(OpenError("table", "a", "some-code", "said", None))
    sink.add_relations([shape(100, "id")])
    control.open_error(OpenError("table", "b", "some-code", "said", None))
    sink.add_relations([shape(200, "id", "a")])
    for table in ("control/errors", "bronze/relations"):
        entry = newest(lake_path, table)
        entry.write_bytes(tear(entry.read_bytes()))

    read, watch = ControlTables(lake), RelationsWatch(lake)
    assert [error.name for error in read.open_errors()] == ["a"]
    assert [version.from_lsn for version in watch.read()] == [100]
    ControlTables(lake).open_error(OpenError("table", "b", "some-code", "said", None))
    open_sink(lake_path).add_relations([shape(200, "id", "a")])
    assert [error.name for error in read.open_errors()] == ["a", "b"]
    assert [version.from_lsn for version in watch.read()] == [100, 200]
    read.close_errors("table", "b")
    assert [error.name for error in ControlTables(lake).open_errors()] == ["a"]


@pytest.mark.parametrize("tear", [in_pages(0), in_pages(50), bytes_of_zero, lambda whole: whole[:-10]])
def test_torn_spark_entry_is_removed_with_its_checksums(
    tmp_path: Path, tear: Callable[[bytes], bytes]
) -> None:
    """Spark's commits count no actions. The lost version's checksum would count for the next entry."""
    lake, log = Lake(str(tmp_path)), tmp_path / "silver" / "t" / "_delta_log"
    for lsn in (1, 2):
        mark = CommitProperties(app_transactions=[Transaction(SILVER_APP, lsn)])
        write_deltalake(lake.uri("silver", "t"), rows(lsn, 2), mode="append", commit_properties=mark)
    entry = newest(str(tmp_path), "silver/t")
    checksums = [log / f"{entry.stem}.crc", log / f".{entry.stem}.crc.crc", log / f".{entry.name}.crc"]
    for path in checksums:
        path.write_text("of the lost version")
    entry.write_bytes(tear(entry.read_bytes()))
    with pytest.raises(TransientError) as caught:
        SilverLog(lake).read("t")  # as `smelt sql --fresh`, `verify` and gold do
    assert (caught.value.code, caught.value.where) == ("log-entry-torn", str(entry))
    assert all(path.exists() for path in [entry, *checksums])
    stored = SilverLog(lake, writes=True).read("t")
    assert stored is not None
    assert (stored.version, stored.mark) == (0, 1)
    assert not any(path.exists() for path in [entry, *checksums])
    assert len({*log.glob("*.torn"), *log.glob(".*.torn")}) == 4


@pytest.mark.parametrize(("layer", "says"), [("silver", "from bronze"), ("bronze", "move the lake away")])
def test_torn_middle_entry_is_named_with_table_remedy(tmp_path: Path, layer: Layer, says: str) -> None:
    lake = Lake(str(tmp_path))
    for lsn in (1, 2, 3):
        write_deltalake(lake.uri(layer, "t"), rows(lsn, 2), mode="append")
    entry = tmp_path / layer / "t" / "_delta_log" / f"{1:020}.json"
    entry.write_bytes(b"")
    with pytest.raises(DefiniteError) as caught:
        set_torn_aside(lake.uri(layer, "t"), thorough=False)
    assert (caught.value.code, caught.value.where) == ("log-entry-torn", str(entry))
    assert says in str(caught.value.remedy)
    assert entry.exists()


def test_entry_completed_after_check_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the check and the rename a second process renames the torn entry and commits."""
    uri = Lake(str(tmp_path)).uri("bronze", "t")
    for lsn in (1, 2):
        write_deltalake(uri, rows(lsn, 2), mode="append")
    entry = newest(str(tmp_path), "bronze/t")
    entry.write_bytes(b"")
    take = fcntl.flock

    def late(handle: int, how: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "flock", take)
            assert set_torn_aside(uri)
        write_deltalake(uri, rows(3, 2), mode="append")
        take(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    assert not set_torn_aside(uri)
    assert delta.open_existing(uri).version() == 1
    assert entry.stat().st_size > 0


def test_hanging_lock_holder_blocks_others_only_briefly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call waits only a limited time for the lock, and then raises a transient error."""
    monkeypatch.setattr(torn_log, "_LOCK_SECONDS", 0.2)
    uri = Lake(str(tmp_path)).uri("bronze", "t")
    write_deltalake(uri, rows(1, 2), mode="append")
    entry = newest(str(tmp_path), "bronze/t")
    entry.write_bytes(b"")
    hanging = os.open(entry.parent, os.O_RDONLY)
    try:
        fcntl.flock(hanging, fcntl.LOCK_EX)
        with pytest.raises(TransientError, match="another process"):
            set_torn_aside(uri)
    finally:
        os.close(hanging)
    assert set_torn_aside(uri)


def test_clean_up_commit_is_durable_on_return(lake_path: str) -> None:
    control = ControlTables(Lake(lake_path))
    control.open_error(OpenError("table", "a", "some-code", "said", None))
    control.close_errors("table", "a")  # by another file in the place of the first
    uri = f"{lake_path}/control/errors"
    flushed: set[str] = set()

    def watch(door: Effect, where: str, effect: Callable[[], Any]) -> Any:
        if door is Effect.FLUSH:
            flushed.add(where)
        return effect()

    before = set(Path(lake_path, "control").glob("*/_delta_log/*.json"))
    with guarded(watch):
        delta.open_existing(uri).tidy(retention_hours=0)
    new_entries = set(Path(lake_path, "control").glob("*/_delta_log/*.json")) - before
    assert new_entries, "VACUUM commits"
    assert {str(path) for path in new_entries} <= flushed


def test_torn_entry_with_successors_is_definite_error(lake_path: str) -> None:
    """The error names the torn file."""
    sink = open_sink(lake_path)
    sink.commit(at(100))
    entry = newest(lake_path)
    sink.commit(at(200))
    entry.write_bytes(entry.read_bytes()[:-10])
    with pytest.raises(DefiniteError) as caught:
        open_sink(lake_path)
    assert caught.value.code == "log-entry-torn"
    assert caught.value.where == str(entry)
    with pytest.raises(DefiniteError):
        open_existing(f"{lake_path}/bronze/changes")
