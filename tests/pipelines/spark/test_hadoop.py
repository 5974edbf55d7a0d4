"""Spark's settings for each store, by Hadoop's names."""

from __future__ import annotations

import re

import pytest

from deltasmelt.bronze.lake.place import in_store
from deltasmelt.pipelines.spark.hadoop import LOG_STORE, hadoop_settings

FS = "spark.hadoop.fs."
ALWAYS = {
    "spark.redaction.regex", "spark.delta.logStore.s3.impl", "spark.delta.logStore.s3a.impl",
    "spark.databricks.delta.writeChecksumFile.enabled",
}  # fmt: skip
ACCOUNT = "account.dfs.core.windows.net"
LOG_STORES = {f"spark.delta.logStore.{scheme}.impl": LOG_STORE for scheme in ("s3", "s3a")}


def settings_of(
    location: str, options: dict[str, str], environment: dict[str, str] | None = None
) -> dict[str, str]:
    """Return Hadoop's settings of a location, without the common prefix."""
    settings = hadoop_settings(in_store(location, options), environment or {})
    return {name.removeprefix(FS): value for name, value in settings.items() if name not in ALWAYS}


def test_a_local_lake_tells_nothing() -> None:
    assert hadoop_settings("/data/lake", {"AWS_ENDPOINT_URL": "http://x"}) == {}


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_s3_without_options_uses_platform_credentials(
    scheme: str,
) -> None:
    """Spark still commits through the log store of deltasmelt."""
    location = f"{scheme}://plain/lake"
    assert settings_of(location, {}) == {"s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}
    assert {name: hadoop_settings(location, {})[name] for name in LOG_STORES} == LOG_STORES


def test_keys_of_s3() -> None:
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_region": "eu"}
    settings = settings_of("s3://keys/lake", keys)
    assert (settings["s3a.access.key"], settings["s3a.secret.key"]) == ("a", "b")
    assert settings["s3a.endpoint.region"] == "eu"
    assert settings["s3a.aws.credentials.provider"].endswith(".SimpleAWSCredentialsProvider")
    settings = settings_of("s3://keys/lake", {**keys, "aws_session_token": "c"})
    assert settings["s3a.session.token"] == "c"
    assert settings["s3a.aws.credentials.provider"].endswith(".TemporaryAWSCredentialsProvider")
    settings = settings_of("s3://keys/lake", {"aws_skip_signature": "true"})
    assert settings["s3a.aws.credentials.provider"].endswith(".AnonymousAWSCredentialsProvider")


def test_endpoint_uses_path_style_unless_configured() -> None:
    settings = settings_of("s3://endpoint/lake", {"aws_endpoint_url": "http://127.0.0.1:9000"})
    assert settings["s3a.endpoint"] == "http://127.0.0.1:9000"
    assert (settings["s3a.path.style.access"], settings["s3a.connection.ssl.enabled"]) == ("true", "false")
    hosted = {"aws_endpoint_url": "https://s3.example", "aws_virtual_hosted_style_request": "true"}
    settings = settings_of("s3://endpoint/lake", hosted)
    assert (settings["s3a.path.style.access"], settings["s3a.connection.ssl.enabled"]) == ("false", "true")


def test_environment_endpoint_counts_without_option() -> None:
    environment = {"AWS_ENDPOINT_URL": "http://of.the.environment"}
    assert settings_of("s3://env/lake", {}, environment)["s3a.endpoint"] == "http://of.the.environment"
    settings = settings_of("s3://env/lake", {"aws_endpoint_url": "http://of.the.file"}, environment)
    assert settings["s3a.endpoint"] == "http://of.the.file"


def test_a_key_account_token_or_client_of_azure() -> None:
    location = f"abfss://lake@{ACCOUNT}/shop"
    assert settings_of(location, {}) == {}
    assert settings_of(location, {"azure_storage_account_key": "k"}) == {
        f"azure.account.auth.type.{ACCOUNT}": "SharedKey",
        f"azure.account.key.{ACCOUNT}": "k",
    }
    assert settings_of(location, {"azure_storage_sas_token": "?sv=1&sig=2"}) == {
        f"azure.account.auth.type.{ACCOUNT}": "SAS",
        f"azure.sas.fixed.token.{ACCOUNT}": "sv=1&sig=2",
    }
    client = {f"azure_storage_{name}": name for name in ("client_id", "client_secret", "tenant_id")}
    settings = settings_of(location, client)
    assert settings[f"azure.account.auth.type.{ACCOUNT}"] == "OAuth"
    assert settings[f"azure.account.oauth2.client.id.{ACCOUNT}"] == "client_id"
    assert settings[f"azure.account.oauth2.client.secret.{ACCOUNT}"] == "client_secret"
    assert "/tenant_id/" in settings[f"azure.account.oauth2.client.endpoint.{ACCOUNT}"]


def test_azure_environment_settings_are_forwarded() -> None:
    location = f"abfss://lake@{ACCOUNT}/shop"
    environment = {"AZURE_STORAGE_CLIENT_ID": "a", "AZURE_CLIENT_SECRET": "b", "AZURE_TENANT_ID": "c"}
    settings = settings_of(location, {}, environment)
    assert settings[f"azure.account.auth.type.{ACCOUNT}"] == "OAuth"
    assert (
        settings_of(location, {"azure_storage_account_key": "k"}, environment)[f"azure.account.key.{ACCOUNT}"]
        == "k"
    )


def test_web_identity_is_used_without_explicit_key() -> None:
    pod = {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token", "AWS_ROLE_ARN": "x"}
    assert "WebIdentityTokenFile" in settings_of("s3://pod/lake", {}, pod)["s3a.aws.credentials.provider"]
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    assert "WebIdentity" not in settings_of("s3://pod/lake", keys, pod)["s3a.aws.credentials.provider"]


def test_spark_shows_no_key_of_an_account() -> None:
    redaction = re.compile(hadoop_settings("s3://redacted/lake", {})["spark.redaction.regex"])
    for name in ("fs.azure.account.key.a.dfs.core.windows.net", "fs.s3a.secret.key", "fs.s3a.access.key"):
        assert redaction.search(name), name
    assert not redaction.search("spark.sql.shuffle.partitions")


def test_a_file_of_google() -> None:
    assert settings_of("gs://bucket/lake", {}) == {}
    assert settings_of("gs://bucket/lake", {"google_service_account": "/key.json"}) == {
        "gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
        "gs.auth.service.account.json.keyfile": "/key.json",
    }


def test_hadoops_own_keys_win() -> None:
    options = {"aws_endpoint_url": "http://a", "fs.s3a.endpoint": "http://b", "fs.s3a.threads.max": "9"}
    settings = settings_of("s3://own/lake", options)
    assert (settings["s3a.endpoint"], settings["s3a.threads.max"]) == ("http://b", "9")
    assert settings["s3a.path.style.access"] == "true"
