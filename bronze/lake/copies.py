"""Scratch lakes, each with the source's rows for one comparison; and the removal of what killed ones left.

**After a killed process.** A living process touches its copy every minute. So a copy untouched for an hour
has no process: the next comparison removes the copy, and so does `smelt maintain` (`remove_left`). A process
asleep for an hour finds its copy removed when the process wakes, and fails, because Spark does not find the
files. A read at the log's head (`silver.fresh`) may clone a table's columns next to the layers, too; nobody
touches the clone, so `smelt maintain` removes it after a day.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tempfile
import threading
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from obstore.exceptions import BaseError

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.failures import words_of
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.place import Catalog, Location, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Folder next to the layers' folders; no layer has this name.
VERIFY: Final = "_verify"
_OWN: Final = "copy-"
FRESH: Final = "_fresh"
"""Folder of the clones for reads at the log's head."""
# Prefixes of folders: within a local lake, and among the machine's temporary folders.
_OWN_TEMPORARY: Final = "smelt-verify-"
_TOUCHED: Final = "alive"
_TOUCH_SECONDS: Final = 60.0
_LEFT_SECONDS: Final = 3600.0
_FRESH_SECONDS: Final = 86_400.0
_END_SECONDS: Final = 30.0
_LOGGER: Final = logging.getLogger("deltasmelt.verify")


@contextmanager
def scratch_lake(lake: Lake, *, tasks_are_local: bool) -> Iterator[Lake]:
    """Yield a lake visible to all tasks, until the block ends.

    Raises:
        ConfigurationError: no suitable place exists.
    """
    # A local lake has room for its tables, so the copy is next to the tables. Otherwise the copy is in the
    # temporary folder of the machine, or, for tasks on other machines, in the object store.
    folder = lake.folder
    if folder is not None or tasks_are_local:
        place = _own_folder(None if folder is None else folder / VERIFY)
        try:
            with _touching(lambda: os.utime(place)):
                yield Lake(path=str(place))
        finally:
            shutil.rmtree(place, ignore_errors=True)
            if folder is not None:
                _remove_empty(place.parent)
        return
    if isinstance(lake.place, Catalog):
        raise ConfigurationError(
            "all executors must see the copy of the source's rows, and the lake is a catalog without such a "
            "folder",
            code="verify-place",
            where=str(lake.catalog),
            remedy="run the command with spark.master local[*], or compare only documents: --document '*'",
        )
    _remove_left_objects(lake.root, VERIFY, _LEFT_SECONDS)
    copy = lake.below(f"{VERIFY}/{uuid.uuid4().hex}")
    try:
        with _touching(lambda: objects.replace(copy.root, _TOUCHED, b"")):
            yield copy
    finally:
        objects.discard(copy.root)


def remove_left(lake: Lake) -> list[str]:
    """Remove the copies of killed comparisons, and return their places."""
    # Copies in this machine's temporary folder are of every lake.
    removed = _remove_left_folders(Path(tempfile.gettempdir()), _OWN_TEMPORARY, _LEFT_SECONDS)
    if isinstance(lake.place, Store):
        for name, seconds in ((VERIFY, _LEFT_SECONDS), (FRESH, _FRESH_SECONDS)):
            removed += _remove_left_objects(lake.root, name, seconds)
        return removed
    folder = lake.folder
    if folder is None:
        return removed
    removed += _remove_left_folders(folder / VERIFY, _OWN, _LEFT_SECONDS)
    removed += _remove_left_folders(folder / FRESH, "", _FRESH_SECONDS)
    for name in (VERIFY, FRESH):
        _remove_empty(folder / name)
    return removed


@contextmanager
def _touching(touch: Callable[[], None]) -> Iterator[None]:
    """Touch a copy now, and every minute until the block ends."""
    end = threading.Event()

    def run() -> None:
        while not end.wait(_TOUCH_SECONDS):
            with suppress(OSError, BaseError):  # a store that is away: the copying itself reports that
                touch()

    touch()
    thread = threading.Thread(target=run, name="smelt-verify-alive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(_END_SECONDS)


def _own_folder(parent: Path | None) -> Path:
    """Return a new folder readable by this account alone; without a parent, among the temporary folders."""
    if parent is None:
        _remove_left_folders(Path(tempfile.gettempdir()), _OWN_TEMPORARY, _LEFT_SECONDS)
        return Path(tempfile.mkdtemp(prefix=_OWN_TEMPORARY))
    while True:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_left_folders(parent, _OWN, _LEFT_SECONDS)
        try:
            return Path(tempfile.mkdtemp(prefix=_OWN, dir=parent))
        except FileNotFoundError:  # a process that ended has just removed the empty parent
            continue


def _remove_left_folders(parent: Path, prefix: str, seconds: float) -> list[str]:
    """Remove this account's folders with a prefix and untouched for some seconds; return the folders."""
    removed: list[str] = []
    try:
        # Both times come from the clock that stamps the files, because this process stamps a file, too.
        with tempfile.TemporaryFile(dir=parent) as stamped:
            now = os.fstat(stamped.fileno()).st_mtime
        for folder in parent.glob(f"{prefix}*"):
            with suppress(FileNotFoundError):  # its own process removes it
                status = folder.lstat()
                if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                    continue
                newest = max(path.stat().st_mtime for path in [folder, *folder.rglob("*")])
                if now - newest > seconds:
                    shutil.rmtree(folder, ignore_errors=True)
                    removed.append(str(folder))
    except FileNotFoundError:  # no comparison has been here
        return []
    except OSError as error:
        _LOGGER.warning("%s: copies of killed comparisons could not be removed: %s", parent, error)
    return removed


def _remove_left_objects(root: str, folder: str, seconds: float) -> list[str]:
    """Remove a folder's copies in an object store untouched for some seconds; return their places."""
    marker = uuid.uuid4().hex
    removed: list[str] = []
    try:
        objects.replace(root, f"{folder}/{marker}/{_TOUCHED}", b"")
        newest = objects.newest_below(root, folder)
        now = newest.pop(marker)
        for name, touched in newest.items():
            if (now - touched).total_seconds() > seconds:
                objects.delete_below(root, f"{folder}/{name}")
                removed.append(f"{root}/{folder}/{name}")
    except (OSError, BaseError) as error:
        _LOGGER.warning("%s: copies of killed comparisons could not be removed: %s", root, words_of(error))
    objects.discard(Location(root) / f"{folder}/{marker}")
    return removed


def _remove_empty(parent: Path) -> None:
    try:
        parent.rmdir()
    except OSError:  # another copy is there, or no folder
        return
