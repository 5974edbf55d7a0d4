"""Folders that no other account can have prepared or can change: for what is run or trusted later.

The name of a folder below `/tmp` can be guessed, and the account that makes it first decides what is in it.
So a folder is used only if it is a real one (no link), of our own account, and writable by that account
alone. Otherwise nothing in it is looked at (`own_folder`).

Where the user says where a folder is, its name need not be guarded, but what is put there does: a lake holds
the source's rows, a log may quote them. Such a folder is made for our account alone (`unread_folder`). One
that is there keeps its mode: whoever made it has decided who reads.

Whether this account can make a folder or a file, asked before there is anything to lose.

Where the files of ``conf/`` are: inside the wheel, or beside the packages of a source tree.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from deltasmelt.bronze.errors import ConfigurationError


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


def conf_folder() -> Path:
    """The folder `conf`."""
    packages = Path(__file__).resolve().parent
    packaged = packages / "conf"
    return packaged if packaged.is_dir() else packages.parent / "conf"


def own_folder(folder: Path, *, mode: int = 0o700) -> bool:
    """Make a folder with its parents if it is not there; returns whether it is ours alone.

    Args:
        folder: its last part is made with `mode`.
        mode: others may be let in to read (0o755).
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(mode=mode)
            folder.chmod(mode)  # whatever the umask
        except FileExistsError:
            pass  # by whom, and who writes it, is looked at now
        found = folder.lstat()
    except OSError:  # a home that is not there, a file in the way, a disk that cannot be written
        return False
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not others_write


def unread_folder(folder: Path) -> None:
    """Make a folder with its parents if it is not there; nobody else can read one that is made.

    Raises:
        OSError: it cannot be made, or something else is there.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:  # a file: said as of any path that leads through one
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
