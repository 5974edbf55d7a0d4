"""Local staging folders for rows on their way into a catalog's tables.

Each process has one folder in the machine's temporary folder, and holds a lock (flock) on the folder until
the process ends. The kernel releases the lock at any kind of end. The next process in need of a folder
removes exactly the folders with a free lock. A cleaner of temporary files may remove a folder at any moment,
so `aside` makes a missing folder again. Spark's temporary rows lie in such folders, too (`locked_folder`).
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "smelt-rows-"
_GUARD: Final = threading.Lock()
# Folder of the process, by process id, because a forked child needs a separate folder.
_own: dict[int, Path] = {}


def aside(location: str) -> Path:
    """Return the staging folder of a table; the same folder unless a cleaner removed the process's folder.

    Raises:
        OSError: the folder cannot be created.
    """
    with _GUARD:
        root = _own.get(os.getpid())
        if root is None or not root.is_dir():
            parent = Path(tempfile.gettempdir())
            root = _own[os.getpid()] = locked_folder(parent, _PREFIX)[0]
            atexit.register(shutil.rmtree, root, ignore_errors=True)
    folder = root / hashlib.sha256(location.encode()).hexdigest()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def locked_folder(parent: Path, prefix: str) -> tuple[Path, int]:
    """Return a new folder of this account alone, and its lock; remove the folders of ended processes."""
    _remove_left(parent, prefix)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # a concurrent process removed it as a killed process's folder
            continue
        with suppress(OSError):  # without locks in the file system, no process removes the folder
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():  # else removed likewise, before the lock
            return folder, lock
        os.close(lock)


def _remove_left(parent: Path, prefix: str) -> None:
    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError):  # locked, of a foreign account, or removed meanwhile
            # A free lock proves the end of the process; ids are reused, and containers share ids.
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
