"""Where the files of ``conf/`` are: inside the wheel, or beside the packages of a source tree."""

from __future__ import annotations

from pathlib import Path


def conf_folder() -> Path:
    """The folder `conf`."""
    packages = Path(__file__).parent
    packaged = packages / "conf"
    return packaged if packaged.is_dir() else packages.parent / "conf"
