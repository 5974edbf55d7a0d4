"""The place of the source's rows while they are compared: a lake of their own, removed afterwards.

A local lake has room for its tables, so the copy of one pass is beside them. Else the copy is in the
temporary folder of the machine, or, for tasks on other machines, in the object store.

**What a killed process leaves.** A living process touches its copy every minute. So a copy that nobody
touched for an hour has no process any more: the next comparison removes it, and so does `smelt maintain`
(`remove_left`). Both times are of the clock that stamps the files, because the process that looks stamps
one, too. Should a process have slept that long, its copy is gone when it wakes: it fails, as Spark does not
find the files.
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

from bronze.errors import ConfigurationError
from bronze.lake import objects
from bronze.lake.failures import words_of
from bronze.lake.folders import local_folder
from bronze.lake.location import Lake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FOLDER: Final = "_verify"
"""Beside the layers; no layer has that name."""

_OWN: Final = "copy-"
_OWN_ELSEWHERE: Final = "smelt-verify-"
"""Beginnings of folders: within a local lake, and among the machine's temporary folders."""

_TOUCHED: Final = "alive"
_TOUCH_SECONDS: Final = 60.0
_LEFT_SECONDS: Final = 3600.0
_END_SECONDS: Final = 30.0
_LOGGER: Final = logging.getLogger("deltasmelt.verify")


@contextmanager
def scratch_lake(lake: Lake, *, tasks_are_local: bool) -> Iterator[Lake]:
    """Return a lake that all tasks see, until the block ends.

    Args:
        lake: the pipeline's.
        tasks_are_local: whether all of Spark's tasks run on this machine.

    Raises:
        ConfigurationError: there is no place for it.
    """
    folder = None if lake.path is None else local_folder(lake.path)
    if folder is not None or tasks_are_local:
        place = _own_folder(None if folder is None else folder / _FOLDER)
        try:
            with _touching(lambda: os.utime(place)):
                yield Lake(path=str(place))
        finally:
            shutil.rmtree(place, ignore_errors=True)
            if folder is not None:
                _remove_empty(place.parent)
        return
    if lake.path is None:
        raise ConfigurationError(
            "the source's rows need a place that all executors see, and the lake is a catalog",
            code="verify-place",
            where=str(lake.catalog),
            remedy="run the command with spark.master local[*], or compare documents alone: --document '*'",
        )
    _remove_left_objects(lake.path)
    place_url = f"{lake.path}/{_FOLDER}/{uuid.uuid4().hex}"
    try:
        with _touching(lambda: objects.replace(place_url, _TOUCHED, b"")):
            yield Lake(path=place_url)
    finally:
        objects.discard(place_url)


def remove_left(lake: Lake) -> list[str]:
    """Remove the copies of comparisons that were killed, and return their places.

    Args:
        lake: the pipeline's. Copies in this machine's temporary folder are removed whatever their lake is.
    """
    removed = _remove_left_folders(Path(tempfile.gettempdir()), _OWN_ELSEWHERE)
    if lake.path is None:
        return removed
    folder = local_folder(lake.path)
    if folder is None:
        return removed + _remove_left_objects(lake.path)
    removed += _remove_left_folders(folder / _FOLDER, _OWN)
    _remove_empty(folder / _FOLDER)
    return removed


@contextmanager
def _touching(touch: Callable[[], None]) -> Iterator[None]:
    """Touch a copy now, and every minute until the block ends."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(_TOUCH_SECONDS):
            with suppress(OSError, BaseError):  # a store that is away: the copying itself reports that
                touch()

    touch()
    thread = threading.Thread(target=run, name="smelt-verify-alive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_END_SECONDS)


def _own_folder(parent: Path | None) -> Path:
    """Return a new folder that no other account may read; without a parent among the temporary folders."""
    if parent is None:
        _remove_left_folders(Path(tempfile.gettempdir()), _OWN_ELSEWHERE)
        return Path(tempfile.mkdtemp(prefix=_OWN_ELSEWHERE))
    while True:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_left_folders(parent, _OWN)
        try:
            return Path(tempfile.mkdtemp(prefix=_OWN, dir=parent))
        except FileNotFoundError:  # a process that ended has just removed the empty parent
            continue


def _remove_left_folders(parent: Path, prefix: str) -> list[str]:
    """Remove this account's folders of a prefix that nobody touched for an hour; return them."""
    removed: list[str] = []
    try:
        with tempfile.TemporaryFile(dir=parent) as stamped:
            now = os.fstat(stamped.fileno()).st_mtime
        for left in parent.glob(f"{prefix}*"):
            with suppress(FileNotFoundError):  # its own process removes it
                found = left.lstat()
                if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                    continue
                newest = max(one.stat().st_mtime for one in [left, *left.rglob("*")])
                if now - newest > _LEFT_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)
                    removed.append(str(left))
    except FileNotFoundError:  # no comparison has been here
        return []
    except OSError as error:
        _LOGGER.warning("%s: copies of comparisons that were killed stay: %s", parent, error)
    return removed


def _remove_left_objects(root: str) -> list[str]:
    """Remove copies in an object store that nobody touched for an hour; return their places."""
    own = uuid.uuid4().hex
    removed: list[str] = []
    try:
        objects.replace(root, f"{_FOLDER}/{own}/{_TOUCHED}", b"")
        newest = objects.newest_below(root, _FOLDER)
        now = newest.pop(own)
        for name, touched in newest.items():
            if (now - touched).total_seconds() > _LEFT_SECONDS:
                objects.delete_below(root, f"{_FOLDER}/{name}")
                removed.append(f"{root}/{_FOLDER}/{name}")
    except (OSError, BaseError) as error:
        _LOGGER.warning("%s: copies of comparisons that were killed stay: %s", root, words_of(error))
    objects.discard(f"{root}/{_FOLDER}/{own}")
    return removed


def _remove_empty(parent: Path) -> None:
    try:
        parent.rmdir()
    except OSError:  # another copy is there, or no folder
        return
