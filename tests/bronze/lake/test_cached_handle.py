"""A cached handle of a local table, whose lake is moved or exchanged in the middle of a poll."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.cached_table import CachedTable
from deltasmelt.bronze.lake.folder_table import FolderTable
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.log_table import LogTable

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = pa.schema([("n", pa.int64())])


def lake_with(path: Path, commits: int) -> Lake:
    lake = Lake(str(path))
    table = delta.open_or_create(lake.uri("control", "t"), SCHEMA, description="")
    for number in range(commits):
        table.append(pa.table({"n": [number]}, SCHEMA))
    return lake


def during(monkeypatch: pytest.MonkeyPatch, method: str, act: Callable[[], object]) -> None:
    """Act once, right before a method of the table reads the log."""
    original = getattr(FolderTable, method)
    rest = [act]

    def acting(table: FolderTable, *arguments: object) -> None:
        if rest:
            rest.pop()()
        original(table, *arguments)

    monkeypatch.setattr(FolderTable, method, acting)


def assert_whole(table: object, commits: int) -> None:
    assert isinstance(table, FolderTable)
    assert table.version() == commits
    assert all((Path(table.table_uri) / path).exists() for path in table.paths())


def test_lake_moved_during_poll_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = CachedTable(lake_with(tmp_path / "lake", 3).uri("control", "t"))
    assert_whole(cached.newest(), 3)
    during(monkeypatch, "update_incremental", lambda: (tmp_path / "lake").rename(tmp_path / "moved"))
    cached.newest()
    assert (cached.newest(), cached.newest()) == (None, None)
    (tmp_path / "moved").rename(tmp_path / "lake")
    assert_whole(cached.newest(), 3)


@pytest.mark.parametrize("method", ["update_incremental", "__init__"])
def test_lake_exchanged_during_poll_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    cached = CachedTable(lake_with(tmp_path / "lake", 3).uri("control", "t"))
    lake_with(tmp_path / "other", 3 if method == "__init__" else 5)
    commits = 3 if method == "__init__" else 5

    def exchange() -> None:
        (tmp_path / "lake").rename(tmp_path / "moved")
        (tmp_path / "other").rename(tmp_path / "lake")

    if method == "update_incremental":
        cached.newest()
        during(monkeypatch, method, exchange)
    else:
        original = LogTable.__init__

        def opening(table: FolderTable, uri: str, version: int | None = None) -> None:
            original(table, uri, version)
            monkeypatch.undo()
            exchange()

        monkeypatch.setattr(LogTable, "__init__", opening)
    cached.newest()
    assert_whole(cached.newest(), commits)
