"""A class-data archive of Spark and Delta: a local session in half the time.

A short command spends most of its time with loading and verifying some twenty thousand classes. Java can
keep them as it has laid them out in memory, and the next JVM maps that file instead (JEP 350, dynamic
archives). The archive is made once per Java, Spark and set of jars, and lies beside the jars in the cache.

* It is made by a process of its own, at the lowest priority, after a command that had to do without; or by
  ``python -m pipelines.spark.archive_training``, as `make demo` and `make test` do while they set up.
* A JVM maps an archive only if it was made by the same Java over the same class path, and says nothing where
  it does not. So a stale or damaged archive costs time, never a result. It is written beside its place and
  renamed, so a JVM never sees half of one.
* All that can go wrong ends the making of the archive, not a command: the next command tries again, after
  `_AGAIN` seconds.

``SMELT_CLASS_ARCHIVE=off`` switches it off.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipelines.spark.jars import cache_root

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SWITCH: Final = "SMELT_CLASS_ARCHIVE"
CLASS_PATH: Final = "spark.driver.extraClassPath"
NICE: Final = "SMELT_ARCHIVE_NICE"
_AGAIN: Final = 3600.0
"""Seconds between two tries to make an archive in the background."""

_QUIET: Final = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def wanted(settings: Mapping[str, str]) -> bool:
    """Whether a session of these settings can use our archive: a local one over our class path alone."""
    return (
        os.environ.get(SWITCH, "on").lower() not in {"off", "0", "false", "no"}
        and settings.get("spark.master", "local[*]").partition("[")[0] == "local"
        and CLASS_PATH not in settings
        and "-XX:SharedArchiveFile" not in settings.get("spark.driver.extraJavaOptions", "")
    )


def place(java: str, jars: Sequence[Path]) -> Path:
    """Where the archive of a Java and these jars is, or would be.

    Args:
        java: what ``java -version`` prints.
        jars: Delta's, in the order of the class path.
    """
    import pyspark  # noqa: PLC0415 - the reader must not load Spark

    spark = Path(pyspark.__file__).parent / "jars"
    parts = [java, str(spark), str(spark.stat().st_mtime_ns)]
    parts += [f"{jar} {jar.stat().st_mtime_ns} {jar.stat().st_size}" for jar in jars]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]
    return cache_root() / "class-archives" / f"{key}.jsa"


def options(archive: Path) -> str:
    """Options of a JVM that maps an archive, as one text; empty while there is none."""
    if not archive.is_file():
        return ""
    return f'"-XX:SharedArchiveFile={archive}" {_QUIET}'


def make_later(archive: Path) -> None:
    """Have the archive made by a process that outlives this one, if nobody tried of late."""
    if archive.is_file() or not _may_try(archive):
        return
    try:
        subprocess.Popen(
            [sys.executable, "-m", "pipelines.spark.archive_training"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, NICE: "19"},
        )
    except OSError:  # no more processes, say: then not now
        return


def _may_try(archive: Path) -> bool:
    """Note a try; whether there was none within the last hour."""
    note = archive.with_suffix(".tried")
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        if note.exists() and time.time() - note.stat().st_mtime < _AGAIN:
            return False
        note.touch()
    except OSError:  # a cache that cannot be written to
        return False
    return True
