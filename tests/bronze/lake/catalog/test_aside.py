"""Staging folders for rows of a catalog's tables: each folder ends with its process."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from deltasmelt.bronze.lake.staging import _remove_left, aside, locked_folder

if TYPE_CHECKING:
    from pathlib import Path

HOLDS = """
import sys, time
from pathlib import Path
from deltasmelt.bronze.lake.staging import locked_folder
print(locked_folder(Path(sys.argv[1]), "rows-")[0], flush=True)
time.sleep(600)
"""


def test_next_start_removes_only_leftovers_of_killed_process(
    tmp_path: Path,
) -> None:
    """The next start leaves the files of a living process."""
    ours, _ = locked_folder(tmp_path, "rows-")
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(list(tmp_path.iterdir())) == 2
        _remove_left(tmp_path, "rows-")
        assert len(list(tmp_path.iterdir())) == 2
        process.send_signal(signal.SIGKILL)
    _remove_left(tmp_path, "rows-")
    assert list(tmp_path.iterdir()) == [ours]


def test_cleaned_staging_folder_is_recreated() -> None:
    folder = aside("catalog://main/bronze/changes")
    shutil.rmtree(folder)
    assert aside("catalog://main/bronze/changes") == folder
    assert folder.is_dir()
    assert aside("catalog://main/bronze/a%2Fb") != folder
