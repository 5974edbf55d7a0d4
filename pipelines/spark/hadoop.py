"""What Spark is told of a lake's object store: Hadoop's names for the options of `bronze.lake.stores`.

What no option says, S3A takes from where it always does: its chain of credentials reads the same environment
variables as `deltalake`, and so does the SDK for the region and the endpoint. What differs is said here.

Without a setting here, these would differ from what `deltalake` does, or be unsafe:

* ``s3://`` is S3A, too; EMR alone has a file system of its own for it;
* an endpoint that is named takes the bucket in the path, as nearly all servers but Amazon's want it;
* a web identity (a pod's role) is in no chain of S3A's, and ABFS reads no environment at all;
* commits go through our log store, which puts on condition (``logstore/ConditionalS3LogStore.java``);
* a commit has no checksum file (``writeChecksumFile``). Delta makes one under another name and renames it,
  which is ten requests of forty, five of them of the dear kind. Readers can do without it, as the protocol
  says, and delta-rs writes none; `silver.spark.small_reads`, which reads it, is for local lakes.

``fs.s3a.create.performance`` is never set: with it S3A no longer looks whether a file is there.

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
"""S3A's own chain, and in it what a pod of Kubernetes is given."""
REDACTED: Final = r"(?i)secret|password|token|access[.]?key|credential|[.]key([.]|$)"
"""Spark's own pattern of settings that it shows nowhere, and the keys of Azure's accounts."""
_OAUTH: Final = "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"


def hadoop_settings(location: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Spark's settings for a lake at this location; none for a local one.

    Args:
        location: of the lake.
        environment: where the endpoint and whether it is plain HTTP may be said, as `deltalake` reads it.
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
    settings["spark.databricks.delta.writeChecksumFile.enabled"] = "false"
    if scheme in S3:
        settings |= {f"spark.delta.logStore.{one}.impl": LOG_STORE for one in sorted(S3)}
    return settings


def _s3(options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    said = {name: options[name] for name in _S3A_NAMES if name in options}
    given = (environment.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"))
    endpoint = said.get("aws_endpoint_url") or next(filter(None, given), None)
    made = {_S3A_NAMES[name]: value for name, value in said.items()}
    made["fs.s3.impl"] = "org.apache.hadoop.fs.s3a.S3AFileSystem"
    if endpoint is not None:
        hosted = is_true(_said("aws_virtual_hosted_style_request", options, environment))
        made["fs.s3a.endpoint"] = endpoint
        made["fs.s3a.path.style.access"] = str(not hosted).lower()
        made["fs.s3a.connection.ssl.enabled"] = str(not endpoint.startswith("http://")).lower()
    if is_true(_said("aws_skip_signature", options, environment)):
        made["fs.s3a.aws.credentials.provider"] = f"{_PROVIDERS}AnonymousAWSCredentialsProvider"
    elif "aws_session_token" in said:
        made["fs.s3a.aws.credentials.provider"] = f"{_PROVIDERS}TemporaryAWSCredentialsProvider"
    elif "aws_access_key_id" in said:
        made["fs.s3a.aws.credentials.provider"] = f"{_PROVIDERS}SimpleAWSCredentialsProvider"
    elif environment.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        made["fs.s3a.aws.credentials.provider"] = ",".join(_WITH_WEB_IDENTITY)
    return made


def _said(name: str, options: Mapping[str, str], environment: Mapping[str, str]) -> str | None:
    """An option, or the environment variable that `deltalake` reads in its place."""
    return options.get(name) or environment.get(name.upper())


def _azure(location: str, options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Of ``abfss://container@account.dfs.core.windows.net/…``: keys bear the account's host.

    ABFS reads no environment variable, so those that `deltalake` does are handed on.
    """

    def said(name: str) -> str | None:
        return _said(f"azure_storage_{name}", options, environment) or environment.get(
            f"AZURE_{name.upper()}"
        )

    host = azure_host(location)
    if host is None:
        return {}
    if (key := said("account_key")) is not None:
        return {f"fs.azure.account.auth.type.{host}": "SharedKey", f"fs.azure.account.key.{host}": key}
    if (token := said("sas_token")) is not None:
        return {
            f"fs.azure.account.auth.type.{host}": "SAS",
            f"fs.azure.sas.fixed.token.{host}": token.removeprefix("?"),
        }
    client, secret, tenant = (said(name) for name in ("client_id", "client_secret", "tenant_id"))
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
