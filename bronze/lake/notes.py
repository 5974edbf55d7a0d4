"""Notes beside a lake: small texts of one process for commands in further processes, without promises.

A note is a small file beside a local lake's locks, or an object of a store; a catalog has no notes. A put
may take as long as the store takes, and the writer must not wait for the put. So a thread puts the newest
text, at most once in some seconds. A failed put is logged and dropped: the next put has a newer text.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import cache
from typing import TYPE_CHECKING, Final

from obstore.exceptions import BaseError

from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.failures import words_of
from deltasmelt.bronze.lake.place import Store

if TYPE_CHECKING:
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lake.place import Location, Place

# Seconds between two puts.
PUT_EVERY: Final = 5.0
_FOLDER: Final = "_control"
_LOGGER = logging.getLogger("deltasmelt.reader")


def write_note(lake: Lake, name: str, body: bytes) -> None:
    """Write a note, in a store soon; write nothing before the lake's first folder."""
    if isinstance(lake.place, Store):
        _stored(lake.place, lake.root, name).write(body)
    elif lake.locks is not None and lake.locks.is_dir():
        note = lake.locks / name
        new = note.with_suffix(".new")
        new.write_bytes(body)
        new.replace(note)  # whole or not at all


def read_note(lake: Lake, name: str) -> bytes | None:
    """Return the newest note; None without a note, or if a store does not answer."""
    if isinstance(lake.place, Store):
        try:
            stored = objects.read(lake.root, f"{_FOLDER}/{name}")
        except (OSError, BaseError) as error:
            _LOGGER.warning("%s of the lake cannot be read: %s", name, words_of(error))
            return None
        return None if stored is None else stored.body
    try:
        return None if lake.locks is None else (lake.locks / name).read_bytes()
    except FileNotFoundError:
        return None


class StoredNote:
    """Puts the newest text of a note, in a separate thread, which ends with the process."""

    def __init__(self, root: str, name: str, interval: float = PUT_EVERY) -> None:
        self._root = root
        self._name = f"{_FOLDER}/{name}"
        self._interval = interval
        self._newest = b""
        self._changed = threading.Event()
        threading.Thread(target=self._put_newest, name="smelt-note", daemon=True).start()

    def write(self, body: bytes) -> None:
        """Set the newest text."""
        self._newest = body
        self._changed.set()

    def _put_newest(self) -> None:
        while self._changed.wait():
            self._changed.clear()
            try:
                # One process alone writes the object, so the put has no condition.
                objects.replace(self._root, self._name, self._newest)
            except (OSError, BaseError) as error:
                _LOGGER.warning("%s of the lake could not be stored: %s", self._name, words_of(error))
            time.sleep(self._interval)


@cache
def _stored(_: Place, root: Location, name: str) -> StoredNote:
    """Return the thread that puts a note; two lakes at one location have two threads."""
    return StoredNote(root, name)
