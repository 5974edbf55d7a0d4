"""Use a class-data archive of Spark and Delta: a local session in two thirds of the CPU time.

A short command spends most of its time with loading and verifying some twenty thousand classes. Java can save
the classes in their memory layout, and the next JVM maps the saved file (JEP 350, dynamic archives). The
cache has one archive of some 200 MB per Java, Spark and set of jars, next to the jars.

Measured: 30.5 → 20.8 CPU s of a first session (0.68).

`make demo` and `make test` make the archive during their setup (``python -m
deltasmelt.pipelines.spark.archive_training``), and `make_later` after a command. Only local sessions over
deltasmelt's own class path use an archive (`archive_of`); all further sessions run as if none existed.

A JVM maps an archive only from an equal Java over an equal class path, and otherwise ignores the archive
silently. The file is on the disk before the file gets its name, so no process reads half an archive. If a JVM
does not start with an archive, the session starts the JVM again without, and removes the archive.

``SMELT_CLASS_ARCHIVE=off`` switches all of this off.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lake.catalog.session import is_local
from deltasmelt.pipelines.secret_variables import without_secret_variables
from deltasmelt.pipelines.spark.jars import cache_root
from deltasmelt.pipelines.spark.launch import JVM_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SWITCH: Final = "SMELT_CLASS_ARCHIVE"
CLASS_PATH: Final = "spark.driver.extraClassPath"
NICE: Final = "SMELT_ARCHIVE_NICE"
"""Environment variable for the priority of a process that makes an archive in the background."""

_AGAIN: Final = 24 * 3600.0
"""Seconds between two attempts in the background."""

_OFF: Final = frozenset({"off", "0", "false", "no"})
_QUIET: Final = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
_MORE_CLASSES: Final = (CLASS_PATH, "spark.jars", "spark.jars.packages")
"""Settings that add further classes: all classes then stay in one class loader, without an archive."""

_ELSEWHERE: Final = (
    "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_CLASSPATH", "SPARK_DIST_CLASSPATH", "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
)  # fmt: skip
"""Variables by which Spark's launcher changes the class path."""

_JVM_VARIABLES: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_OWN_ARCHIVE: Final = re.compile(
    "SharedArchiveFile|ArchiveClassesAtExit|RecordDynamicDumpInfo|AutoCreateSharedArchive|-Xshare"
)
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9_./+@-]+")


def archive_of(settings: Mapping[str, str], java: str, jars: Sequence[Path]) -> Path | None:
    """Return the path of the archive for a session with these settings; None for a session without archive.

    Args:
        java: the program and the text that its ``-version`` prints.
    """
    if os.environ.get(SWITCH, "on").lower() in _OFF or not _is_plain(settings):
        return None
    try:
        archive = _place(java, jars)
    except (OSError, RuntimeError):  # a missing file, or no home folder
        return None
    return archive if all(_PLAIN_PATH.fullmatch(str(path)) for path in (archive, *jars)) else None


def _is_plain(settings: Mapping[str, str]) -> bool:
    """Check whether a session's JVM runs on this machine, over pyspark's jars and Delta's."""
    given = [settings.get(JVM_OPTIONS, ""), *(os.environ.get(name, "") for name in _JVM_VARIABLES)]
    return (
        is_local(settings.get("spark.master", "local[*]"))
        and not any(name in settings for name in _MORE_CLASSES)
        and not any(name in os.environ for name in _ELSEWHERE)
        and os.environ.get("PYSPARK_SUBMIT_ARGS", "").strip() in {"", "pyspark-shell"}
        # The user's own archive of classes excludes an archive of deltasmelt.
        and not any(map(_OWN_ARCHIVE.search, given))
    )


def _place(java: str, jars: Sequence[Path]) -> Path:
    import pyspark  # noqa: PLC0415 - the reader must not load Spark

    home = Path(pyspark.__file__).parent
    if (home / "conf").exists():  # on the class path, where an archive allows no folder with files
        raise FileExistsError
    version = "\n".join(line for line in java.splitlines() if not line.startswith("Picked up"))
    parts = [version, f"{home / 'jars'} {(home / 'jars').stat().st_mtime_ns}"]
    parts += [f"{jar} {jar.stat().st_mtime_ns} {jar.stat().st_size}" for jar in jars]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]
    return cache_root() / "class-archives" / f"{key}.jsa"


def usable(archive: Path) -> bool:
    """Check whether an archive exists, and no foreign account could have written it: an archive is code."""
    try:
        return all(_is_ours(path.stat()) for path in (archive, archive.parent))
    except OSError:
        return False


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid in {os.getuid(), 0} and not status.st_mode & 0o022


def options(archive: Path) -> str:
    """Return options of a JVM that maps an archive, as one text."""
    return f"-XX:SharedArchiveFile={archive} {_QUIET}"


def make_later(archive: Path) -> None:
    """Start a process of the lowest priority that makes the archive and outlives this process."""
    # Only for a command typed by hand: in a job, the process would end with the job's process group.
    if usable(archive) or not sys.stderr.isatty() or "CI" in os.environ or not _may_try(archive.parent):
        return
    try:
        subprocess.Popen(
            [sys.executable, "-P", "-m", "deltasmelt.pipelines.spark.archive_training"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**without_secret_variables(os.environ), NICE: "19"},
        )
    except OSError:  # for example too many processes: a later command retries
        return


def _may_try(folder: Path) -> bool:
    """Record an attempt; return whether the last attempt is old enough."""
    note = folder / ".tried"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if note.exists() and time.time() - note.stat().st_mtime < _AGAIN:
            return False
        note.touch()
    except OSError:  # the cache is not writable
        return False
    return True
