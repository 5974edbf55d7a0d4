"""The commit history is found at every path of a lake."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from deltasmelt.bronze.lake import delta

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("folder", ["plain", "my läke #1+", "x#y"])
def test_the_newest_commits_are_found(tmp_path: Path, folder: str) -> None:
    uri = str(tmp_path / folder / "table")
    table = delta.open_or_create(uri, pa.schema([("a", pa.int64())]), description="of a test")
    for value in (1, 2):
        table.append(pa.table({"a": [value]}))
    table = delta.open_existing(uri)
    assert [entry["version"] for entry in table.history(2)] == [2, 1]
    assert [entry["version"] for entry in table.history(9)] == [2, 1, 0]
    newest = table.history(1)[0]
    assert newest["operation"] == "WRITE"
    assert newest["timestamp"] > 0


def test_truncated_log_returns_available_history(tmp_path: Path) -> None:
    uri = str(tmp_path / "x#y")
    table = delta.open_or_create(uri, pa.schema([("a", pa.int64())]), description="of a test")
    table.append(pa.table({"a": [1]}))
    (tmp_path / "x#y" / "_delta_log" / f"{0:020}.json").unlink()
    assert [entry["version"] for entry in table.history(9)] == [1]
