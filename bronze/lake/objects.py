"""Small objects of a lake in an object store: read, write, remove.

Every write of an object with several writers is conditional: the store compares, and rejects one of two
concurrent writers (https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html; Azure and
Google Cloud Storage have had conditional writes from the beginning). Only `replace` is unconditional, for
objects with a single writer.

A missing bucket is an error, never an absent object: otherwise a process would wait forever for a lease, or
consider a lease lost. Only `exists` cannot distinguish the two.

`obstore` is the client. `deltalake` builds on the same Rust crate, so the same options open the store for
both. Every function but `discard` raises OSError or `obstore`'s BaseError if the store is unreachable or
refuses. The caller wraps `read_whole`, `open_writer`, `create` and `exists` in an `Effect`.
"""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import from_url

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.lake.failures import lacks_bucket, words_of
from deltasmelt.bronze.lake.lease_objects import Found
from deltasmelt.bronze.lake.place import Location, client_root, options_of, place_of
from deltasmelt.bronze.lake.stores import is_true

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from obstore import WritableFile
    from obstore.store import ObjectStore

_HTTP: Final = ("aws_allow_http", "azure_allow_http")
_TIMEOUT: Final = timedelta(seconds=10)
# Longer for data files: a file has some MiB, and a connection may be slow.
_TIMEOUT_OF_FILES: Final = timedelta(seconds=60)
_PARTS_AT_ONCE: Final = 2
_LOGGER = logging.getLogger("deltasmelt.lake")


@contextmanager
def as_os_error(what: str) -> Iterator[None]:
    """Convert errors of `obstore` to the errors of a file system, for callers that know no stores."""
    try:
        yield
    except BaseError as error:
        raise OSError(f"{what}: {error}") from error


def read(root: str, name: str) -> Found | None:
    """Return an object below a location; None if the object is absent."""

    def get() -> Found:
        store, path = _object(root, name)
        answer = obstore.get(store, path)
        return Found(bytes(answer.bytes()), str(answer.meta["e_tag"]), answer.meta["version"])

    try:
        return perform(Effect.READ_FILE, f"{root}/{name}", get)
    except FileNotFoundError as error:
        if lacks_bucket(error):
            raise
        return None


def put(root: str, name: str, body: bytes, *, over: Found | None) -> Found | None:
    """Write an object conditionally; return None if another writer was faster.

    After an error, whether the object was written is unknown.

    Args:
        over: the exact object that the write replaces; None if the object must not exist yet.
    """
    mode: Any = "create"
    if over is not None:
        mode = {"e_tag": over.tag} if over.version is None else {"e_tag": over.tag, "version": over.version}

    def write() -> Found:
        store, path = _object(root, name)
        answer = obstore.put(store, path, body, mode=mode)
        return Found(body, str(answer["e_tag"]), answer["version"])

    try:
        return perform(Effect.OPEN_PART, f"{root}/{name}", write)
    except (AlreadyExistsError, PreconditionError):
        return None
    except FileNotFoundError as error:  # the object to replace is absent
        if over is None or lacks_bucket(error):
            raise
        return None


def replace(root: str, name: str, body: bytes) -> None:
    """Write an object unconditionally."""
    store, path = _object(root, name)
    perform(Effect.OPEN_PART, f"{root}/{name}", lambda: obstore.put(store, path, body, mode="overwrite"))


def any_below(root: str) -> bool:
    """Check whether any object exists below a location."""

    def look() -> bool:
        store, path = _object(root, "")
        return any(len(batch) > 0 for batch in obstore.list(store, path, chunk_size=1))

    return perform(Effect.LIST_FILES, root, look)


def read_whole(root: str, name: str) -> bytes:
    """Return all bytes of an object by one request."""
    with as_os_error(f"{name} was not read"):
        store, path = _object(root, name, _TIMEOUT_OF_FILES)
        return bytes(obstore.get(store, path).bytes())


def open_writer(root: str, name: str, held: int) -> WritableFile:
    """Open a new file with a unique name for writing.

    Args:
        held: size in bytes up to which closing the file writes the whole file by one request; a larger file
            is sent in parts of this size.
    """
    store, path = _object(root, name, _TIMEOUT_OF_FILES)
    return obstore.open_writer(store, path, buffer_size=held, max_concurrency=_PARTS_AT_ONCE)


def create(root: str, name: str, body: bytes) -> bool:
    """Write an object that does not exist yet; return False if a different object exists.

    No two writers may use equal bodies. After an error, whether the object was written is unknown.
    """
    with as_os_error(f"{name} was not put"):
        store, path = _object(root, name)
        try:
            obstore.put(store, path, body, mode="create", use_multipart=False)
        except AlreadyExistsError:
            # An earlier request may have written the object, and its answer was lost.
            return bytes(obstore.get(store, path).bytes()) == body
    return True


def exists(root: str, name: str) -> bool:
    """Check whether an object exists."""
    with as_os_error(f"{name} was not found"):
        store, path = _object(root, name)
        try:
            obstore.head(store, path)
        # The answer to HEAD has no body, so a missing bucket looks like an absent object here.
        except FileNotFoundError:
            return False
    return True


def newest_below(root: str, prefix: str) -> dict[str, datetime]:
    """Return the time of the newest object in each folder directly below a prefix, by the store's clock."""
    found: dict[str, datetime] = {}
    store, below = _object(root, f"{prefix.rstrip('/')}/")

    def look() -> None:
        for batch in obstore.list(store, below):
            for one in batch:
                name = str(one["path"]).removeprefix(below).partition("/")[0]
                found[name] = max(one["last_modified"], found.get(name, one["last_modified"]))

    perform(Effect.LIST_FILES, f"{root}/{prefix}", look)
    return found


def delete_below(root: str, prefix: str) -> None:
    """Remove every object whose path begins with a prefix; having none is no error."""
    store, below = _object(root, f"{prefix.rstrip('/')}/")
    for batch in obstore.list(store, below):
        names = [str(one["path"]) for one in batch]
        if names:
            perform(Effect.DELETE_FILE, f"{root}/{names[0]}", partial(obstore.delete, store, names))


def discard(location: str) -> None:
    """Remove a command's own objects below a location; log a failure and leave the objects."""
    root, _, name = location.rstrip("/").rpartition("/")
    try:
        delete_below(Location(root, place_of(location)), name)
    except (OSError, BaseError) as error:
        _LOGGER.warning("%s could not be removed: %s", location, words_of(error))


def _object(root: str, name: str, timeout: timedelta = _TIMEOUT) -> tuple[ObjectStore, str]:
    """Return the client for the lake of a location, and the path of an object within this client."""
    lake, below = client_root(root)
    store = _connected(lake, tuple(sorted((options_of(root) or {}).items())), timeout)
    return store, f"{below}/{name}" if below else name


@lru_cache(maxsize=64)
def _connected(root: str, options: tuple[tuple[str, str], ...], timeout: timedelta) -> ObjectStore:
    config: Any = {name: value for name, value in options if name not in _HTTP}
    return from_url(
        root,
        config=config,
        client_options={"allow_http": _allows_http(dict(options)), "timeout": timeout},
        retry_config={"max_retries": 3, "retry_timeout": timeout},
    )


def _allows_http(options: dict[str, str]) -> bool:
    return any(is_true(options.get(name, os.environ.get(name.upper()))) for name in _HTTP)
