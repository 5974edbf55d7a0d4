"""A class-data archive of Spark and Delta: a local session in half the time.

A short command spends most of its time with loading and verifying some twenty thousand classes. Java can
keep them as it has laid them out in memory, and the next JVM maps that file instead (JEP 350, dynamic
archives). The archive is made once per Java, Spark and set of jars, and lies beside the jars in the cache.

* It is made by a process of its own, at the lowest priority, after a command that had to do without; or by
  ``python -m pipelines.spark.class_archive``, as `make demo` and `make test` do while they set up.
* A JVM maps an archive only if it was made by the same Java over the same class path, and says nothing where
  it does not. So a stale or damaged archive costs time, never a result. It is written beside its place and
  renamed, so a JVM never sees half of one.
* All that can go wrong ends the making of the archive, not a command: the next command tries again, after
  `_AGAIN` seconds.

``SMELT_CLASS_ARCHIVE=off`` switches it off.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipelines.spark.jars import cache_root, delta_jars
from pipelines.spark.java import check_java

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SWITCH: Final = "SMELT_CLASS_ARCHIVE"
CLASS_PATH: Final = "spark.driver.extraClassPath"
_KEPT: Final = 4
_AGAIN: Final = 3600.0
_LIMIT: Final = 600.0
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
            [sys.executable, "-m", "pipelines.spark.class_archive"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "SMELT_ARCHIVE_NICE": "19"},
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


def make() -> None:
    """Make the archive if it is not there; at most one process at a time does.

    Raises:
        ConfigurationError: Java is missing, or Spark is.
        DefiniteError: Delta's jars cannot be had, or Spark does not start.
    """
    jars = delta_jars()
    archive = place(check_java(), jars)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with (archive.parent / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if archive.is_file():
            return
        with tempfile.TemporaryDirectory(prefix=".draft-", dir=archive.parent) as folder:
            draft = Path(folder) / archive.name
            _train(draft, Path(folder))
            if draft.is_file():
                draft.rename(archive)
                _forget_oldest(archive.parent)


def _train(draft: Path, folder: Path) -> None:
    """Run what commands run in a session of its own, whose JVM writes the archive as it ends."""
    from pipelines.spark.archive_training import train  # noqa: PLC0415 - loads Spark
    from pipelines.spark.session import spark_session, stop_session  # noqa: PLC0415

    spark = spark_session(
        {"spark.driver.extraJavaOptions": f'"-XX:ArchiveClassesAtExit={draft}"', "spark.driver.memory": "1g"},
        log=folder / "spark.log",
        brief=True,
    )
    try:
        train(spark, folder / "lake")
    finally:
        stop_session(spark, patience=_LIMIT)


def _forget_oldest(folder: Path) -> None:
    """Keep the newest archives: an environment that is made again has another place, and so another one."""
    archives = sorted(folder.glob("*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in archives[_KEPT:]:
        old.unlink(missing_ok=True)
        old.with_suffix(".tried").unlink(missing_ok=True)


if __name__ == "__main__":
    if "SMELT_ARCHIVE_NICE" in os.environ:
        os.nice(int(os.environ["SMELT_ARCHIVE_NICE"]))
    make()
