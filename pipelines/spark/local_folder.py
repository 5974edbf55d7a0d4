"""Give a local Spark a private folder: for rows that Spark spills, and for the settings of its JVM.

Spark writes shuffle files with mode 644 into folders with mode 755 of the machine's temporary folder. Each
file holds rows of the source. So `make` gives each JVM a folder that no foreign account may enter.

The process holds a lock on the folder, and `make` removes each folder of this account with a free lock: the
folders of killed processes (`bronze.lake.staging`). A JVM outlives its process by moments at most, since the
JVM watches its standard input. Programs that clean temporary folders leave a locked folder alone, however
long a pipeline runs.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.lake.staging import locked_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SETTING: Final = "spark.local.dir"
VARIABLE: Final = "SPARK_LOCAL_DIRS"  # Spark prefers the variable to the setting

_PREFIX: Final = f"smelt-spark-{socket.gethostname()}-"
"""Prefix with the machine's name: locks of a further machine on a shared folder may be invisible here."""
_locks: dict[Path, int] = {}
"""Folders of this process, each with the descriptor of its lock."""


def made_for(settings: Mapping[str, str]) -> str:
    """Return the value of Spark's setting, with folders that `make` made for a session's JVM.

    Raises:
        ConfigurationError: this account cannot write into any of the folders.
    """
    try:
        made = make(os.environ.get(VARIABLE) or settings.get(SETTING))
    except OSError as error:
        raise ConfigurationError(
            f"Spark has no folder for its temporary rows: {error}",
            code="spark-setting",
            where=f"{VARIABLE}, or {SETTING} in the section `spark`",
            remedy="set a folder that this account can write, with room for the largest table",
        ) from None
    return ",".join(map(str, made))


def make(parent_list: str | None) -> list[Path]:
    """Make private folders for one JVM, one in each writable parent; remove the folders of killed processes.

    `parent_list` has parent folders, separated by commas as in Spark's setting; None for the temporary
    folder.

    Raises:
        OSError: no parent folder is writable.
    """
    parents = [Path(part.strip()) for part in (parent_list or "").split(",") if part.strip()]
    made: list[Path] = []
    failed: OSError | None = None
    for parent in parents or [Path(tempfile.gettempdir())]:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            folder, lock = locked_folder(parent, _PREFIX)
            if not _locks:
                atexit.register(remove)
            _locks[folder] = lock
            made.append(folder)
        except OSError as error:  # Spark continues with its remaining disks, too
            failed = error
    if failed is not None and not made:
        raise failed
    return made


def remove(folders: Sequence[Path] | None = None) -> None:
    """Remove folders that `make` returned; None for all folders of this process, after the JVM's end."""
    for folder in list(_locks) if folders is None else folders:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(_locks.pop(folder))
