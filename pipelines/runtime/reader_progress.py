"""How far the reader's snapshots are, for commands in other processes: a small file beside the lake's locks.

The reader process writes it now and then while it copies tables, whole or not at all (a rename). One that is
older than some seconds belongs to a reader that is gone and is not shown. A lake in an object store has none.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

from bronze.progress import snapshot_view
from pipelines.runtime.locks import locks_folder

if TYPE_CHECKING:
    from pathlib import Path

    from bronze.lake.location import Lake
    from bronze.progress import SnapshotView

_FRESH_SECONDS: Final = 10.0


def write_progress(lake: Lake, counters: dict[str, Any]) -> None:
    """Say how far the snapshots are; nothing where there is no local lake."""
    path = _path(lake)
    if path is not None and path.parent.is_dir():
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"at": time.time(), "snapshots": counters["snapshots"]}), encoding="utf-8")
        new.replace(path)


def read_progress(lake: Lake) -> SnapshotView | None:
    """How far the running reader's snapshots are; None where none is under way."""
    path = _path(lake)
    try:
        said = None if path is None else json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if said is None or time.time() - said["at"] > _FRESH_SECONDS:
        return None
    return snapshot_view(said["snapshots"], said["at"])


def _path(lake: Lake) -> Path | None:
    folder = locks_folder(lake)
    return None if folder is None else folder / "progress.json"
