"""Jars of the stores' connectors: the sets, and a folder that lacks some jars."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pyspark
import pytest

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.bronze.lake.stores import AZURE, GOOGLE, S3, SCHEMES
from deltasmelt.pipelines.spark import jars
from deltasmelt.pipelines.spark.jars import (
    CLIENTS,
    DELTA_VERSION,
    LINES,
    JarSet,
    delta_set,
    jars_of,
    store_jars,
    store_set,
)

if TYPE_CHECKING:
    from pathlib import Path

LINE = ".".join(pyspark.__version__.split(".")[:2])


def _of_delta(beginning: str) -> dict[str, str]:
    return {
        name: checksum for name, checksum in delta_set(LINE).checksums.items() if name.startswith(beginning)
    }


def test_each_jar_set_has_name_shared_between_schemes() -> None:
    """Schemes of a single store share a set of jars."""
    every = [delta_set(line) for line in LINES]
    assert set(CLIENTS) == set(LINES)
    for line, (hadoop, _) in CLIENTS.items():
        sets = {scheme: store_set(scheme, line) for scheme in SCHEMES}
        names = {scheme: None if jar_set is None else jar_set.name for scheme, jar_set in sets.items()}
        assert {names[scheme] for scheme in S3} == {f"s3-hadoop-{hadoop}"}
        assert {names[scheme] for scheme in AZURE} == {f"azure-hadoop-{hadoop}"}
        assert {names[scheme] for scheme in GOOGLE} == {None}, "the user gives it"
        every += [jar_set for jar_set in sets.values() if jar_set is not None]
    for jar_set in every:
        assert re.fullmatch(r"[a-z0-9.-]+", jar_set.name)
        assert all(name.endswith(".jar") for name in jar_set.checksums)
        assert all(re.fullmatch("[0-9a-f]{64}", checksum) for checksum in jar_set.checksums.values())


STORAGE = f"io.delta:delta-storage:{DELTA_VERSION}"
SMALL = JarSet("a small set", "small", (STORAGE,), _of_delta("delta-storage"))


@pytest.mark.parametrize("scheme", ["s3a", "abfss"])
def test_incomplete_or_altered_jar_folder_is_rejected(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_JARS", str(tmp_path))
    jar_set = store_set(scheme, LINE)
    assert jar_set is not None
    first, *further_jars = jar_set.checksums
    for name in further_jars:
        (tmp_path / name).touch()
    with pytest.raises(ConfigurationError) as raised:
        store_jars(scheme)
    assert (raised.value.code, raised.value.message) == ("jars-missing", f"SMELT_JARS lacks {first}")
    (tmp_path / first).touch()
    with pytest.raises(DefiniteError, match=f"{first} has checksum e3b0c442") as changed:
        store_jars(scheme)
    assert (changed.value.code, changed.value.where) == ("jars-checksum", str(tmp_path))


@pytest.mark.process
def test_altered_cached_jar_is_downloaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMELT_JARS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cached = tmp_path / "deltasmelt" / "jars" / SMALL.name / next(iter(SMALL.checksums))
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"something else")
    announced: list[str] = []
    assert jars_of(SMALL, announced.append) == [cached]
    assert announced == ["fetching a small set (once) …"]
    assert hashlib.sha256(cached.read_bytes()).hexdigest() == SMALL.checksums[cached.name]
    before = cached.stat().st_mtime_ns
    assert jars_of(SMALL, announced.append) == [cached]
    assert (len(announced), cached.stat().st_mtime_ns) == (1, before)
    monkeypatch.setenv("SMELT_JARS", str(cached.parent))
    assert jars_of(SMALL) == [cached]


def test_only_s3_requires_log_store_and_google_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_jars(scheme: str, line: str) -> JarSet | None:
        jar_set = store_set(scheme, line)
        return None if jar_set is None else replace(jar_set, checksums={})

    monkeypatch.setenv("SMELT_JARS", str(tmp_path))
    monkeypatch.setattr(jars, "store_set", without_jars)
    assert [path.name for path in store_jars("s3")] == ["deltasmelt-logstore.jar"]
    assert store_jars("s3")[-1].is_file()
    assert store_jars("abfs") == []
    assert store_jars("gs") == []
