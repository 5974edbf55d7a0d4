"""Where the source's rows lie while they are compared: a lake of its own, gone afterwards.

A local lake has room for its tables, so the copy of one pass is beside them. A process that is killed leaves
it; the next one removes what nobody has touched for a week. In an object store it stays.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bronze.errors import ConfigurationError
from bronze.lake import objects
from bronze.lake.folders import local_folder
from bronze.lake.location import Lake

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLDER: Final = "_verify"
"""Beside the layers; no layer has that name."""

_LEFT_SECONDS: Final = 7 * 86_400.0


@contextmanager
def scratch_lake(lake: Lake, *, tasks_are_local: bool) -> Iterator[Lake]:
    """A lake that all tasks see, until the block ends.

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
    place_url = f"{lake.path}/{_FOLDER}/{uuid.uuid4().hex}"
    try:
        yield Lake(path=place_url)
    finally:
        objects.discard(place_url)


def _own_folder(parent: Path | None) -> Path:
    """A new folder that no other account may read; without a parent among the machine's temporary ones."""
    if parent is None:
        return Path(tempfile.mkdtemp(prefix="smelt-verify-"))
    while True:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_left(parent)
        try:
            return Path(tempfile.mkdtemp(prefix="copy-", dir=parent))
        except FileNotFoundError:  # one that ended has just removed the empty parent
            continue


def _remove_left(parent: Path) -> None:
    for left in parent.glob("copy-*"):
        with suppress(FileNotFoundError):  # its own process removes it
            newest = max((one.stat().st_mtime for one in [left, *left.rglob("*")]), default=0.0)
            if time.time() - newest > _LEFT_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


def _remove_empty(parent: Path) -> None:
    try:
        parent.rmdir()
    except OSError:  # another one is there
        return
