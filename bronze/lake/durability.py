"""Files of a local log, and the flush of files and folders to disk.

After a power cut, a table is never behind a confirmed position. The bytes of a file and the file's name are
on disk before a commit names the file (`bronze.lake.parquet.PartWriter`). Log entries follow the same rule
(`bronze.lake.folder_table`).
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.effects import Effect, perform

if TYPE_CHECKING:
    from pathlib import Path

LOG: Final = "_delta_log"
HINT: Final = "_last_checkpoint"
_ENTRY: Final = re.compile(r"(\d{20})\.json")


def flush_to_disk(path: Path) -> None:
    """Wait until a file or folder has reached the disk."""
    perform(Effect.FLUSH, str(path), lambda: _flush(path))


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def newest_checkpoint(log: Path) -> int | None:
    """Return the version of the newest checkpoint from the hint file; None without a checkpoint."""
    try:
        hint = json.loads((log / HINT).read_text())
    except (FileNotFoundError, ValueError):
        return None
    version = int(hint["version"])
    return version if (log / checkpoint_name(version)).exists() else None


def entry_path(log: Path, version: int) -> Path:
    """Return the path of a version's entry in a log."""
    return log / f"{version:020}.json"


def checksum_path(log: Path, version: int) -> Path:
    """Return the path of a version's checksum in a log."""
    return log / f"{version:020}.crc"


def checkpoint_name(version: int) -> str:
    """Return the name of a version's checkpoint in a log."""
    return f"{version:020}.checkpoint.parquet"


def entries_of(log: Path) -> list[int]:
    """Return the versions that have an entry in a log, unordered."""
    return [int(found[1]) for entry in log.iterdir() if (found := _ENTRY.fullmatch(entry.name))]
