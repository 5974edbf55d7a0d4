"""Where the shell keeps what was typed: a file of the user's state folder that nobody else can read."""

from __future__ import annotations

import os
from pathlib import Path

from pipelines.private import own_folder


def history_file(pipeline: str) -> Path | None:
    """The file of a pipeline's history, made if it is not there; None where no private folder can be had."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    folder = Path(base) / "deltasmelt" / "sql-history"
    if not own_folder(folder):
        return None
    file = folder / pipeline
    try:
        file.touch(mode=0o600)
    except OSError:  # a full disk, a folder in its place
        return None
    return file
