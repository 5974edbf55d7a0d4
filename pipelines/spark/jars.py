"""Fetch Spark's jars once into a per-user cache, and pass the jars to Spark as plain files.

``spark.jars.packages`` runs Ivy at every start, about 20 s even with a warm cache. This module runs Ivy once
for each set of jars, checks Ivy's files and moves all files into the cache in one rename, under a file lock.
So two concurrent first starts, or a kill in the middle, leave nothing or everything. ``SMELT_JARS=<dir>``
names a folder with the jars for a machine without a network.

The jars run with the rights of the pipeline, and a full disk or a person may have changed a jar since. So
each start compares each jar with its checksum (50 ms for Delta's 13 MB). A changed cache is fetched again; a
changed folder of the user is refused.

The sets are Delta's jars and the connectors of object stores. Every jar outside of a set ships with Spark, at
a usable version.

``python -m deltasmelt.pipelines.spark.jars WORD…`` prints the jars of a job for spark-submit, on one line as
``--jars`` needs: Delta's jars, the jars for the store of the pipeline's lake, and the file's own jars
(``spark: {spark.jars: …}``).

https://hadoop.apache.org/docs/r3.4.2/hadoop-aws/tools/hadoop-aws/index.html;
https://hadoop.apache.org/docs/r3.4.2/hadoop-azure/abfs.html.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError, SmeltError
from deltasmelt.bronze.lake.stores import AZURE, GOOGLE, S3
from deltasmelt.pipelines.secret_variables import without_secret_variables
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.spark.store_checksums import AZURE_JARS, S3_JARS
from deltasmelt.pipelines.terminal.output import waiting
from deltasmelt.pipelines.terminal.visible import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DELTA_VERSION: Final = "4.4.0"
CLIENTS: Final = {"4.1": ("3.4.2", "2.29.52"), "4.2": ("3.5.0", "2.35.4")}
"""By the line of Spark: the version of its Hadoop client, which a connector must have, and of the AWS SDK."""
_SDK: Final = "software.amazon.awssdk"
_SHIPPED: Final = (
    "org.apache.httpcomponents:httpclient",
    "org.apache.httpcomponents:httpcore",
    "commons-codec:commons-codec",
    "commons-logging:commons-logging",
    "org.slf4j:slf4j-api",
)
_UNUSED: Final = (f"{_SDK}:bundle", f"{_SDK}:netty-nio-client", "org.wildfly.openssl:wildfly-openssl")
_NOT_FOR_S3: Final = {
    "4.1": (*_UNUSED, "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3", *_SHIPPED),
    "4.2": (*_UNUSED, *_SHIPPED),  # its S3A reads through the accelerator by default
}


@dataclass(frozen=True, slots=True)
class JarSet:
    """Jars that belong together: `what` in messages, `name` as the folder in the cache."""

    what: str
    name: str
    packages: tuple[str, ...]
    checksums: Mapping[str, str]  # SHA-256 by file name, as published by Maven Central
    without: tuple[str, ...] = ()  # ``group:artifact`` of dependencies that Ivy leaves out


_DELTA_JARS: Final = {
    "4.1": {
        "delta-spark_4.1_2.13-4.4.0.jar": "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
        "delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
        "delta-kernel-api-4.4.0.jar": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
        "delta-kernel-defaults-4.4.0.jar": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
        "delta-kernel-unitycatalog-4.4.0.jar": (
            "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa"
        ),
    },
    "4.2": {
        "delta-spark_4.2_2.13-4.4.0.jar": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
        "delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
        "delta-kernel-api-4.4.0.jar": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
        "delta-kernel-defaults-4.4.0.jar": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
        "delta-kernel-unitycatalog-4.4.0.jar": (
            "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa"
        ),
    },
}
"""By the line of Spark, Delta's jars; all further dependencies of Delta ship with Spark."""
LINES: Final = tuple(_DELTA_JARS)  # lines of Spark with known jars


def delta_set(line: str) -> JarSet:
    """Return Delta's jars for a line of Spark (``4.1``)."""
    return JarSet(
        "Delta's jars",
        f"delta-{DELTA_VERSION}-spark-{line}",
        (f"io.delta:delta-spark_{line}_2.13:{DELTA_VERSION}",),
        _DELTA_JARS[line],
    )


def store_set(scheme: str, line: str) -> JarSet | None:
    """Return the connector of a store; None for Google's store, whose connector the user supplies."""
    if scheme in GOOGLE:
        return None
    hadoop, sdk = CLIENTS[line]
    if scheme in S3:
        # `hadoop-aws` depends on the AWS SDK as one bundle of half a gigabyte. The modules that S3A uses have
        # nine megabytes; `sts` is for roles (for example a web identity).
        modules = (f"{_SDK}:{name}:{sdk}" for name in ("s3", "s3-transfer-manager", "apache-client", "sts"))
        packages: tuple[str, ...] = (f"org.apache.hadoop:hadoop-aws:{hadoop}", *modules)
        return JarSet("the jars for S3", f"s3-hadoop-{hadoop}", packages, S3_JARS[hadoop], _NOT_FOR_S3[line])
    if scheme in AZURE:
        packages = (f"org.apache.hadoop:hadoop-azure:{hadoop}",)
        return JarSet("the jars for Azure", f"azure-hadoop-{hadoop}", packages, AZURE_JARS[hadoop], _SHIPPED)
    return None


_SECONDS: Final = 600
LOG_STORE_JAR: Final = Path(__file__).parent / "logstore" / "deltasmelt-logstore.jar"


def delta_jars(announce: Callable[[str], None] | None = None) -> list[Path]:
    """Return the paths of Delta's jars for the installed Spark; fetch the jars on first use.

    Raises:
        ConfigurationError: SMELT_JARS lacks a jar, or no jars are known for this version of Spark.
        DefiniteError: the jars could not be fetched, or their checksums differ.
    """
    return jars_of(delta_set(_line()), announce)


def store_jars(scheme: str, announce: Callable[[str], None] | None = None) -> list[Path]:
    """Return the paths of Spark's jars for an object store, like `delta_jars`.

    For S3, the result includes deltasmelt's log store (``logstore/ConditionalS3LogStore.java``).
    """
    jars = store_set(scheme, _line())
    if jars is None:
        return []
    return [*jars_of(jars, announce), *([LOG_STORE_JAR] if scheme in S3 else [])]


def _line() -> str:
    """Return the line of the installed Spark (``4.1``); refuse a line without known jars."""
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
    """Return the paths of a set's jars; fetch the jars on first use; see `delta_jars`."""
    given = os.environ.get("SMELT_JARS")
    if given:
        return _from_folder(Path(given), jars.checksums)
    cache = cache_root() / "jars" / jars.name
    if _changed(cache, jars.checksums) is not None:
        with waiting(f"fetching {jars.what} (once)", announce):
            _resolve(cache, jars)
    return [cache / name for name in jars.checksums]


def cache_root() -> Path:
    """Return the account's cache folder for files that are fetched or made once."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "deltasmelt"


def _from_folder(folder: Path, expected: Mapping[str, str]) -> list[Path]:
    missing = [name for name in expected if not (folder / name).is_file()]
    if missing:
        raise ConfigurationError(
            f"SMELT_JARS lacks {', '.join(missing)}",
            code="jars-missing",
            where=str(folder),
            remedy="copy these files to this folder, or unset SMELT_JARS to resolve them from Maven Central",
        )
    changed = _changed(folder, expected)
    if changed is not None:
        raise _refused(changed, _digest(folder / changed), expected[changed], str(folder))
    return [folder / name for name in expected]


def _changed(folder: Path, expected: Mapping[str, str]) -> str | None:
    """Return the first jar that is missing or differs from the published file; None if no jar does."""
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
        remedy="the file differs from the published file; download it from another place and use SMELT_JARS",
    )


def _resolve(cache: Path, jars: JarSet) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    with (cache.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _changed(cache, jars.checksums) is None:  # a concurrent process has fetched the jars
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
    """Fetch a set by Spark's own Ivy; the program that Spark then runs does nothing."""
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
        f"{jars.what} could not be downloaded ({', '.join(jars.packages)}): {why}",
        code="jars-unreachable",
        remedy="check that Maven Central can be reached, or set SMELT_JARS to a folder with the jars",
    )


def _take(source: Path, target: Path, checksum: str) -> None:
    found = next(iter(sorted(source.glob(f"*_{target.name}"))), source / target.name)
    digest = _digest(found)
    if digest != checksum:
        raise _refused(target.name, digest, checksum)
    shutil.copyfile(found, target)


def main() -> int:
    """Print the jars; exit with an error if a jar is unavailable."""
    try:
        sys.stdout.write(visible(",".join(_jars(sys.argv[1:]))) + "\n")
    except SmeltError as error:
        sys.stderr.write(visible(f"error: {error}\n"))
        return 1
    return 0


def _jars(words: list[str]) -> list[str]:
    jars = delta_jars()
    # The words are the words of the job's command; the first existing YAML file is the pipeline file.
    file = next((word for word in words if word.endswith((".yml", ".yaml")) and Path(word).is_file()), None)
    if file is None:
        return [str(jar) for jar in jars]
    try:
        pipeline = load_pipeline(file)
    except ConfigurationError:  # the job itself reports an unreadable pipeline file
        return [str(jar) for jar in jars]
    scheme = pipeline.lake_address().place.scheme
    if scheme is not None:
        jars += store_jars(scheme)
    own = pipeline.spark.get("spark.jars", "")
    return [*map(str, jars), *filter(None, own.split(","))]


if __name__ == "__main__":
    sys.exit(main())
