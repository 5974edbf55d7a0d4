"""PostgreSQL of versions that no package dependency contains: 14, 15, 17 and an old 16, from Maven Central.

Each version is a jar of about 14 MB with an archive of the binaries (project embedded-postgres-binaries). A
test downloads the jar once, compares the jar's checksum with the table below, and caches the jar next to
Delta's jars. Each run unpacks the archive into a folder that the server's account can read. An installed
server replaces the jar: ``SMELT_POSTGRES_14=/usr/lib/postgresql/14`` (15, 16, 17) names its folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import platform
import tarfile
import tempfile
import urllib.request
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from deltasmelt.pipelines.spark.jars import cache_root

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MAVEN: Final = "https://repo1.maven.org/maven2/io/zonky/test/postgres"
_SECONDS: Final = 120
_RELEASES: Final = {14: "14.24.0", 15: "15.19.0", 17: "17.11.0", 16: "16.8.0"}
"""Releases by major version. 16.8 is the last 16 that loses changes of a table that joined a publication
(`bronze.drift.joining`).
"""
_PLATFORMS: Final = {
    ("Linux", "x86_64"): "linux-amd64",
    ("Linux", "aarch64"): "linux-arm64v8",
    ("Darwin", "x86_64"): "darwin-amd64",
    ("Darwin", "arm64"): "darwin-arm64v8",
}

# SHA-256 of what Maven Central holds. Of 14 and 16 those for the first of the platforms alone.
_CHECKSUMS: Final[Mapping[tuple[int, str], str]] = {
    (14, "linux-amd64"): "2722d05eb22c671104c9918d59d8ba9f5656898f5452a0207bb4cce21eef5dc4",
    (15, "linux-amd64"): "95f0b66fe72d4ca66c815773c44cb1196ea38552463e89a35f18114b3ed1565f",
    (15, "linux-arm64v8"): "95baf4bd4af31b91b3050118df59388ed0064756b556b850669e0300aa7b9911",
    (15, "darwin-amd64"): "11d0a55e26f4c74c6ea6c72c5e4e6ac959b29a06cc6da5e5ac8162f9fd9f8055",
    (15, "darwin-arm64v8"): "9bfc44d3f50298bb14fa125da4b67a36f382f8134ab2fc95349b72bcd5ec4e87",
    (16, "linux-amd64"): "b00afe061174823aee98b2a83ba880e1064219892fe5664e6431c0d63db706dd",
    (17, "linux-amd64"): "0dd7b72b6f335b8ecfb355fa24c5781e8a93edd09880bb77eb52ebbf29b3e96d",
    (17, "linux-arm64v8"): "8b042e0ea418b1927d95399207950da0734d27fe01e29503ade3bdc464ad4c2b",
    (17, "darwin-amd64"): "d464ff178e9860ba204662ac23fa547504b7fd392392ff2fb92e3fd73b5bdb64",
    (17, "darwin-arm64v8"): "a1c2786acb0c398f9b2d76806fc52f5dc8b222cbc8e9383a9b9702084daaf3a5",
}


@contextmanager
def installation(major: int) -> Iterator[Path]:
    """Return the folder (with ``bin/``) of a major version, 14 to 17; remove the folder after the block."""
    configured = os.environ.get(f"SMELT_POSTGRES_{major}")
    if configured:
        yield Path(configured)
        return
    kind = _PLATFORMS.get((platform.system(), platform.machine()), platform.machine())
    if (major, kind) not in _CHECKSUMS:
        pytest.fail(f"no PostgreSQL {major} is known for {kind}; name one by SMELT_POSTGRES_{major}=<folder>")
    # Not in pytest's folder, which is nobody else's.
    with tempfile.TemporaryDirectory(prefix=f"smelt-postgresql-{major}-") as name:
        Path(name).chmod(0o755)
        with zipfile.ZipFile(_jar(major, kind)) as jar:
            [archive] = [member for member in jar.namelist() if member.endswith(".txz")]
            with tarfile.open(fileobj=io.BytesIO(jar.read(archive)), mode="r:xz") as files:
                files.extractall(name, filter="tar")
        yield Path(name)


def _jar(major: int, kind: str) -> Path:
    artifact = f"embedded-postgres-binaries-{kind}"
    name = f"{artifact}-{_RELEASES[major]}.jar"
    cached = cache_root() / "servers" / name
    cached.parent.mkdir(parents=True, exist_ok=True)
    with (cached.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not cached.exists():
            address = f"{_MAVEN}/{artifact}/{_RELEASES[major]}/{name}"
            with urllib.request.urlopen(address, timeout=_SECONDS) as answer:  # noqa: S310 - https, above
                data = answer.read()
            draft = cached.with_suffix(".draft")
            draft.write_bytes(data)
            draft.rename(cached)
    if hashlib.sha256(cached.read_bytes()).hexdigest() != _CHECKSUMS[major, kind]:
        cached.unlink()
        pytest.fail(f"{name} is not what it was when its checksum was taken; nothing of it was run")
    return cached
