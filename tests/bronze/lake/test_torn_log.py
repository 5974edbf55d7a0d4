"""A log entry of which a power cut left a part is as none; one that others follow is told."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import Transaction, write_deltalake

from bronze.errors import DefiniteError, TransientError
from bronze.identifiers import TableName
from bronze.lake.control import OpenError
from bronze.lake.control_tables import ControlTables
from bronze.lake.delta import open_existing
from bronze.lake.failures import lake_failures
from bronze.lake.location import Lake
from bronze.store.commits import commit_changes
from bronze.store.marks import gap_app
from tests.bronze.store.test_sink import at, contents, open_sink, rows

if TYPE_CHECKING:
    from collections.abc import Callable

GAPS = [TableName("public", f"a_table_with_a_rather_long_name_{number}") for number in range(100)]


def newest(lake_path: str, table: str = "bronze/changes") -> Path:
    return max(Path(lake_path, table, "_delta_log").glob("*.json"))


def in_pages(size: int) -> Callable[[bytes], bytes]:
    return lambda whole: whole[:size]


def with_zeros(whole: bytes) -> bytes:
    return whole[:4096] + bytes(len(whole) - 4096)


def at_a_line(whole: bytes) -> bytes:
    """Before the last file's name: what is left is an entry that Delta takes for a whole one."""
    return whole[: whole.rindex(b"\n")]


@pytest.mark.parametrize("tear", [in_pages(4096), in_pages(8192), with_zeros, at_a_line, in_pages(0)])
def test_a_torn_entry_at_the_end_of_the_log_is_a_commit_that_did_not_come_about(
    lake_path: str, tear: Callable[[bytes], bytes]
) -> None:
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

    again = open_sink(lake_path)
    assert again.position is not None
    assert again.position.frontier == 100
    assert contents(lake_path) == [(100, 0), (100, 1)]
    again.write(rows(200, 2))
    again.commit(at(200))
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


def test_a_torn_entry_of_a_control_table_is_set_aside_by_whoever_reads_it(lake_path: str) -> None:
    control = ControlTables(Lake(lake_path))
    control.open_error(OpenError("table", "a", "some-code", "said", None))
    control.open_error(OpenError("table", "b", "some-code", "said", None))
    entry = newest(lake_path, "control/errors")
    entry.write_bytes(entry.read_bytes()[:-10])
    assert [each.name for each in ControlTables(Lake(lake_path)).open_errors()] == ["a"]


def test_a_torn_entry_of_somebody_else_stays_where_it_is(tmp_path: Path) -> None:
    uri = str(tmp_path / "silver")
    write_deltalake(uri, rows(1, 2))
    write_deltalake(uri, rows(2, 2), mode="append")
    entry = max((tmp_path / "silver" / "_delta_log").glob("*.json"))
    entry.write_bytes(entry.read_bytes()[:-10])
    with pytest.raises(TransientError) as caught, lake_failures(uri):
        open_existing(uri)
    assert "Truncated record" in caught.value.message
    assert "<unknown>" not in caught.value.message, "frames of a library's stack"
    assert entry.exists()


def test_a_torn_entry_that_others_follow_is_a_definite_error_that_names_the_file(lake_path: str) -> None:
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
