"""Small objects of a lake in an object store: read, put on condition, removed below a place.

`obstore` speaks to the stores, the Rust crate that `deltalake` is built on, so that both are let in by the
same options. A local lake has files and locks of the kernel instead, and nothing of this.

Every put is on condition. The store itself compares, so of two writers one is refused:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html;
Azure and Google Cloud Storage have had the same from their beginning.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import from_url

from bronze.doors import Door, through
from bronze.lake.stores import options_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_HTTP: Final = ("aws_allow_http", "azure_allow_http")
_TIMEOUT: Final = timedelta(seconds=10)
_TRUE: Final = frozenset({"1", "true", "on", "yes"})


@dataclass(frozen=True, slots=True)
class Found:
    """An object as it was read, or put.

    Attributes:
        body: its bytes.
        tag: names this very content; a put may ask that it is still there.
    """

    body: bytes
    tag: str


def read(root: str, name: str) -> Found | None:
    """An object below a location; None where there is none.

    Raises:
        OSError, BaseError: the store cannot be reached, or refuses.
    """

    def get() -> Found:
        answer = obstore.get(_store(root), name)
        return Found(bytes(answer.bytes()), str(answer.meta["e_tag"]))

    try:
        return through(Door.READ_FILE, f"{root}/{name}", get)
    except FileNotFoundError:
        return None


def put(root: str, name: str, body: bytes, *, over: Found | None) -> Found | None:
    """Put an object; None where another writer was first.

    Args:
        root: location.
        name: below it.
        body: the bytes.
        over: what it replaces and nothing else; None: it must not be there yet.

    Raises:
        OSError, BaseError: the store cannot be reached, or refuses. Whether it was put is not known then.
    """
    mode: Any = "create" if over is None else {"e_tag": over.tag}

    def write() -> Found:
        return Found(body, str(obstore.put(_store(root), name, body, mode=mode)["e_tag"]))

    try:
        return through(Door.OPEN_PART, f"{root}/{name}", write)
    except (AlreadyExistsError, PreconditionError, FileNotFoundError):
        return None


def delete_below(root: str, prefix: str) -> None:
    """Remove every object whose path begins with a prefix; none is no fault."""
    store = _store(root)
    for batch in obstore.list(store, f"{prefix.rstrip('/')}/"):
        names = [str(one["path"]) for one in batch]
        if names:
            through(Door.DELETE_FILE, f"{root}/{names[0]}", lambda names=names: obstore.delete(store, names))  # type: ignore[misc]


def _store(root: str) -> ObjectStore:
    return _connected(root, tuple(sorted((options_of(root) or {}).items())))


@lru_cache(maxsize=32)
def _connected(root: str, options: tuple[tuple[str, str], ...]) -> ObjectStore:
    """A client for each place, which keeps its connections."""
    config: Any = {name: value for name, value in options if name not in _HTTP}
    return from_url(
        root,
        config=config,
        client_options={"allow_http": _allows_http(dict(options)), "timeout": _TIMEOUT},
        retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=10)},
    )


def _allows_http(options: dict[str, str]) -> bool:
    said = [options.get(name, os.environ.get(name.upper(), "")) for name in _HTTP]
    return any(one.lower() in _TRUE for one in said)
