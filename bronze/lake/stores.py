"""Object stores: the URL schemes that a lake may have, and the options of each scheme.

The option values belong to the lake's place (`bronze.lake.place.Store`). `pipelines.spark.hadoop` translates
the options for Spark.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.config.suggestions import suggestion
from deltasmelt.bronze.lake.place import HADOOP, is_named, scheme_of

if TYPE_CHECKING:
    from collections.abc import Mapping

S3: Final = frozenset({"s3", "s3a"})
AZURE: Final = frozenset({"abfss", "abfs"})
GOOGLE: Final = frozenset({"gs"})
SCHEMES: Final = S3 | AZURE | GOOGLE

# Options that both `deltalake` and Spark support, by scheme.
_KEYS: Final = {
    S3: (
        "aws_access_key_id", "aws_secret_access_key", "aws_session_token", "aws_region", "aws_endpoint_url",
        "aws_allow_http", "aws_virtual_hosted_style_request", "aws_skip_signature",
    ),
    AZURE: (
        "azure_storage_account_name", "azure_storage_account_key", "azure_storage_sas_token",
        "azure_storage_client_id", "azure_storage_client_secret", "azure_storage_tenant_id",
        "azure_storage_endpoint", "azure_allow_http",
    ),
    GOOGLE: ("google_service_account", "google_service_account_key"),
}  # fmt: skip

_BOOLEANS: Final = frozenset(
    {"aws_allow_http", "aws_virtual_hosted_style_request", "aws_skip_signature", "azure_allow_http"}
)
_TRUE: Final = frozenset({"1", "true", "on", "yes"})
_FALSE: Final = frozenset({"0", "false", "off", "no"})
_ENDPOINTS: Final = ("aws_endpoint_url", "azure_storage_endpoint")
# Settings with which S3A no longer checks whether a file exists.
_UNSAFE: Final = re.compile(r"fs\.s3a\.(?:bucket\.[^.]+\.)?(?:create\.performance|performance\.flags)")
_MEANT: Final = re.compile(rf"(?:{'|'.join(SCHEMES)}):(?!//[^/])", re.IGNORECASE)
_AZURE_PLACE: Final = re.compile(r"[a-z]+://[^@/]+@([^/]+)", re.IGNORECASE)


def refuse_wrong(location: str, options: Mapping[str, str]) -> None:
    """Check a lake's location, and that the lake's store knows every option.

    Raises:
        ValueError: not both `deltalake` and Spark reach a store of this scheme, or an option is unknown or
            has a wrong value.
    """
    if is_named(location):
        if options:
            raise ValueError(
                "options are for object stores; this lake is in a catalog, and Spark's own settings, or the "
                "catalog, give access to the store"
            )
        return
    scheme = scheme_of(location)
    names = [name for name in options if not name.startswith(HADOOP)]
    if scheme is None:
        if options:
            raise ValueError("options are for object stores; this lake is a local folder")
        return
    if scheme not in SCHEMES:
        raise ValueError(
            f"a lake cannot be in {scheme}://; supported are "
            f"{', '.join(f'{one}://' for one in sorted(SCHEMES))} and local folders"
        )
    known = next(keys for schemes, keys in _KEYS.items() if scheme in schemes)
    for name in names:
        if name not in known:
            raise ValueError(f"unknown option {name!r} of {scheme}://{suggestion(name, known)}")
    if scheme in AZURE and azure_host(location) is None:
        raise ValueError(
            f"{scheme}:// needs container and account: {scheme}://container@account.dfs.core.windows.net/…"
        )
    _refuse_wrong_values(options)


def _refuse_wrong_values(options: Mapping[str, str]) -> None:
    for name, value in options.items():
        if name in _BOOLEANS and value.lower() not in _TRUE | _FALSE:
            raise ValueError(f"option {name!r} must be true or false")
        if name in _ENDPOINTS and re.match(r"https?://[^/]", value) is None:
            raise ValueError(f"option {name!r} must begin with http:// or https://, and name a host")
        if name == "google_service_account" and value.lstrip().startswith("{"):
            raise ValueError(
                "option 'google_service_account' is a file; for the content of the file use "
                "google_service_account_key"
            )
        if _UNSAFE.fullmatch(name) and ("create" in value or is_true(value)):
            raise ValueError(f"option {name!r} would allow Spark to overwrite commits of other writers")


def is_true(said: str | None) -> bool:
    """Check whether the value of an option or environment variable means yes."""
    return said is not None and said.lower() in _TRUE


def azure_host(location: str) -> str | None:
    """Return the host in ``abfss://container@account.dfs.core.windows.net/…``; None without a host."""
    found = _AZURE_PLACE.match(location)
    return None if found is None else found[1]


def is_meant_for_store(path: str) -> bool:
    """Check whether a path resembles a store's URL without being valid: ``s3:/bucket``."""
    return _MEANT.match(path) is not None
