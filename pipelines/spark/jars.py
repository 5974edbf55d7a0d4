"""Delta's jars: resolved once into a per-user cache, then handed to Spark as plain files.

``spark.jars.packages`` makes Ivy resolve at every start, about 20 s even with a warm cache. Here Ivy runs
once, in a separate process. What it found is checked against the checksums below and moved into the cache in
one rename under a file lock. So two first starts, or a kill in the middle, leave either nothing or
everything. ``SMELT_JARS=<dir>`` names a folder with the jars for a machine without a network.
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
from pipelines.terminal.waiting import waiting

if TYPE_CHECKING:
    from collections.abc import Callable

DELTA_VERSION: Final = "4.4.0"
_SECONDS: Final = 600

# SHA-256 of what Maven Central holds. Everything else that Delta names as a dependency ships with Spark.
_CHECKSUMS: Final = {
    "4.1": {
        "delta-spark_4.1_2.13-4.4.0.jar": "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
        "delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
        "delta-kernel-api-4.4.0.jar": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
        "delta-kernel-defaults-4.4.0.jar": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
        "delta-kernel-unitycatalog-4.4.0.jar": (
            "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa"
        ),
    },
}


def delta_jars(announce: Callable[[str], None] | None = None) -> list[Path]:
    """Paths of Delta's jars for the installed Spark, resolving them on first use.

    Args:
        announce: is told when the jars have to be fetched.

    Raises:
        ConfigurationError: SMELT_JARS lacks a jar, or this Spark version has no known jars.
        DefiniteError: the jars could not be fetched, or their checksums differ.
    """
    import pyspark  # noqa: PLC0415 - the reader must not load Spark

    line = ".".join(pyspark.__version__.split(".")[:2])
    if line not in _CHECKSUMS:
        raise ConfigurationError(
            f"no Delta jars are known for Spark {pyspark.__version__}",
            code="spark-version",
            remedy=f"install one of: pyspark {', '.join(f'{known}.*' for known in _CHECKSUMS)}",
        )
    expected = _CHECKSUMS[line]
    given = os.environ.get("SMELT_JARS")
    if given:
        return _from_folder(Path(given), expected)
    cache = cache_root() / "jars" / f"delta-{DELTA_VERSION}-spark-{line}"
    if not cache.is_dir():
        with waiting("fetching Delta's jars (once)", announce):
            _resolve(cache, line, expected)
    return [cache / name for name in expected]


def cache_root() -> Path:
    """The account's folder for what is fetched once."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "deltasmelt"


def _from_folder(folder: Path, expected: dict[str, str]) -> list[Path]:
    missing = [name for name in expected if not (folder / name).is_file()]
    if missing:
        raise ConfigurationError(
            f"SMELT_JARS lacks {', '.join(missing)}",
            code="jars-missing",
            where=str(folder),
            remedy="put these files there, or unset SMELT_JARS to resolve them from Maven Central",
        )
    return [folder / name for name in expected]


def _resolve(cache: Path, line: str, expected: dict[str, str]) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    with (cache.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if cache.is_dir():  # another process resolved them while we waited
            return
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=cache.parent))
        try:
            _run_ivy(draft / "ivy", f"io.delta:delta-spark_{line}_2.13:{DELTA_VERSION}")
            ready = draft / "ready"
            ready.mkdir()
            for name, checksum in expected.items():
                _take(draft / "ivy" / "jars", ready / name, checksum)
            ready.rename(cache)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _run_ivy(folder: Path, package: str) -> None:
    """Let Spark's own Ivy fetch a package; the program that it then runs does nothing."""
    import pyspark  # noqa: PLC0415

    folder.mkdir(parents=True)
    nothing = folder / "nothing.py"
    nothing.write_text("pass\n")
    home = Path(pyspark.__file__).parent
    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    command = [
        *(str(home / "bin" / "spark-submit"), "--master", "local[1]"),
        *("--conf", f"spark.jars.ivy={folder}", "--packages", package, str(nothing)),
    ]
    try:
        done = subprocess.run(  # noqa: S603 - Spark's own launcher
            command, check=False, capture_output=True, text=True, env=environment, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise _not_fetched(package, f"no answer within {_SECONDS} s") from None
    if done.returncode != 0:
        unresolved = [
            text.strip() for text in done.stderr.splitlines() if "UNRESOLVED" in text or "not found" in text
        ]
        raise _not_fetched(package, unresolved[0] if unresolved else done.stderr.strip()[-300:])


def _not_fetched(package: str, why: str) -> DefiniteError:
    return DefiniteError(
        f"Delta's jars could not be fetched ({package}): {why}",
        code="jars-unreachable",
        remedy="check that Maven Central can be reached, or give the jars in a folder by SMELT_JARS",
    )


def _take(source: Path, target: Path, checksum: str) -> None:
    found = sorted(source.glob(f"*_{target.name}"))
    digest = hashlib.sha256(found[0].read_bytes()).hexdigest() if found else "missing"
    if digest != checksum:
        raise DefiniteError(
            f"{target.name} has checksum {digest}, expected {checksum}",
            code="jars-checksum",
            remedy="the file was changed on the way; fetch it elsewhere and use SMELT_JARS",
        )
    shutil.copyfile(found[0], target)
