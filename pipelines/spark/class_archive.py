"""A class-data archive of Spark and Delta: a local session in two thirds of the CPU time.

A short command spends most of its time with loading and verifying some twenty thousand classes. Java can keep
them as it has laid them out in memory, and the next JVM maps that file instead (JEP 350, dynamic archives).
The archive is made once per Java, Spark and set of jars, and lies beside the jars in the cache; some 200 MB.

When it is used
    By local sessions over our class path and nothing else: see `archive_of`. All others run as if there were
    no archives.
When it is made
    By `make demo` and `make test` while they set up (``python -m
    deltasmelt.pipelines.spark.archive_training``). Or by a process of its own at the lowest priority, after a
    command on a terminal that had to do without; at most once a day.
What can go wrong
    A JVM maps an archive only if the same Java made it over the same class path, and says nothing where it
    does not. The file is on the disk before it gets its name, so nobody sees half of one. Only a file that
    no other account can write to is used: an archive is code. Should a JVM not start over one all the same,
    it is started again without, and the archive is removed.

``SMELT_CLASS_ARCHIVE=off`` switches all of it off.
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

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SWITCH: Final = "SMELT_CLASS_ARCHIVE"
CLASS_PATH: Final = "spark.driver.extraClassPath"
NICE: Final = "SMELT_ARCHIVE_NICE"
"""Names the priority of a process that makes an archive in the background."""

_AGAIN: Final = 24 * 3600.0
"""Seconds between two tries in the background."""

_OFF: Final = frozenset({"off", "0", "false", "no"})
_QUIET: Final = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
_MORE_CLASSES: Final = (CLASS_PATH, "spark.jars", "spark.jars.packages")
"""Settings by which classes come from elsewhere: ours and theirs then stay in one class loader."""

_ELSEWHERE: Final = (
    "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_CLASSPATH", "SPARK_DIST_CLASSPATH", "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
)  # fmt: skip
"""Variables by which Spark's launcher puts something else on the class path."""

_JVM_VARIABLES: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_JVM_OPTIONS: Final = "spark.driver.extraJavaOptions"
_OWN_ARCHIVE: Final = re.compile(
    "SharedArchiveFile|ArchiveClassesAtExit|RecordDynamicDumpInfo|AutoCreateSharedArchive|-Xshare"
)
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9_./+@-]+")


def archive_of(settings: Mapping[str, str], java: str, jars: Sequence[Path]) -> Path | None:
    """Where the archive for a session of these settings is, or would be; None where it shall have none.

    Args:
        settings: the pipeline file's `spark` section.
        java: the program and what its ``-version`` prints.
        jars: Delta's, in the order of the class path.
    """
    if os.environ.get(SWITCH, "on").lower() in _OFF or not _is_plain(settings):
        return None
    try:
        archive = _place(java, jars)
    except (OSError, RuntimeError):  # a file that is gone, no home folder
        return None
    return archive if all(_PLAIN_PATH.fullmatch(str(path)) for path in (archive, *jars)) else None


def _is_plain(settings: Mapping[str, str]) -> bool:
    """Whether a session's JVM runs here, over pyspark's jars and ours, with no archive of the user's own."""
    given = [settings.get(_JVM_OPTIONS, ""), *(os.environ.get(name, "") for name in _JVM_VARIABLES)]
    return (
        is_local(settings.get("spark.master", "local[*]"))
        and not any(name in settings for name in _MORE_CLASSES)
        and not any(name in os.environ for name in _ELSEWHERE)
        and os.environ.get("PYSPARK_SUBMIT_ARGS", "").strip() in {"", "pyspark-shell"}
        and not any(map(_OWN_ARCHIVE.search, given))
    )


def _place(java: str, jars: Sequence[Path]) -> Path:
    import pyspark  # noqa: PLC0415 - the reader must not load Spark

    home = Path(pyspark.__file__).parent
    if (home / "conf").exists():  # on the class path before the jars, where Java takes no folder with files
        raise FileExistsError
    version = "\n".join(line for line in java.splitlines() if not line.startswith("Picked up"))
    parts = [version, f"{home / 'jars'} {(home / 'jars').stat().st_mtime_ns}"]
    parts += [f"{jar} {jar.stat().st_mtime_ns} {jar.stat().st_size}" for jar in jars]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]
    return cache_root() / "class-archives" / f"{key}.jsa"


def usable(archive: Path) -> bool:
    """Whether an archive is there, and no other account could have written it."""
    try:
        return all(_is_ours(path.stat()) for path in (archive, archive.parent))
    except OSError:
        return False


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid in {os.getuid(), 0} and not status.st_mode & 0o022


def options(archive: Path) -> str:
    """Options of a JVM that maps an archive, as one text."""
    return f"-XX:SharedArchiveFile={archive} {_QUIET}"


def make_later(archive: Path) -> None:
    """Have the archive made by a process that outlives this one: after a command that somebody gave by hand.

    A job's process group ends with the job, and the archive with it.
    """
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
    except OSError:  # no more processes, say: then not now
        return


def _may_try(folder: Path) -> bool:
    """Note a try; whether there was none of late."""
    note = folder / ".tried"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if note.exists() and time.time() - note.stat().st_mtime < _AGAIN:
            return False
        note.touch()
    except OSError:  # a cache that cannot be written to
        return False
    return True
