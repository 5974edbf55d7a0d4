"""Addresses of Spark Connect servers: an invalid address is reported in advance, without its token."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.connect.client import DefaultChannelBuilder

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.pipelines.spark.remote import address_of, host_of, problem_of, remote_session
from deltasmelt.pipelines.terminal.failures import without_secrets

SECRET = "eyJhbGciOi"
TAKEN = {
    "sc://spark.example.org": "spark.example.org",
    "sc://spark.example.org:15002": "spark.example.org:15002",
    "sc://spark.example.org:15002/": "spark.example.org:15002",
    "sc://h/;": "h",
    "sc://[::1]:15002/;use_ssl=true": "[::1]:15002",
    f"sc://h:443/;use_ssl=true;token={SECRET}%3D%3D;x-databricks-cluster-id=1": "h:443",
    "sc://h/;user_agent=": "h",
}
REFUSED_BY_THE_CLIENT = [
    f"sc://h/;use_ssl=true;token={SECRET}==",
    f"sc://h/;token={SECRET}/x",
    f"sc://h/{SECRET}",
    f"sc://h/;{SECRET}",
    f"sc://h/;token={SECRET};",
    f"sc://h:{SECRET}/",
    f"sc://h:99999/;token={SECRET}",
    f"sc://[::1/;token={SECRET}",
    f"sc:///;token={SECRET}",
    f"https://h/;token={SECRET}",
]
MISREAD_BY_THE_CLIENT = [
    f"sc://user:{SECRET}@h:1/",
    f"sc://h;token={SECRET}",
    f"sc://h/;token={SECRET}#x",
    f"sc://h/;token={SECRET}?x",
    f"sc://h/;token={SECRET}\n",
]


@pytest.mark.parametrize(("address", "host"), TAKEN.items())
def test_what_is_taken_the_client_takes_too(address: str, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", address)
    assert address_of({}) == address
    assert host_of(address) == host
    assert DefaultChannelBuilder(address).host in host


@pytest.mark.parametrize("address", REFUSED_BY_THE_CLIENT + MISREAD_BY_THE_CLIENT)
def test_invalid_address_is_reported_without_contents(address: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        address_of({"spark.remote": address})
    assert (caught.value.code, caught.value.where) == ("spark-remote", "spark.remote")
    assert SECRET not in str(caught.value)
    assert SECRET not in host_of(address)


@pytest.mark.parametrize("address", REFUSED_BY_THE_CLIENT)
def test_what_the_client_refuses_is_refused_here(address: str) -> None:
    assert problem_of(address) is not None
    with pytest.raises((PySparkException, ValueError)) as caught:
        DefaultChannelBuilder(address)
    message = str(caught.value)
    assert "token=" not in message or SECRET not in without_secrets(message)


def test_error_detected_by_client_only_names_condition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # the client sets it, and this puts it back
    monkeypatch.setenv("SPARK_REMOTE", f"sc://127.0.0.1:1/;session_id={SECRET}")
    with pytest.raises(ConfigurationError, match=r"\([A-Z_]+\)") as caught:
        remote_session({})
    assert caught.value.code == "spark-remote"
    assert SECRET not in str(caught.value)


def test_message_names_parameter_number_and_encoding() -> None:
    problem = problem_of("sc://h/;use_ssl=true;token=a==")
    assert problem is not None
    assert "parameter 2" in problem
    assert "%3D" in problem
