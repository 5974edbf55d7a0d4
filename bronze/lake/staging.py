"""Local staging folders for rows on their way into a catalog's tables.

Each process has one folder in the machine's temporary folder, and holds a lock on a file in the process's
folder until the process ends. The kernel releases the lock at any kind of end. The next process in need of a
folder removes exactly the folders with a free lock. A cleaner of temporary files may remove a folder at any
moment, so `aside` recreates a missing folder.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shutil
import tempfile
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "smelt-rows-"
_LOCKED: Final = ".lock"
_GUARD: Final = threading.Lock()
_own: dict[int, Path] = {}
"""Folder of the process, by process id, because a forked child needs a separate folder."""


def aside(location: str) -> Path:
    """Return the staging folder of a table; always the same folder.

    Raises:
        OSError: the folder cannot be created.
    """
    with _GUARD:
        root = _own.get(os.getpid())
        if root is None:
            parent = Path(tempfile.gettempdir())
            remove_left(parent)
            root = _own[os.getpid()] = make(parent)
            atexit.register(shutil.rmtree, root, ignore_errors=True)
    folder = root / hashlib.sha256(location.encode()).hexdigest()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def make(parent: Path) -> Path:
    """Create a folder for this account alone, locked until the process ends."""
    hidden = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=parent))
    lock = os.open(hidden / _LOCKED, os.O_CREAT | os.O_RDWR, 0o600)  # closed by the kernel
    fcntl.flock(lock, fcntl.LOCK_EX)
    return hidden.rename(parent / f"{_PREFIX}{uuid.uuid4().hex}")  # no process sees the folder unlocked


def remove_left(parent: Path) -> None:
    """Remove the folders of ended processes."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another account's folder, or another process removes the folder
            # A free lock proves the end of the process; ids are reused, and containers share ids.
            lock = os.open(folder / _LOCKED, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
