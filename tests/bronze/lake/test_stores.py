"""Schemes and options of object stores, and the options that a location receives."""

from __future__ import annotations

import pickle
from copy import copy
from dataclasses import asdict
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from pyarrow.fs import FileSelector

from deltasmelt.bronze.checks.finding import Finding
from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.lake import delta, objects, parquet
from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.place import Location, Store, in_store, options_of, scheme_of, without_keys
from deltasmelt.bronze.lake.stores import AZURE, SCHEMES, is_meant_for_store, refuse_wrong
from deltasmelt.bronze.lsn import Lsn

if TYPE_CHECKING:
    from tests.object_store import ObjectStore


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
def test_url_has_scheme_and_path_has_none(location: str, scheme: str | None) -> None:
    assert scheme_of(location) == scheme


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_each_scheme_accepts_own_and_spark_options(scheme: str) -> None:
    place = f"{scheme}://lake@account.host/x" if scheme in AZURE else f"{scheme}://bucket/lake"
    option_name = {"s": "aws_region", "a": "azure_storage_account_name", "g": "google_service_account"}[
        scheme[0]
    ]
    refuse_wrong(place, {option_name: "x", "fs.any.thing": "1"})
    refuse_wrong(place, {})
    with pytest.raises(ValueError, match="unknown option 'x'"):
        refuse_wrong(place, {option_name: "x", "x": "1"})


def test_local_path_accepts_no_options() -> None:
    """A local path refuses Spark options, too."""
    refuse_wrong("/data/lake", {})
    for name in ("aws_region", "fs.s3a.threads.max"):
        with pytest.raises(ValueError, match="this lake is a local folder"):
            refuse_wrong("/data/lake", {name: "1"})


def test_every_location_carries_options_of_its_lake() -> None:
    lake = Lake(in_store("s3://own/lake/", {"aws_region": "lake", "fs.s3a.threads.max": "9"}))
    for location in (lake.root, lake.uri("bronze", "changes"), lake.below("_fresh/1").uri("gold", "x")):
        assert options_of(location) == {"aws_region": "lake"}
        assert options_of(str(location)) is None, "text alone names no lake"
    assert isinstance(lake.place, Store)
    assert lake.place.options["fs.s3a.threads.max"] == "9"
    assert lake.place.below(lake.uri("bronze", "changes")) == "bronze/changes"
    assert options_of(Lake("/own/lake").uri("gold", "x")) is None


def test_location_survives_copy_and_transfer_to_process() -> None:
    location = Lake(in_store("s3://sent/lake", {"aws_region": "one"})).uri("gold", "x")
    sent = pickle.loads(pickle.dumps(location))  # noqa: S301 - our own
    for twin in (copy(location), sent, Location(location)):
        assert (twin, options_of(twin)) == (location, {"aws_region": "one"})


def test_keys_are_masked_and_other_options_shown() -> None:
    in_store(
        "s3://blanked/lake",
        {
            "aws_secret_access_key": "gEh31m-Wort",
            "aws_session_token": "gEh31m-Wort-2",
            "fs.s3a.bucket.x.secret.key": "An0ther-Wort",
            "aws_region": "eu-central-1",
            "aws_access_key_id": "key",
        },
    )
    message = "gEh31m-Wort gEh31m-Wort-2 An0ther-Wort eu-central-1 key"
    assert without_keys(message) == "*** *** *** eu-central-1 key"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("aws_allow_http", "maybe", "must be true or false"),
        ("aws_endpoint_url", "127.0.0.1:9000", "must begin with http:// or https://"),
        ("aws_endpoint_url", "http:///x", "name a host"),
        ("fs.s3a.create.performance", "true", "overwrite commits of other writers"),
        ("fs.s3a.bucket.lake.performance.flags", "delete,create", "overwrite commits of other writers"),
    ],
)
def test_invalid_or_unsafe_option_is_rejected(name: str, value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        refuse_wrong("s3://bucket/lake", {name: value})


def test_lookalike_of_store_url_is_recognized() -> None:
    assert all(
        map(is_meant_for_store, ("s3:/bucket/lake", "s3:bucket", "gs:/x", "S3A:/b", "s3:///x", "s3://"))
    )
    assert not any(map(is_meant_for_store, ("s3://bucket", "/data/s3:/x", "./s3", "file:///x")))


def test_key_content_and_incomplete_abfss_url_are_rejected() -> None:
    """A service account's content is no file name, and an abfss URL must name its account."""
    with pytest.raises(ValueError, match="is a file"):
        refuse_wrong("gs://bucket/lake", {"google_service_account": '{"private_key": "x"}'})
    with pytest.raises(ValueError, match="needs container and account"):
        refuse_wrong("abfss://container/lake", {})


def test_location_below_lake_is_resolved_in_any_spelling() -> None:
    store = Store("s3://odd/my läke", {})
    for location in ("s3://odd/my%20l%C3%A4ke/bronze/changes/", "S3://odd/my läke/bronze/changes"):
        assert store.below(location) == "bronze/changes"


def test_http_that_is_written_is_allowed() -> None:
    plain = in_store("s3://plain/lake", {"aws_endpoint_url": "http://x"})
    assert options_of(plain) == {"aws_endpoint_url": "http://x", "aws_allow_http": "true"}


def test_keys_inside_json_and_bytes_are_masked() -> None:
    key = '{"type": "service_account", "private_key": "-----BEGIN\\nGEHEIMGEHEIM\\nEND"}'
    in_store("gs://json/lake", {"google_service_account_key": key})
    for text in (key, "-----BEGIN\nGEHEIMGEHEIM\nEND", "-----BEGIN\\nGEHEIMGEHEIM\\nEND"):
        assert "GEHEIM" not in without_keys(f"cannot read {text}")
    assert "71" not in without_keys("missing end marker: [80, 82, 73, 86, 65, 84, 69, 32, 71]")
    assert without_keys("[1, 2, 3]") == "[1, 2, 3]"


@pytest.mark.process
def test_lakes_at_same_location_use_own_masked_options(store: ObjectStore, place: Location) -> None:
    keys, nowhere = ("a-key-of-the-first", "a-key-of-the-second"), {"aws_endpoint_url": "http://127.0.0.1:9"}
    first, second = (
        Lake(in_store(place, store.options() | {"aws_secret_access_key": key} | extra_options))
        for key, extra_options in zip(keys, ({}, nowhere), strict=True)
    )
    ControlTables(first).record_cut(Cut("silver", Lsn(1), None, {}))
    table = delta.open_existing(first.uri("control", "cuts"))
    assert options_of(table.table_uri) == options_of(first.root) != options_of(second.root)
    assert objects.exists(table.table_uri, "_delta_log/00000000000000000000.json")
    with pytest.raises(OSError, match="127\\.0\\.0\\.1:9"):
        objects.exists(second.uri("control", "cuts"), "_delta_log/00000000000000000000.json")
    assert without_keys(" ".join(keys)) == "*** ***"
    error = TransientError("away", code="lake-unreachable", where=first.uri("silver", "orders"))
    told = pickle.dumps([error.where, first.label, asdict(Finding.of(error))])
    assert keys[0].encode() not in told, "what leaves the package as a value carries no key"
    assert copy(first.root).place is first.place


@pytest.mark.process
def test_single_client_serves_every_table_name(place: Location) -> None:
    names = ("plain", "a b", "100%", "ü", "a#b", "100%25")
    uris = {name: place / f"silver/{quote(name)}" for name in names}
    before = objects._connected.cache_info().misses, parquet._connected.cache_info().misses
    for name, uri in uris.items():
        objects.replace(uri, "one", name.encode())
        objects.replace(uri, "below/two", b"2")
    assert objects._connected.cache_info().misses == before[0] + 1
    assert [objects.read_whole(uri, "one").decode() for uri in uris.values()] == list(names)
    assert [list(objects.newest_below(uri, "below")) for uri in uris.values()] == [["two"]] * len(uris)
    for uri in (uris["plain"], place / "silver/plain/below", place):
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
    assert not objects.any_below(place / "silver")
