"""Whether this account can make a folder or a file, asked before there is anything to lose."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from bronze.errors import ConfigurationError

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


def require_report(report: Path) -> None:
    """Refuse a report that could not be written in the end.

    Raises:
        ConfigurationError: ``report-unwritable``: it is a folder, or this account may not write where it is
            to lie.
    """
    why = "is a folder, not a file" if report.is_dir() else why_unwritable(report.absolute().parent)
    if why is not None:
        raise ConfigurationError(
            why,
            code="report-unwritable",
            where=str(report),
            remedy="name another file, e.g. quality.html",
        )
