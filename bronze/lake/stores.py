"""Object stores: which schemes a lake's URL may have, and what they are told to let us in.

Options bear the names that the Rust crate `object_store` gives them, in small letters
(``aws_access_key_id``), for `deltalake` reads them as they are. `pipelines.spark.hadoop` says the same to
Spark. What no option says comes from the environment (``AWS_ACCESS_KEY_ID``), from a file, or from the
platform: a role of the machine, a workload identity.

**Options belong to a place.** Most of bronze knows a table by its location alone. So what a pipeline file
says of its lake is registered once with the lake's location, as a keyring keeps keys by their doors, and
asked for wherever a table below it is opened. Two pipelines of one process do not see each other's.

object_store: https://docs.rs/object_store (AmazonS3ConfigKey, AzureConfigKey, GoogleConfigKey).
"""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from deltasmelt.bronze.config.suggestions import suggestion
from deltasmelt.bronze.config.timing import LEASE_SECONDS
from deltasmelt.bronze.lake.location import local_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

S3: Final = frozenset({"s3", "s3a"})
AZURE: Final = frozenset({"abfss", "abfs"})
GOOGLE: Final = frozenset({"gs"})
SCHEMES: Final = S3 | AZURE | GOOGLE

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
"""Options that both sides understand, by the schemes they are of."""

_HADOOP: Final = "fs."
"""Begins the names of options for Spark alone, which are Hadoop's own."""
_PLAIN: Final = re.compile(
    r"(?:.*_)?(?:region|endpoint|endpoint_url|allow_http|style_request|skip_signature)"
)
"""Names of options whose values may be said; those of all others nothing says."""
_BOOLEANS: Final = frozenset(
    {"aws_allow_http", "aws_virtual_hosted_style_request", "aws_skip_signature", "azure_allow_http"}
)
_TRUE: Final = frozenset({"1", "true", "on", "yes"})
_FALSE: Final = frozenset({"0", "false", "off", "no"})
_ENDPOINTS: Final = ("aws_endpoint_url", "azure_storage_endpoint")
_UNSAFE: Final = re.compile(r"fs\.s3a\.(?:bucket\.[^.]+\.)?(?:create\.performance|performance\.flags)")
"""Settings with which S3A no longer looks whether a file is there."""
_NUMBERS: Final = re.compile(r"\[\s*(?:\d{1,3},\s*){7,}\d{1,3}\s*\]")
"""Bytes that a library says one by one: of a key that it could not read, for instance."""
_MEANT: Final = re.compile(rf"(?:{'|'.join(SCHEMES)}):(?!//[^/])", re.IGNORECASE)
_AZURE_PLACE: Final = re.compile(r"[a-z]+://[^@/]+@([^/]+)", re.IGNORECASE)
_SHORTEST: Final = 6
"""Letters of a value from which it is blanked out; a shorter one would blank out words of any text."""
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True, slots=True)
class _Place:
    """What was registered of a location; `keys`: its values, in each form in which a text may have them."""

    location: str
    options: dict[str, str]
    lease: float
    keys: frozenset[str]


_REGISTERED: dict[str, _Place] = {}
_LOCK: Final = threading.Lock()


def scheme_of(location: str) -> str | None:
    """The scheme of an object store's URL, in small letters; None of a local path."""
    if local_folder(location) is not None:
        return None
    found = _SCHEME.match(location)
    return None if found is None else found[1].lower()


def refuse_wrong(location: str, options: Mapping[str, str]) -> None:
    """Whether a lake may lie there, and is told what its store understands.

    Raises:
        ValueError: the scheme is of no store that both sides reach, or an option is not one of its.
    """
    scheme = scheme_of(location)
    names = [name for name in options if not name.startswith(_HADOOP)]
    if scheme is None:
        if options:
            raise ValueError("options are for object stores; this lake is a local folder")
        return
    if scheme not in SCHEMES:
        raise ValueError(
            f"{scheme}:// is no store that a lake can lie in; "
            f"known are {', '.join(f'{one}://' for one in sorted(SCHEMES))} and local folders"
        )
    known = next(keys for schemes, keys in _KEYS.items() if scheme in schemes)
    for name in names:
        if name not in known:
            raise ValueError(f"unknown option {name!r} of {scheme}://{suggestion(name, known)}")
    if scheme in AZURE and azure_host(location) is None:
        raise ValueError(
            f"{scheme}:// names container and account: {scheme}://container@account.dfs.core.windows.net/…"
        )
    _refuse_wrong_values(options)


def _refuse_wrong_values(options: Mapping[str, str]) -> None:
    for name, value in options.items():
        if name in _BOOLEANS and value.lower() not in _TRUE | _FALSE:
            raise ValueError(f"option {name!r} is true or false")
        if name in _ENDPOINTS and re.match(r"https?://[^/]", value) is None:
            raise ValueError(f"option {name!r} begins with http:// or https://, and names a host")
        if name == "google_service_account" and value.lstrip().startswith("{"):
            raise ValueError(
                "option 'google_service_account' is a file; what is in one is google_service_account_key"
            )
        if _UNSAFE.fullmatch(name) and ("create" in value or is_true(value)):
            raise ValueError(f"option {name!r} has Spark overwrite commits of others")


def is_true(said: str | None) -> bool:
    """Whether an option, or the environment in its place, says yes."""
    return said is not None and said.lower() in _TRUE


def azure_host(location: str) -> str | None:
    """The account's host in ``abfss://container@account.dfs.core.windows.net/…``; None where none is."""
    found = _AZURE_PLACE.match(location)
    return None if found is None else found[1]


def is_meant_for_store(path: str) -> bool:
    """Whether a path begins as a store's URL does, and is none: ``s3:/bucket``."""
    return _MEANT.match(path) is not None


def register(location: str, options: Mapping[str, str], *, lease: float = LEASE_SECONDS) -> None:
    """From now on tables below a location are opened with these options.

    Args:
        location: of a lake.
        options: of its store.
        lease: seconds for which a lease of it holds.
    """
    said = dict(options)
    if said.get("aws_endpoint_url", "").startswith("http://"):
        said.setdefault("aws_allow_http", "true")  # who writes http means it
    with _LOCK:
        _REGISTERED[_plain(location)] = _Place(location.rstrip("/"), said, lease, _keys(said))


def all_options(location: str) -> dict[str, str]:
    """What was registered for a location or the nearest place above it; nothing for a local one."""
    place = _place(location)
    return {} if place is None else dict(place.options)


def lease_of(location: str, default: float = LEASE_SECONDS) -> float:
    """Seconds for which a lease of a lake at this location holds."""
    place = _place(location)
    return default if place is None else place.lease


def root_of(location: str) -> tuple[str, str]:
    """Return the registered place at or nearest above a location, and the path from there to the location.

    All tables of a lake are reached from its root by one client, which keeps its connections.
    """
    place = _place(location)
    if place is None:
        return location, ""
    return place.location, _plain(location)[len(_plain(place.location)) :].lstrip("/")


def _place(location: str) -> _Place | None:
    if scheme_of(location) is None:
        return None
    place = _plain(location)
    with _LOCK:
        above = [root for root in _REGISTERED if f"{place}/".startswith(f"{root}/")]
        return _REGISTERED[max(above, key=len)] if above else None


def _plain(location: str) -> str:
    """A location as it was written: `deltalake` says a table's with a small scheme, and percent-encoded."""
    scheme, _, rest = location.rstrip("/").partition("://")
    return f"{scheme.lower()}://{unquote(rest)}"


def options_of(location: str) -> dict[str, str] | None:
    """What `deltalake` and `obstore` are told of a location; None where there is nothing to tell."""
    found = {name: value for name, value in all_options(location).items() if not name.startswith(_HADOOP)}
    return found or None


def without_keys(text: str) -> str:
    """A text without the keys that were registered for any location, whoever wrote it."""
    with _LOCK:
        values = frozenset().union(*(place.keys for place in _REGISTERED.values()))
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, "***")
    return _NUMBERS.sub("[…]", text)


def _keys(options: Mapping[str, str]) -> frozenset[str]:
    """What nothing may say of a place's options."""
    secret = (value for name, value in options.items() if _PLAIN.fullmatch(name) is None)
    return frozenset(form for value in secret for form in _forms(value) if len(form) >= _SHORTEST)


def _forms(value: str) -> list[str]:
    """A value as it may be written: as it is, decoded, and each text of a JSON object."""
    forms = [value, unquote(value)]
    try:
        inside = json.loads(value)
    except ValueError:
        return forms
    texts = [text for text in inside.values() if isinstance(text, str)] if isinstance(inside, dict) else []
    return [*forms, *texts, *(json.dumps(text)[1:-1] for text in texts)]
