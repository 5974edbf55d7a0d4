"""Jars of the stores' connectors: which there are, and a folder that lacks some."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyspark
import pytest

from bronze.errors import ConfigurationError
from bronze.lake.stores import AZURE, GOOGLE, S3, SCHEMES
from pipelines.spark.jar_sets import CLIENTS, LINES, delta_set, store_set
from pipelines.spark.jars import store_jars

if TYPE_CHECKING:
    from pathlib import Path

LINE = ".".join(pyspark.__version__.split(".")[:2])


def test_each_set_has_a_name_of_its_own_and_schemes_of_one_store_share_it() -> None:
    every = [delta_set(line) for line in LINES]
    assert set(CLIENTS) == set(LINES)
    for line, (hadoop, _) in CLIENTS.items():
        sets = {scheme: store_set(scheme, line) for scheme in SCHEMES}
        names = {scheme: None if one is None else one.name for scheme, one in sets.items()}
        assert {names[scheme] for scheme in S3} == {f"s3-hadoop-{hadoop}"}
        assert {names[scheme] for scheme in AZURE} == {f"azure-hadoop-{hadoop}"}
        assert {names[scheme] for scheme in GOOGLE} == {None}, "the user gives it"
        every += [one for one in sets.values() if one is not None]
    for one in every:
        assert re.fullmatch(r"[a-z0-9.-]+", one.name)
        assert all(name.endswith(".jar") for name in one.checksums)
        assert all(re.fullmatch("[0-9a-f]{64}", checksum) for checksum in one.checksums.values())


@pytest.mark.parametrize("scheme", ["s3a", "abfss"])
def test_a_folder_of_jars_that_lacks_one_is_refused_by_its_name(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_JARS", str(tmp_path))
    jars = store_set(scheme, LINE)
    assert jars is not None
    first, *others = jars.checksums
    for name in others:
        (tmp_path / name).touch()
    with pytest.raises(ConfigurationError) as raised:
        store_jars(scheme)
    assert (raised.value.code, raised.value.message) == ("jars-missing", f"SMELT_JARS lacks {first}")
    (tmp_path / first).touch()
    assert [path.name for path in store_jars(scheme)][: len(jars.checksums)] == list(jars.checksums)


def test_only_s3_needs_our_log_store_and_google_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_JARS", str(tmp_path))
    for scheme in ("s3", "abfs"):
        jars = store_set(scheme, LINE)
        assert jars is not None
        for name in jars.checksums:
            (tmp_path / name).touch()
    assert store_jars("s3")[-1].name == "deltasmelt-logstore.jar"
    assert store_jars("s3")[-1].is_file()
    assert "deltasmelt-logstore.jar" not in [path.name for path in store_jars("abfs")]
    assert store_jars("gs") == []
