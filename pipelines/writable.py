"""Whether this account can make a folder and write in it, asked before there is anything to lose."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def why_unwritable(folder: Path) -> str | None:
    """What keeps this account from writing there; None where nothing is known to."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        return "it is a file, not a folder" if there == folder else f"{there} is a file, not a folder"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"this account may not write in {there}"
    return None
