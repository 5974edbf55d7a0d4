"""Small objects of a lake in an object store: read, put, removed below a place.

`obstore` speaks to the stores, the Rust crate that `deltalake` is built on, so that both are let in by the
same options. A local lake has files and locks of the kernel instead, and nothing of this.

A put of what several may write is on condition. The store itself compares, so of two writers one is refused:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html;
Azure and Google Cloud Storage have had the same from their beginning. `replace` is not: it is for what one
process alone writes.

A bucket that is not there is an error, never an object that is not there: else a lease would be waited for
without end, or taken for lost.
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
_TIMEOUT_OF_FILES: Final = timedelta(seconds=60)
"""A file has some MiB, and a line may be slow."""
_PARTS_AT_ONCE: Final = 2
_LOGGER = logging.getLogger("deltasmelt.lake")


@contextmanager
def as_os_error(what: str) -> Iterator[None]:
    """What `obstore` raises as what a file system would, for callers that know no stores."""
    try:
        yield
    except BaseError as error:
        raise OSError(f"{what}: {error}") from error


def read(root: str, name: str) -> Found | None:
    """An object below a location; None where there is none.

    Raises:
        OSError, BaseError: the store cannot be reached, or refuses.
    """

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
    """Put an object; None where another writer was first.

    Args:
        root: location.
        name: below it.
        body: the bytes.
        over: what it replaces and nothing else; None: it must not be there yet.

    Raises:
        OSError, BaseError: the store cannot be reached, or refuses. Whether it was put is not known then.
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
    except FileNotFoundError as error:  # what was to be replaced is gone
        if over is None or lacks_bucket(error):
            raise
        return None


def replace(root: str, name: str, body: bytes) -> None:
    """Put an object, whatever was there.

    Raises:
        OSError, BaseError: the store cannot be reached, or refuses.
    """
    store, path = _object(root, name)
    perform(Effect.OPEN_PART, f"{root}/{name}", lambda: obstore.put(store, path, body, mode="overwrite"))


def any_below(root: str) -> bool:
    """Whether there is an object below a location.

    Raises:
        OSError, BaseError: the store cannot be reached, or refuses; there is no such bucket.
    """

    def look() -> bool:
        store, path = _object(root, "")
        return any(len(batch) > 0 for batch in obstore.list(store, path, chunk_size=1))

    return perform(Effect.LIST_FILES, root, look)


def read_whole(root: str, name: str) -> bytes:
    """All bytes of an object, by one request; the caller stands at a door.

    Raises:
        FileNotFoundError: there is none.
        OSError: the store cannot be reached, or refuses.
    """
    with as_os_error(f"{name} was not read"):
        store, path = _object(root, name, _TIMEOUT_OF_FILES)
        return bytes(obstore.get(store, path).bytes())


def open_writer(root: str, name: str, held: int) -> WritableFile:
    """A new file, whose name nobody else uses; the caller stands at a door.

    Args:
        root: location.
        name: below it.
        held: bytes up to which the file is put by one request when it is closed; a larger one is sent in
            parts of that size.
    """
    store, path = _object(root, name, _TIMEOUT_OF_FILES)
    return obstore.open_writer(store, path, buffer_size=held, max_concurrency=_PARTS_AT_ONCE)


def create(root: str, name: str, body: bytes) -> bool:
    """Put an object that is not there yet; False where another one is. The caller stands at a door.

    Where the store refuses, what is there is read: it may be ours, put by a request whose answer was lost. So
    no two bodies may be the same.

    Raises:
        OSError: the store cannot be reached, or refuses. Whether it was put is not known then.
    """
    with as_os_error(f"{name} was not put"):
        store, path = _object(root, name)
        try:
            obstore.put(store, path, body, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return bytes(obstore.get(store, path).bytes()) == body
    return True


def exists(root: str, name: str) -> bool:
    """Whether an object is there. The caller stands at a door.

    Raises:
        OSError: the store cannot be reached, or refuses.
    """
    with as_os_error(f"{name} was not found"):
        store, path = _object(root, name)
        try:
            obstore.head(store, path)
        except FileNotFoundError:
            return False
    return True


def newest_below(root: str, prefix: str) -> dict[str, datetime]:
    """Return, for each folder just below a prefix, when the store got the newest of its objects.

    Raises:
        OSError, BaseError: the store cannot be reached, or refuses.
    """
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
    """Remove every object whose path begins with a prefix; none is no fault.

    Raises:
        OSError, BaseError: the store cannot be reached, or refuses.
    """
    store, below = _object(root, f"{prefix.rstrip('/')}/")
    for batch in obstore.list(store, below):
        names = [str(one["path"]) for one in batch]
        if names:
            perform(Effect.DELETE_FILE, f"{root}/{names[0]}", partial(obstore.delete, store, names))


def discard(location: str) -> None:
    """Remove what a command has put below a location for itself; where that fails it stays, and is logged."""
    root, _, name = location.rstrip("/").rpartition("/")
    try:
        delete_below(Location(root, place_of(location)), name)
    except (OSError, BaseError) as error:
        _LOGGER.warning("%s could not be removed: %s", location, words_of(error))


def _object(root: str, name: str, timeout: timedelta = _TIMEOUT) -> tuple[ObjectStore, str]:
    """Return the client of the lake that a location is in, and what an object below it is called there."""
    lake, below = client_root(root)
    store = _connected(lake, tuple(sorted((options_of(root) or {}).items())), timeout)
    return store, f"{below}/{name}" if below else name


@lru_cache(maxsize=64)
def _connected(root: str, options: tuple[tuple[str, str], ...], timeout: timedelta) -> ObjectStore:
    """A client for each lake, which keeps its connections."""
    config: Any = {name: value for name, value in options if name not in _HTTP}
    return from_url(
        root,
        config=config,
        client_options={"allow_http": _allows_http(dict(options)), "timeout": timeout},
        retry_config={"max_retries": 3, "retry_timeout": timeout},
    )


def _allows_http(options: dict[str, str]) -> bool:
    return any(is_true(options.get(name, os.environ.get(name.upper()))) for name in _HTTP)
