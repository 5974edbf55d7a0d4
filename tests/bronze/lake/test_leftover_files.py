"""Test that the files of a killed process beside a table are removed, and that needed files stay."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.compaction import compact, remove_uncreated, remove_unnamed
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.parquet import PartWriter
from deltasmelt.bronze.lake.torn_log import set_torn_aside

if TYPE_CHECKING:
    import pytest

SCHEMA = pa.schema([pa.field("a", pa.int64())])
WEEKS = 14 * 86_400


def age(path: Path, seconds: float = WEEKS) -> None:
    past = time.time() - seconds
    os.utime(path, (past, past))


def test_old_file_without_commit_is_removed(tmp_path: Path) -> None:
    uri = str(tmp_path / "control" / "t")
    table = delta.open_or_create(uri, SCHEMA, description="")
    for number in range(3):
        table.append(pa.table({"a": [number]}, schema=SCHEMA))
    compact(table, SCHEMA, many=2)
    table.append(pa.table({"a": [9]}, schema=SCHEMA))
    named = {path.name for path in Path(uri).glob("*.parquet")}
    assert len(named) == 5, "three joined files, which readers of older versions need"
    for number in range(2):
        writer = PartWriter(uri, "part", schema=SCHEMA)
        writer.write(pa.table({"a": [number]}, schema=SCHEMA))
        left = Path(uri, writer.finish()[0].path)
        if number:
            age(left)
    for name in named:
        age(Path(uri, name))
    foreign = Path(uri, "note.txt")
    foreign.touch()
    age(foreign)
    remove_unnamed(table)
    remaining = {path.name for path in Path(uri).glob("*") if path.is_file()}
    assert named < remaining
    assert len(remaining) == 5 + 1 + 1, "the young file, and what is not ours"
    assert not left.exists()


def test_failed_creations_leave_a_week_of_files(lake_path: str) -> None:
    """Files are removed only where an empty log, and nothing else, shows that Spark wrote them."""
    place = Path(lake_path, "gold", "failing")
    remove_uncreated(str(place))
    place.mkdir(parents=True)
    names = {"part-0.parquet", ".part-0.parquet.crc", "part-1.parquet", "part-2.parquet"}
    for name in names:
        (place / name).touch()
    for name in ("part-0.parquet", ".part-0.parquet.crc"):
        age(place / name)
    age(place / "part-1.parquet", 6 * 86_400.0)
    log, other = place / "_delta_log" / "_staged_commits", place / "_SUCCESS"
    entry = log / "00000000000000000000.json"

    def remaining() -> set[str]:
        remove_uncreated(str(place))
        return {path.name for path in place.iterdir()} - {"_delta_log"}

    assert remaining() == names, "a plain Parquet table"
    log.mkdir(parents=True)
    other.touch()
    assert remaining() == {*names, "_SUCCESS"}, "another program writes here"
    other.unlink()
    entry.touch()
    assert remaining() == names, "a table"
    entry.unlink()
    assert remaining() == {"part-1.parquet", "part-2.parquet"}


def test_control_tables_remove_them_when_tidied(lake_path: str) -> None:
    control = ControlTables(Lake(lake_path))
    control.open_error(OpenError("table", "t", "c", "m"))
    left = Path(lake_path, "control", "errors", "part-0.parquet")
    left.touch()
    age(left)
    control.tidy()
    assert not left.exists()
    assert [error.name for error in control.open_errors()] == ["t"]


def test_staging_folder_of_killed_creation_is_removed(tmp_path: Path) -> None:
    control = tmp_path / "control"
    old, young = control / "_made-1", control / "_made-2"
    for folder in (old, young):
        (folder / "_delta_log").mkdir(parents=True)
    age(old)
    delta.open_or_create(str(control / "t"), SCHEMA, description="")
    assert sorted(path.name for path in control.iterdir()) == ["_made-2", "t"]


def test_table_of_another_tables_entry_is_whole(tmp_path: Path) -> None:
    delta.open_or_create(str(tmp_path / "pattern"), SCHEMA, description="")
    entry, uri = (tmp_path / "pattern" / "_delta_log" / f"{0:020}.json").read_bytes(), str(tmp_path / "t")
    assert delta.make_of(uri, entry, b"{}")
    assert not delta.make_of(uri, b"", b""), "the table stays as it is"
    assert delta.open_existing(uri).version() == 0
    assert delta.first_entry(uri) == (entry, b"{}")


def test_only_newest_torn_entry_stays_aside(tmp_path: Path) -> None:
    uri = str(tmp_path / "control" / "t")
    delta.open_or_create(uri, SCHEMA, description="")
    log = Path(uri, "_delta_log")
    for version in (1, 2):
        delta.open_existing(uri).append(pa.table({"a": [version]}, schema=SCHEMA))
        entry = log / f"{version:020}.json"
        whole = entry.read_bytes()
        entry.write_bytes(b"")
        assert set_torn_aside(uri)
        assert [path.name for path in log.glob("*.torn")] == [f"{entry.name}.torn"]
        entry.write_bytes(whole)


def test_clock_ahead_removes_no_young_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process has written a file, but not yet the log entry."""
    uri = str(tmp_path / "control" / "t")
    table = delta.open_or_create(uri, SCHEMA, description="")
    writer = PartWriter(uri, "part", schema=SCHEMA)
    writer.write(pa.table({"a": [1]}, schema=SCHEMA))
    young = Path(uri, writer.finish()[0].path)
    ahead = time.time() + WEEKS
    monkeypatch.setattr("deltasmelt.bronze.lake.compaction.time.time", lambda: ahead)
    remove_unnamed(table)
    assert young.exists()
