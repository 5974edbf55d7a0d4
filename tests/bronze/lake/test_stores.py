"""Schemes and options of object stores, and the options that a location receives."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from pyarrow.fs import FileSelector

from deltasmelt.bronze.lake import objects, parquet
from deltasmelt.bronze.lake.stores import (
    AZURE,
    SCHEMES,
    all_options,
    is_meant_for_store,
    options_of,
    refuse_wrong,
    register,
    scheme_of,
    without_keys,
)


@pytest.mark.parametrize(
    ("location", "scheme"),
    [
        ("s3://bucket/lake", "s3"),
        ("S3A://bucket/lake", "s3a"),
        ("abfss://lake@account.dfs.core.windows.net/a", "abfss"),
        ("gs://bucket", "gs"),
        ("foo://bucket", "foo"),
        ("/data/lake", None),
        ("lake", None),
        ("file:///data/lake", None),
        ("/data/s3://bucket", None),
    ],
)
def test_the_scheme_of_a_url_and_none_of_a_path(location: str, scheme: str | None) -> None:
    assert scheme_of(location) == scheme


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_every_scheme_takes_its_own_options_and_those_of_spark(scheme: str) -> None:
    place = f"{scheme}://lake@account.host/x" if scheme in AZURE else f"{scheme}://bucket/lake"
    own = {"s": "aws_region", "a": "azure_storage_account_name", "g": "google_service_account"}[scheme[0]]
    refuse_wrong(place, {own: "x", "fs.any.thing": "1"})
    refuse_wrong(place, {})
    with pytest.raises(ValueError, match="unknown option 'x'"):
        refuse_wrong(place, {own: "x", "x": "1"})


def test_a_local_path_takes_no_options_not_even_those_of_spark() -> None:
    refuse_wrong("/data/lake", {})
    for name in ("aws_region", "fs.s3a.threads.max"):
        with pytest.raises(ValueError, match="this lake is a local folder"):
            refuse_wrong("/data/lake", {name: "1"})


def test_a_location_gets_what_was_registered_for_the_nearest_place_above_it() -> None:
    register("s3://nearest", {"aws_region": "bucket"})
    register("s3://nearest/lake/", {"aws_region": "lake", "fs.s3a.threads.max": "9"})
    assert options_of("s3://nearest/lake/bronze/changes") == {"aws_region": "lake"}
    assert options_of("s3://nearest/lake") == {"aws_region": "lake"}
    assert options_of("s3://nearest/lake-of-another/bronze") == {"aws_region": "bucket"}
    assert all_options("s3://nearest/lake/gold/x") == {"aws_region": "lake", "fs.s3a.threads.max": "9"}
    assert options_of("s3://another/lake") is None
    assert all_options("/nearest/lake") == {}


def test_what_is_registered_again_takes_the_place_of_what_was() -> None:
    register("s3://again/lake", {"aws_region": "one", "aws_session_token": "old"})
    register("s3://again/lake", {"aws_region": "two"})
    assert options_of("s3://again/lake") == {"aws_region": "two"}
    register("s3://again/lake", {})
    assert options_of("s3://again/lake") is None


def test_keys_are_blanked_out_of_a_text_and_other_options_are_not() -> None:
    register(
        "s3://blanked/lake",
        {
            "aws_secret_access_key": "gEh31m-Wort",
            "aws_session_token": "gEh31m-Wort-2",
            "fs.s3a.bucket.x.secret.key": "An0ther-Wort",
            "aws_region": "eu-central-1",
            "aws_access_key_id": "key",
        },
    )
    said = "gEh31m-Wort gEh31m-Wort-2 An0ther-Wort eu-central-1 key"
    assert without_keys(said) == "*** *** *** eu-central-1 key"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("aws_allow_http", "maybe", "is true or false"),
        ("aws_endpoint_url", "127.0.0.1:9000", "begins with http:// or https://"),
        ("aws_endpoint_url", "http:///x", "names a host"),
        ("fs.s3a.create.performance", "true", "overwrite commits of others"),
        ("fs.s3a.bucket.lake.performance.flags", "delete,create", "overwrite commits of others"),
    ],
)
def test_a_value_that_cannot_be_right_or_is_not_safe_is_refused(name: str, value: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        refuse_wrong("s3://bucket/lake", {name: value})


def test_what_only_looks_like_a_store_s_url_is_known() -> None:
    assert all(
        map(is_meant_for_store, ("s3:/bucket/lake", "s3:bucket", "gs:/x", "S3A:/b", "s3:///x", "s3://"))
    )
    assert not any(map(is_meant_for_store, ("s3://bucket", "/data/s3:/x", "./s3", "file:///x")))


def test_a_service_account_s_content_is_no_file_s_name_and_abfss_names_its_account() -> None:
    with pytest.raises(ValueError, match="is a file"):
        refuse_wrong("gs://bucket/lake", {"google_service_account": '{"private_key": "x"}'})
    with pytest.raises(ValueError, match="names container and account"):
        refuse_wrong("abfss://container/lake", {})


def test_a_location_that_is_percent_encoded_or_has_a_large_scheme_is_the_same_place() -> None:
    register("s3://odd/my läke", {"aws_region": "odd"})
    for location in ("s3://odd/my%20l%C3%A4ke/bronze/changes/", "S3://odd/my läke", "s3://odd/my läke"):
        assert options_of(location) == {"aws_region": "odd"}


def test_http_that_is_written_is_allowed() -> None:
    register("s3://plain/lake", {"aws_endpoint_url": "http://x"})
    assert options_of("s3://plain/lake") == {"aws_endpoint_url": "http://x", "aws_allow_http": "true"}


def test_a_key_within_json_and_one_that_a_library_says_as_bytes_are_blanked_out() -> None:
    key = '{"type": "service_account", "private_key": "-----BEGIN\\nGEHEIMGEHEIM\\nEND"}'
    register("gs://json/lake", {"google_service_account_key": key})
    for text in (key, "-----BEGIN\nGEHEIMGEHEIM\nEND", "-----BEGIN\\nGEHEIMGEHEIM\\nEND"):
        assert "GEHEIM" not in without_keys(f"cannot read {text}")
    assert "71" not in without_keys("missing end marker: [80, 82, 73, 86, 65, 84, 69, 32, 71]")
    assert without_keys("[1, 2, 3]") == "[1, 2, 3]"


@pytest.mark.process
def test_one_client_serves_every_table_of_a_lake_whatever_its_name(place: str) -> None:
    names = ("plain", "a b", "100%", "ü", "a#b", "100%25")
    uris = {name: f"{place}/silver/{quote(name)}" for name in names}
    before = objects._connected.cache_info().misses, parquet._connected.cache_info().misses
    for name, uri in uris.items():
        objects.replace(uri, "one", name.encode())
        objects.replace(uri, "below/two", b"2")
    assert objects._connected.cache_info().misses == before[0] + 1
    assert [objects.read_whole(uri, "one").decode() for uri in uris.values()] == list(names)
    assert [list(objects.newest_below(uri, "below")) for uri in uris.values()] == [["two"]] * len(uris)
    for uri in (uris["plain"], f"{place}/silver/plain/below", place):
        parquet.file_system(uri).get_file_info("one")
    assert parquet._connected.cache_info().misses == before[1] + 1
    for name, uri in uris.items():
        system = parquet.file_system(uri)
        assert system.open_input_file("one").read().decode() == name
        assert sorted(info.path for info in system.get_file_info(FileSelector(""))) == ["below", "one"]
        objects.delete_below(uri, "below")
        assert not objects.exists(uri, "below/two")
        parquet.delete_files(uri, ["one"])
        assert not objects.any_below(uri)
    assert not objects.any_below(f"{place}/silver")
