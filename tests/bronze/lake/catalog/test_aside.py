"""Staging folders for rows of a catalog's tables: each folder ends with its process."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from deltasmelt.bronze.lake.staging import aside, make, remove_left

if TYPE_CHECKING:
    from pathlib import Path

HOLDS = """
import sys, time
from pathlib import Path
from deltasmelt.bronze.lake.staging import make
print(make(Path(sys.argv[1])), flush=True)
time.sleep(600)
"""


def test_next_start_removes_only_leftovers_of_killed_process(
    tmp_path: Path,
) -> None:
    """The next start leaves the files of a living process."""
    ours = make(tmp_path)
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(list(tmp_path.iterdir())) == 2
        remove_left(tmp_path)
        assert len(list(tmp_path.iterdir())) == 2
        process.send_signal(signal.SIGKILL)
    remove_left(tmp_path)
    assert list(tmp_path.iterdir()) == [ours]


def test_cleaned_staging_folder_is_recreated() -> None:
    folder = aside("catalog://main/bronze/changes")
    shutil.rmtree(folder)
    assert aside("catalog://main/bronze/changes") == folder
    assert folder.is_dir()
    assert aside("catalog://main/bronze/a%2Fb") != folder
