"""Give a local Spark a private folder: for rows that Spark spills, and for the settings of its JVM.

Spark writes shuffle files with mode 644 into folders with mode 755 of the machine's temporary folder. Each
file holds rows of the source. So `make` gives each JVM a folder that no foreign account may enter.

**What a killed process leaves.** The process holds a lock (flock) on the folder. The kernel releases the lock
at the end of the process, however the process ends, and `make` removes each folder of this account with a
free lock. A JVM outlives its process by moments at most, since the JVM watches its standard input. Programs
that clean temporary folders leave a locked folder alone, however long a pipeline runs.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SETTING: Final = "spark.local.dir"
VARIABLE: Final = "SPARK_LOCAL_DIRS"
"""Spark prefers the variable to the setting."""

_PREFIX: Final = f"smelt-spark-{socket.gethostname()}-"
"""Prefix with the machine's name: locks of a further machine on a shared folder may be invisible here."""
_locks: dict[Path, int] = {}
"""Folders of this process, each with the descriptor of its lock."""


def made_for(settings: Mapping[str, str]) -> str:
    """Return the value of Spark's setting, with folders that `make` made for a session's JVM.

    Args:
        settings: the pipeline file's `spark` section.

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
    """Make private folders for one JVM, and remove the folders of killed processes.

    Args:
        parent_list: parent folders, separated by commas as in Spark's setting; None for the temporary folder.

    Returns:
        One new folder in each writable parent folder.

    Raises:
        OSError: no parent folder is writable.
    """
    parents = [Path(part.strip()) for part in (parent_list or "").split(",") if part.strip()]
    made: list[Path] = []
    failed: OSError | None = None
    for parent in parents or [Path(tempfile.gettempdir())]:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            _remove_left(parent)
            made.append(_locked(parent))
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


def _locked(parent: Path) -> Path:
    """Return a new folder whose lock this process holds."""
    if not _locks:
        atexit.register(remove)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        try:
            number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # a concurrent process removed it as a killed process's folder
            continue
        with suppress(OSError):  # without locks in the file system, no process removes the folder
            fcntl.flock(number, fcntl.LOCK_EX)
        if folder.exists():  # else removed likewise, before the lock
            _locks[folder] = number
            return folder
        os.close(number)


def _remove_left(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # locked, of a foreign account, or removed meanwhile
            number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(number).st_uid == os.geteuid():
                    fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(number)
