"""What Spark is told of a lake's object store: Hadoop's names for the options of `bronze.lake.stores`.

What no option says, S3A and ABFS take from where they always do. S3A's chain of credentials reads the same
environment variables as `deltalake`, and so does the SDK for the region and the endpoint.

Without a setting here, three things would differ from what `deltalake` does, or be unsafe:

* ``s3://`` is S3A, too; EMR alone has a file system of its own for it;
* an endpoint that is named takes the bucket in the path, as nearly all servers but Amazon's want it;
* commits go through our log store, which puts on condition (``logstore/ConditionalS3LogStore.java``).

``fs.s3a.create.performance`` is never set: with it S3A no longer looks whether a file is there.

https://hadoop.apache.org/docs/r3.4.2/hadoop-aws/tools/hadoop-aws/index.html (S3A);
https://hadoop.apache.org/docs/r3.4.2/hadoop-azure/abfs.html.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from bronze.lake.stores import AZURE, GOOGLE, S3, all_options, scheme_of

if TYPE_CHECKING:
    from collections.abc import Mapping

LOG_STORE: Final = "deltasmelt.ConditionalS3LogStore"
_PREFIX: Final = "spark.hadoop."
_TRUE: Final = frozenset({"1", "true", "on", "yes"})
_S3A_NAMES: Final = {
    "aws_access_key_id": "fs.s3a.access.key",
    "aws_secret_access_key": "fs.s3a.secret.key",
    "aws_session_token": "fs.s3a.session.token",
    "aws_region": "fs.s3a.endpoint.region",
    "aws_endpoint_url": "fs.s3a.endpoint",
}
_PROVIDERS: Final = "org.apache.hadoop.fs.s3a."
_OAUTH: Final = "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
_ACCOUNT: Final = re.compile(r"[a-z]+://[^@/]+@([^/]+)")


def hadoop_settings(location: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Spark's settings for a lake at this location; none for a local one.

    Args:
        location: of the lake.
        environment: where the endpoint and whether it is plain HTTP may be said, as `deltalake` reads it.
    """
    scheme, options = scheme_of(location), all_options(location)
    if scheme is None:
        return {}
    own = {name: value for name, value in options.items() if name.startswith("fs.")}
    made: dict[str, str] = {}
    if scheme in S3:
        made = _s3(options, environment)
    elif scheme in AZURE:
        made = _azure(location, options)
    elif scheme in GOOGLE:
        made = _google(options)
    settings = {f"{_PREFIX}{name}": value for name, value in (made | own).items()}
    if scheme in S3:
        settings |= {f"spark.delta.logStore.{one}.impl": LOG_STORE for one in sorted(S3)}
    return settings


def _s3(options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    said = {name: options[name] for name in _S3A_NAMES if name in options}
    endpoint = said.get("aws_endpoint_url") or environment.get("AWS_ENDPOINT_URL")
    made = {_S3A_NAMES[name]: value for name, value in said.items()}
    made["fs.s3.impl"] = "org.apache.hadoop.fs.s3a.S3AFileSystem"
    if endpoint is not None:
        hosted = _is_true(options.get("aws_virtual_hosted_style_request"))
        made["fs.s3a.endpoint"] = endpoint
        made["fs.s3a.path.style.access"] = str(not hosted).lower()
        made["fs.s3a.connection.ssl.enabled"] = str(not endpoint.startswith("http://")).lower()
    if _is_true(options.get("aws_skip_signature")):
        made["fs.s3a.aws.credentials.provider"] = f"{_PROVIDERS}AnonymousAWSCredentialsProvider"
    elif "aws_session_token" in said:
        made["fs.s3a.aws.credentials.provider"] = f"{_PROVIDERS}TemporaryAWSCredentialsProvider"
    elif "aws_access_key_id" in said:
        made["fs.s3a.aws.credentials.provider"] = f"{_PROVIDERS}SimpleAWSCredentialsProvider"
    return made


def _azure(location: str, options: Mapping[str, str]) -> dict[str, str]:
    """Of ``abfss://container@account.dfs.core.windows.net/…``: keys bear the account's host."""
    found = _ACCOUNT.match(location)
    name = options.get("azure_storage_account_name")
    host = found[1] if found else f"{name}.dfs.core.windows.net"
    if (key := options.get("azure_storage_account_key")) is not None:
        return {f"fs.azure.account.auth.type.{host}": "SharedKey", f"fs.azure.account.key.{host}": key}
    if (token := options.get("azure_storage_sas_token")) is not None:
        return {
            f"fs.azure.account.auth.type.{host}": "SAS",
            f"fs.azure.sas.fixed.token.{host}": token.removeprefix("?"),
        }
    client, secret, tenant = (
        options.get(f"azure_storage_{name}") for name in ("client_id", "client_secret", "tenant_id")
    )
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


def _is_true(said: str | None) -> bool:
    return said is not None and said.lower() in _TRUE
