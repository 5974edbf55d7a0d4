"""Folders of rows that Spark spills: closed to all accounts but the owner's, and removed after a kill."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deltasmelt.pipelines.spark import local_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]
HOLDS = """
import sys
from deltasmelt.pipelines.spark import local_folder
print(*local_folder.make(sys.argv[1]), flush=True)
sys.stdin.read()
"""


def holder(parent: Path) -> tuple[subprocess.Popen[str], str]:
    """Return a running process and the folder that it created."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(parent)], cwd=ROOT, stdin=-1, stdout=-1, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@pytest.mark.process
def test_next_start_removes_folders_of_killed_processes(
    tmp_path: Path,
) -> None:
    """The folder of a living process stays."""
    killed, leftover = holder(tmp_path)
    living, stays = holder(tmp_path)
    (tmp_path / "another").mkdir()
    assert Path(leftover).stat().st_mode & 0o777 == 0o700
    killed.kill()
    killed.communicate()
    (folder,) = local_folder.make(f"{tmp_path} ,")
    try:
        assert {str(path) for path in tmp_path.iterdir()} == {str(folder), stays, str(tmp_path / "another")}
    finally:
        local_folder.remove([folder])
    living.communicate("")
    assert [path.name for path in tmp_path.iterdir()] == ["another"], "an end in order"


def test_each_given_disk_has_a_folder(tmp_path: Path) -> None:
    folders = local_folder.make(f"{tmp_path / 'a'},/dev/null/broken,{tmp_path / 'b'}")
    assert [folder.parent.name for folder in folders] == ["a", "b"]
    local_folder.remove(folders)
    with pytest.raises(OSError, match="Not a directory"):
        local_folder.make("/dev/null/below")


@pytest.mark.spark
def test_spilled_rows_lie_in_local_folder(spark: SparkSession) -> None:
    spark.range(10).repartition(2).collect()
    conf = spark.sparkContext.getConf()
    folder = Path(conf.get(local_folder.SETTING) or "")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.glob("blockmgr-*"))
    assert str(folder.parent) == tempfile.gettempdir()
    assert conf.get("spark.authenticate") == "true"
