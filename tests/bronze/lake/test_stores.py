"""Schemes and options of object stores, and which of them a location gets."""

from __future__ import annotations

import pytest

from bronze.lake.stores import (
    SCHEMES,
    all_options,
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
    own = {"s": "aws_region", "a": "azure_storage_account_name", "g": "google_service_account"}[scheme[0]]
    refuse_wrong(f"{scheme}://bucket/lake", [own, "fs.any.thing"])
    refuse_wrong(f"{scheme}://bucket/lake", [])
    with pytest.raises(ValueError, match="unknown option 'x'"):
        refuse_wrong(f"{scheme}://bucket/lake", [own, "x"])


def test_a_local_path_takes_no_options_not_even_those_of_spark() -> None:
    refuse_wrong("/data/lake", [])
    for name in ("aws_region", "fs.s3a.threads.max"):
        with pytest.raises(ValueError, match="this lake is a local folder"):
            refuse_wrong("/data/lake", [name])


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
