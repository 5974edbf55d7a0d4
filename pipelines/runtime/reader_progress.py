"""Progress of the reader's snapshots, for commands in other processes.

The reader process writes its progress now and then while copying tables, whole or not at all: to a small file
beside a local lake's locks, or to the object ``_control/progress.json`` of an object store.

A put may take as long as the store takes, and the reader must not wait for the put, or the server would hear
nothing meanwhile. So a thread puts the newest progress, at most once in some seconds. A failed put is logged
and dropped: the next put has newer progress.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from obstore.exceptions import BaseError

from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.failures import words_of
from deltasmelt.bronze.progress import snapshot_view
from deltasmelt.pipelines.runtime.locks import locks_folder

if TYPE_CHECKING:
    from pathlib import Path

    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lake.place import Location, Place
    from deltasmelt.bronze.progress import SnapshotView

OBJECT: Final = "_control/progress.json"
"""Path of the object below a lake in an object store."""
PUT_EVERY: Final = 5.0
"""Seconds between two puts."""
# Older progress belongs to a dead reader. In a store the limit is longer, as the clocks of two machines may
# differ.
_FRESH_SECONDS: Final = 10.0
_FRESH_IN_STORE: Final = 30.0
_LOGGER = logging.getLogger("deltasmelt.reader")


def write_progress(lake: Lake, counters: dict[str, Any]) -> None:
    """Write the progress of the snapshots, in a store soon; nothing before the lake's first folder."""
    text = json.dumps({"at": time.time(), "snapshots": counters["snapshots"]})
    if lake.in_store:
        _stored(lake.place, lake.root).write(text.encode())
        return
    path = _path(lake)
    if path is not None and path.parent.is_dir():
        # Put in place by a rename.
        new = path.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        new.replace(path)


def read_progress(lake: Lake) -> SnapshotView | None:
    """Return the progress of the running reader's snapshots; None without a snapshot, or if unknown."""
    fresh = _FRESH_IN_STORE if lake.in_store else _FRESH_SECONDS
    body = _read(lake)
    if body is None:
        return None
    progress = json.loads(body)
    if time.time() - progress["at"] > fresh:
        return None
    return snapshot_view(progress["snapshots"], progress["at"])


def _read(lake: Lake) -> bytes | None:
    if lake.in_store:
        try:
            stored = objects.read(lake.root, OBJECT)
        except (OSError, BaseError) as error:
            _LOGGER.warning("the progress of the reader's snapshots cannot be read: %s", words_of(error))
            return None
        return None if stored is None else stored.body
    path = _path(lake)
    try:
        return None if path is None else path.read_bytes()
    except FileNotFoundError:
        return None


def _path(lake: Lake) -> Path | None:
    folder = locks_folder(lake)
    return None if folder is None else folder / "progress.json"


class StoredProgress:
    """Puts the newest progress, in a separate thread, which ends with the process."""

    def __init__(self, root: str, interval: float = PUT_EVERY) -> None:
        self._root = root
        self._interval = interval
        self._newest = b""
        self._changed = threading.Event()
        threading.Thread(target=self._put_newest, name="smelt-progress", daemon=True).start()

    def write(self, progress: bytes) -> None:
        """Set the newest progress."""
        self._newest = progress
        self._changed.set()

    def _put_newest(self) -> None:
        while self._changed.wait():
            self._changed.clear()
            try:
                # Only the reader writes the object, so the put has no condition.
                objects.replace(self._root, OBJECT, self._newest)
            except (OSError, BaseError) as error:
                _LOGGER.warning("the progress of the snapshots could not be stored: %s", words_of(error))
            time.sleep(self._interval)


@cache
def _stored(_: Place, root: Location) -> StoredProgress:
    """Return the thread that puts a lake's progress; of another lake at the same location another thread."""
    return StoredProgress(root)
