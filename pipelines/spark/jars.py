"""Spark's jars: resolved once into a per-user cache, then handed to Spark as plain files.

``spark.jars.packages`` makes Ivy resolve at every start, about 20 s even with a warm cache. Here Ivy runs
once for each set (`pipelines.spark.jar_sets`), in a separate process. What it found is checked and moved into
the cache in one rename under a file lock. So two first starts, or a kill in the middle, leave either nothing
or everything. ``SMELT_JARS=<dir>`` names a folder with the jars for a machine without a network.

Each start compares each jar with its checksum (50 ms for Delta's 13 MB): the jars run with the rights of the
pipeline, and a disk that was full or a person may have changed them since. A cache that differs is fetched
again; a folder that the user names is refused.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bronze.errors import ConfigurationError, DefiniteError
from bronze.lake.stores import S3
from pipelines.secret_variables import without_secret_variables
from pipelines.spark.jar_sets import LINES, delta_set, store_set
from pipelines.terminal.waiting import waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pipelines.spark.jar_sets import JarSet

_SECONDS: Final = 600
LOG_STORE_JAR: Final = Path(__file__).parent / "logstore" / "deltasmelt-logstore.jar"


def delta_jars(announce: Callable[[str], None] | None = None) -> list[Path]:
    """Paths of Delta's jars for the installed Spark, resolving them on first use.

    Args:
        announce: is told when the jars have to be fetched.

    Raises:
        ConfigurationError: SMELT_JARS lacks a jar, or this Spark version has no known jars.
        DefiniteError: the jars could not be fetched, or their checksums differ.
    """
    return jars_of(delta_set(_line()), announce)


def store_jars(scheme: str, announce: Callable[[str], None] | None = None) -> list[Path]:
    """Paths of the jars by which Spark reaches an object store, resolving them on first use.

    For S3 they include our own log store (``logstore/ConditionalS3LogStore.java``).

    Args:
        scheme: of the store's URLs.
        announce: is told when the jars have to be fetched.

    Raises:
        ConfigurationError: SMELT_JARS lacks a jar, or this Spark version has no known jars.
        DefiniteError: the jars could not be fetched, or their checksums differ.
    """
    jars = store_set(scheme, _line())
    if jars is None:
        return []
    return [*jars_of(jars, announce), *([LOG_STORE_JAR] if scheme in S3 else [])]


def _line() -> str:
    """The line of the installed Spark (``4.1``).

    Raises:
        ConfigurationError: no jars are known for it.
    """
    import pyspark  # noqa: PLC0415 - the reader must not load Spark

    line = ".".join(pyspark.__version__.split(".")[:2])
    if line not in LINES:
        raise ConfigurationError(
            f"no Delta jars are known for Spark {pyspark.__version__}",
            code="spark-version",
            remedy=f"install one of: pyspark {', '.join(f'{known}.*' for known in LINES)}",
        )
    return line


def jars_of(jars: JarSet, announce: Callable[[str], None] | None = None) -> list[Path]:
    """Paths of a set's jars, resolving them on first use; see `delta_jars`."""
    given = os.environ.get("SMELT_JARS")
    if given:
        return _from_folder(Path(given), jars.checksums)
    cache = cache_root() / "jars" / jars.name
    if _changed(cache, jars.checksums) is not None:
        with waiting(f"fetching {jars.what} (once)", announce):
            _resolve(cache, jars)
    return [cache / name for name in jars.checksums]


def cache_root() -> Path:
    """The account's folder for what is fetched once."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "deltasmelt"


def _from_folder(folder: Path, expected: Mapping[str, str]) -> list[Path]:
    missing = [name for name in expected if not (folder / name).is_file()]
    if missing:
        raise ConfigurationError(
            f"SMELT_JARS lacks {', '.join(missing)}",
            code="jars-missing",
            where=str(folder),
            remedy="put these files there, or unset SMELT_JARS to resolve them from Maven Central",
        )
    changed = _changed(folder, expected)
    if changed is not None:
        raise _refused(changed, _digest(folder / changed), expected[changed], str(folder))
    return [folder / name for name in expected]


def _changed(folder: Path, expected: Mapping[str, str]) -> str | None:
    """Return the first jar that lacks or is not the published file; None: all are."""
    return next((name for name, checksum in expected.items() if _digest(folder / name) != checksum), None)


def _digest(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except FileNotFoundError:
        return "missing"


def _refused(name: str, digest: str, expected: str, where: str | None = None) -> DefiniteError:
    return DefiniteError(
        f"{name} has checksum {digest}, expected {expected}",
        code="jars-checksum",
        where=where,
        remedy="the file is not what its publisher released; fetch it elsewhere and use SMELT_JARS",
    )


def _resolve(cache: Path, jars: JarSet) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    with (cache.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _changed(cache, jars.checksums) is None:  # another process resolved them while we waited
            return
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=cache.parent))
        try:
            _run_ivy(draft / "ivy", jars)
            ready = draft / "ready"
            ready.mkdir()
            for name, checksum in jars.checksums.items():
                _take(draft / "ivy" / "jars", ready / name, checksum)
            if cache.is_dir():
                cache.rename(draft / "changed")
            ready.rename(cache)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _run_ivy(folder: Path, jars: JarSet) -> None:
    """Let Spark's own Ivy fetch a set; the program that it then runs does nothing."""
    import pyspark  # noqa: PLC0415

    folder.mkdir(parents=True)
    nothing = folder / "nothing.py"
    nothing.write_text("pass\n")
    home = Path(pyspark.__file__).parent
    environment = {
        **without_secret_variables(os.environ),
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
    }
    command = [
        *(str(home / "bin" / "spark-submit"), "--master", "local[1]"),
        *("--conf", f"spark.jars.ivy={folder}", "--packages", ",".join(jars.packages)),
        *(("--exclude-packages", ",".join(jars.without)) if jars.without else ()),
        str(nothing),
    ]
    try:
        done = subprocess.run(  # noqa: S603 - Spark's own launcher
            command, check=False, capture_output=True, text=True, env=environment, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise _not_fetched(jars, f"no answer within {_SECONDS} s") from None
    if done.returncode != 0:
        unresolved = [
            text.strip() for text in done.stderr.splitlines() if "UNRESOLVED" in text or "not found" in text
        ]
        raise _not_fetched(jars, unresolved[0] if unresolved else done.stderr.strip()[-300:])


def _not_fetched(jars: JarSet, why: str) -> DefiniteError:
    return DefiniteError(
        f"{jars.what} could not be fetched ({', '.join(jars.packages)}): {why}",
        code="jars-unreachable",
        remedy="check that Maven Central can be reached, or give the jars in a folder by SMELT_JARS",
    )


def _take(source: Path, target: Path, checksum: str) -> None:
    found = next(iter(sorted(source.glob(f"*_{target.name}"))), source / target.name)
    digest = _digest(found)
    if digest != checksum:
        raise _refused(target.name, digest, checksum)
    shutil.copyfile(found, target)
