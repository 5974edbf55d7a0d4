"""Progress of the reader's snapshots, for commands in other processes.

The reader process writes its progress now and then while copying tables, as a note beside the lake
(`bronze.lake.notes`). Progress older than some seconds belongs to a dead reader and is not shown.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.lake.notes import read_note, write_note
from deltasmelt.bronze.progress import snapshot_view

if TYPE_CHECKING:
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.progress import SnapshotView

NOTE: Final = "progress.json"
_FRESH_SECONDS: Final = 10.0


def write_progress(lake: Lake, counters: dict[str, Any]) -> None:
    """Write the progress of the snapshots, in a store soon; nothing before the lake's first folder."""
    text = json.dumps({"at": time.time(), "snapshots": counters["snapshots"]})
    write_note(lake, NOTE, text.encode())


def read_progress(lake: Lake) -> SnapshotView | None:
    """Return the progress of the running reader's snapshots; None without a snapshot, or if unknown."""
    body = read_note(lake, NOTE)
    progress = None if body is None else json.loads(body)
    if progress is None or time.time() - progress["at"] > _FRESH_SECONDS + lake.place.clock_skew:
        return None
    return snapshot_view(progress["snapshots"], progress["at"])
