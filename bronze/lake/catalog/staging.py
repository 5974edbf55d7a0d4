"""Local folders for rows on their way into a catalog's tables.

A process has one folder among the machine's temporary ones, and holds a lock on a file in it for as long as
it lives. Whichever way it ends, the kernel releases the lock. So the next one that needs a folder removes
those whose lock it gets, and no other: a process number may be used again, or be that of another container.
What cleans temporary files may take a folder away at any moment, so it is made again where it is missing.
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
"""This process's folder; by its number, as a child that was forked needs another one."""


def aside(location: str) -> Path:
    """The folder of a table; the same at each call.

    Raises:
        OSError: it cannot be made.
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
    """A new folder that no other account may read, locked until this process ends."""
    hidden = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=parent))
    lock = os.open(hidden / _LOCKED, os.O_CREAT | os.O_RDWR, 0o600)  # closed by the kernel
    fcntl.flock(lock, fcntl.LOCK_EX)
    return hidden.rename(parent / f"{_PREFIX}{uuid.uuid4().hex}")  # nobody sees it unlocked


def remove_left(parent: Path) -> None:
    """Remove the folders of processes that have ended."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another account's, or another process removes it
            lock = os.open(folder / _LOCKED, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
