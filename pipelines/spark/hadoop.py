"""Translate the options of a lake's object store (`bronze.lake.stores`) into Hadoop's settings for Spark.

Without an option, S3A uses its own default: S3A's chain of credentials reads the environment variables that
`deltalake` reads, and so does the SDK for region and endpoint. This module sets only values for which Spark
would differ from `deltalake`, or be unsafe. ``fs.s3a.create.performance`` is never set: with this setting,
S3A no longer checks whether a file exists.

https://hadoop.apache.org/docs/r3.4.2/hadoop-aws/tools/hadoop-aws/index.html (S3A);
https://hadoop.apache.org/docs/r3.4.2/hadoop-azure/abfs.html.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lake.place import place_of
from deltasmelt.bronze.lake.stores import AZURE, GOOGLE, S3, azure_host, is_true

if TYPE_CHECKING:
    from collections.abc import Mapping

LOG_STORE: Final = "deltasmelt.ConditionalS3LogStore"
_PREFIX: Final = "spark.hadoop."
_S3A_NAMES: Final = {
    "aws_access_key_id": "fs.s3a.access.key",
    "aws_secret_access_key": "fs.s3a.secret.key",
    "aws_session_token": "fs.s3a.session.token",
    "aws_region": "fs.s3a.endpoint.region",
    "aws_endpoint_url": "fs.s3a.endpoint",
}
_PROVIDERS: Final = "org.apache.hadoop.fs.s3a."
_WITH_WEB_IDENTITY: Final = (
    f"{_PROVIDERS}TemporaryAWSCredentialsProvider",
    f"{_PROVIDERS}SimpleAWSCredentialsProvider",
    "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider",
    "software.amazon.awssdk.auth.credentials.WebIdentityTokenFileCredentialsProvider",
    f"{_PROVIDERS}auth.IAMInstanceCredentialsProvider",
)
"""S3A's own credential chain, with the web identity of a Kubernetes pod added."""
REDACTED: Final = r"(?i)secret|password|token|access[.]?key|credential|[.]key([.]|$)"
"""Spark's own pattern of settings to hide, extended by the keys of Azure's accounts."""
_OAUTH: Final = "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"


def hadoop_settings(location: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return Spark's settings for a lake at this location; none for a local lake.

    `environment` may name the endpoint and allow plain HTTP; `deltalake` reads the same variables.
    """
    place = place_of(location)
    scheme, options = place.scheme, place.options
    if scheme is None:
        return {}
    own = {name: value for name, value in options.items() if name.startswith("fs.")}
    made: dict[str, str] = {}
    if scheme in S3:
        made = _s3(options, environment)
    elif scheme in AZURE:
        made = _azure(location, options, environment)
    elif scheme in GOOGLE:
        made = _google(options)
    settings = {f"{_PREFIX}{name}": value for name, value in (made | own).items()}
    settings["spark.redaction.regex"] = REDACTED
    # Delta would write a commit's checksum file under a temporary name and rename it: ten of forty requests,
    # five of the expensive kind. By the protocol, readers do not need the file, and delta-rs writes none.
    # Only for local lakes, `silver.spark.small_reads` reads the file.
    settings["spark.databricks.delta.writeChecksumFile.enabled"] = "false"
    if scheme in S3:
        # Deltasmelt's log store writes conditionally (``logstore/ConditionalS3LogStore.java``).
        settings |= {f"spark.delta.logStore.{one}.impl": LOG_STORE for one in sorted(S3)}
    return settings


def _s3(options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    said = {name: options[name] for name in _S3A_NAMES if name in options}
    given = (environment.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"))
    endpoint = said.get("aws_endpoint_url") or next(filter(None, given), None)
    made = {_S3A_NAMES[name]: value for name, value in said.items()}
    # Only EMR has a separate file system for ``s3://``.
    made["fs.s3.impl"] = "org.apache.hadoop.fs.s3a.S3AFileSystem"
    if endpoint is not None:
        hosted = is_true(_option("aws_virtual_hosted_style_request", options, environment))
        made["fs.s3a.endpoint"] = endpoint
        # Nearly all servers but Amazon's need the bucket in the path.
        made["fs.s3a.path.style.access"] = str(not hosted).lower()
        made["fs.s3a.connection.ssl.enabled"] = str(not endpoint.startswith("http://")).lower()
    if is_true(_option("aws_skip_signature", options, environment)):
        made["fs.s3a.aws.credentials.provider"] = f"{_PROVIDERS}AnonymousAWSCredentialsProvider"
    elif "aws_session_token" in said:
        made["fs.s3a.aws.credentials.provider"] = f"{_PROVIDERS}TemporaryAWSCredentialsProvider"
    elif "aws_access_key_id" in said:
        made["fs.s3a.aws.credentials.provider"] = f"{_PROVIDERS}SimpleAWSCredentialsProvider"
    # A web identity (a pod's role) is in no credential chain of S3A.
    elif environment.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        made["fs.s3a.aws.credentials.provider"] = ",".join(_WITH_WEB_IDENTITY)
    return made


def _option(name: str, options: Mapping[str, str], environment: Mapping[str, str]) -> str | None:
    """Return an option, or the environment variable that `deltalake` reads instead."""
    return options.get(name) or environment.get(name.upper())


def _azure(location: str, options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return settings for ``abfss://container@account.dfs.core.windows.net/…``; names include the host."""

    # ABFS reads no environment variable, so this function passes on the variables of `deltalake`.
    def option(name: str) -> str | None:
        return _option(f"azure_storage_{name}", options, environment) or environment.get(
            f"AZURE_{name.upper()}"
        )

    host = azure_host(location)
    if host is None:
        return {}
    if (key := option("account_key")) is not None:
        return {f"fs.azure.account.auth.type.{host}": "SharedKey", f"fs.azure.account.key.{host}": key}
    if (token := option("sas_token")) is not None:
        return {
            f"fs.azure.account.auth.type.{host}": "SAS",
            f"fs.azure.sas.fixed.token.{host}": token.removeprefix("?"),
        }
    client, secret, tenant = (option(name) for name in ("client_id", "client_secret", "tenant_id"))
    if client is None or secret is None or tenant is None:
        return {}
    return {
        f"fs.azure.account.auth.type.{host}": "OAuth",
        f"fs.azure.account.oauth.provider.type.{host}": _OAUTH,
        f"fs.azure.account.oauth2.client.id.{host}": client,
        f"fs.azure.account.oauth2.client.secret.{host}": secret,
        f"fs.azure.account.oauth2.client.endpoint.{host}": (
            f"https://login.microsoftonline.com/{tenant}/oauth2/token"
        ),
    }


def _google(options: Mapping[str, str]) -> dict[str, str]:
    file = options.get("google_service_account")
    if file is None:
        return {}
    return {
        "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
        "fs.gs.auth.service.account.json.keyfile": file,
    }
