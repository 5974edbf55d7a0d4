"""Make folders safe from foreign accounts, for programs and files that a later run trusts.

A foreign account can guess the name of a folder below `/tmp`. The first account to make the folder decides
about the contents. So `own_folder` accepts only a real folder (no link), owned and writable by this account
alone. Otherwise nothing in the folder is read.

In a folder chosen by the user, the contents need protection, not the name: a lake contains the source's rows,
a log may quote rows. `unread_folder` makes such a folder for this account alone.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

from deltasmelt.bronze.errors import ConfigurationError


def why_unwritable(folder: Path) -> str | None:
    """Return the obstacle to this account's writing to a folder; None without a known obstacle."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        return (
            "the path is a file, not a folder"
            if existing == folder
            else f"{existing} is a file, not a folder"
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"this account may not write in {existing}"
    try:  # only a trial shows a file system that is read-only, full, or no place for files, as /proc
        Path(tempfile.mkdtemp(prefix=".smelt-", dir=existing)).rmdir()
    except OSError as error:
        return f"{existing}: {os.strerror(error.errno or 0)}"
    return None


def require_report(report: Path) -> None:
    """Refuse a report path that could not be written at the end.

    Raises:
        ConfigurationError: ``report-unwritable``: the path is a folder, or this account may not write there.
    """
    reason = "is a folder, not a file" if report.is_dir() else why_unwritable(report.absolute().parent)
    if reason is not None:
        raise ConfigurationError(
            reason,
            code="report-unwritable",
            where=str(report),
            remedy="name another file, e.g. quality.html",
        )


def conf_folder() -> Path:
    """Return the folder `conf`: inside the wheel, or next to the packages of a source tree."""
    packages = Path(__file__).resolve().parent
    packaged = packages / "conf"
    return packaged if packaged.is_dir() else packages.parent / "conf"


def own_folder(folder: Path, *, mode: int = 0o700) -> bool:
    """Make a missing folder with its parents; return whether only this account owns and writes the folder.

    The last part of the path gets the permissions `mode`; 0o755 admits readers.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(mode=mode)
            folder.chmod(mode)  # whatever the umask
        except FileExistsError:
            pass  # the check below finds the owner and the writers
        status = folder.lstat()
    except OSError:  # a missing home, a file in the way, a read-only disk
        return False
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not others_write


def unread_folder(folder: Path) -> None:
    """Make a missing folder with its parents; no foreign account can read a new folder.

    Raises:
        OSError: the folder cannot be made, or the path is no folder.
    """
    try:
        # An existing folder keeps its mode: its maker has decided about readers.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:  # a file: raise the error of a path through a file
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
