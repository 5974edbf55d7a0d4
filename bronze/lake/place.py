"""Places: a location is parsed here once, into a `Folder`, a `Store` or a `Catalog`.

A place owns all that decides how its tables are reached: a store its options and the pace of its leases, a
catalog the Spark session that serves it. Each lake has a place of its own (`bronze.lake.location.Lake`), and
every location that a lake gives out carries that place (`Location`). So two lakes of one process never use
each other's options or session, also where both lie at one location.

Keys alone are known to the whole process. A message comes from any library and names no lake, so
`without_keys` masks the keys of every place that this process has known, for as long as the process lives.

Options bear the names that the Rust crate `object_store` gives them, in small letters
(``aws_access_key_id``), for `deltalake` reads them as they are. Settings that no option gives come from the
environment (``AWS_ACCESS_KEY_ID``), from a file, or from the platform: a role of the machine, a workload
identity.

``catalog://main/silver/orders`` stands for the table ``main.silver.orders``: the catalog alone knows where
its files lie, so nothing may take the location for a folder or a bucket.

object_store: https://docs.rs/object_store (AmazonS3ConfigKey, AzureConfigKey, GoogleConfigKey).
"""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, Self, TypeAlias
from urllib.parse import quote, unquote

from deltasmelt.bronze.config.timing import LEASE_SECONDS, LEASE_SECONDS_IN_CATALOGS
from deltasmelt.bronze.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

SCHEME: Final = "catalog://"
SCRATCH: Final = "deltasmelt_scratch"
"""Schema of a catalog's tables that are there for a while."""
HADOOP: Final = "fs."
"""Begins the names of options for Spark alone, which are Hadoop's own."""
_FILE: Final = re.compile(r"(?i:file):(?://(?i:localhost(?=/))?(?P<after>.*)|(?P<absolute>/.*))", re.DOTALL)
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_MISREAD: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]^|\\\x00-\x1f\x7f]")
_MISREAD_IN_URL: Final = re.compile(r"[%?#\[\]^|\\\x00-\x1f\x7f]")
_SHOWN: Final = re.compile(
    r"(?:.*_)?(?:region|endpoint|endpoint_url|allow_http|style_request|skip_signature)"
)
"""Names of options whose values a message may show; the values of all other options are keys."""
_NUMBERS: Final = re.compile(r"\[\s*(?:\d{1,3},\s*){7,}\d{1,3}\s*\]")
"""Bytes that a library writes as numbers: of a key that it could not read, for instance."""
_SHORTEST: Final = 6
"""Letters of a key from which it is masked; a shorter key would mask words of any text."""

_KEYS: Final[set[str]] = set()
_LOCK: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of a file system that this machine sees."""

    root: str
    lease: ClassVar[float] = LEASE_SECONDS  # taken by no process: the kernel's locks guard a folder
    needs_session: ClassVar[bool] = False
    folds_case: ClassVar[bool] = False
    scheme: ClassVar[str | None] = None
    options: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def serve(self, session: Callable[[], SparkSession]) -> None:
        """Leave the session alone: the tables are reached without one."""


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """An object store.

    Attributes:
        root: URL of the lake in it; one client reaches all tables below.
        options: of the store, those for Spark alone included; may hold keys.
        lease: seconds for which a lease holds.
    """

    root: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    lease: float = LEASE_SECONDS
    needs_session: ClassVar[bool] = False
    folds_case: ClassVar[bool] = False

    def __post_init__(self) -> None:
        options = dict(self.options)
        if options.get("aws_endpoint_url", "").startswith("http://"):
            options.setdefault("aws_allow_http", "true")  # an http:// that was written is meant
        object.__setattr__(self, "options", options)
        object.__setattr__(self, "root", self.root.rstrip("/"))
        with _LOCK:
            _KEYS.update(_keys(options))

    def __reduce__(self) -> tuple[type[Store], tuple[str, dict[str, str], float]]:
        """Have another process make the store anew, which then masks the keys."""
        return Store, (self.root, dict(self.options), self.lease)

    @property
    def scheme(self) -> str | None:
        """The scheme of the URL, in small letters."""
        return scheme_of(self.root)

    def serve(self, session: Callable[[], SparkSession]) -> None:
        """Leave the session alone: the tables are reached without one."""

    def below(self, location: str) -> str:
        """Return the path from the root to a location at or below the root."""
        return _plain(location)[len(_plain(self.root)) :].lstrip("/")


@dataclass(slots=True, eq=False)
class Catalog:
    """A catalog of the Spark session; only that session reaches the tables.

    Attributes:
        name: of the catalog.
        lease: seconds for which a lease holds.
    """

    name: str
    lease: float = LEASE_SECONDS_IN_CATALOGS
    _session: Callable[[], SparkSession] | None = field(default=None, repr=False)
    needs_session: ClassVar[bool] = True
    folds_case: ClassVar[bool] = True
    scheme: ClassVar[str | None] = None
    options: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def table(self, schema: str, name: str) -> Location:
        """Return the location that stands for a table of the catalog."""
        return Location(root_of(self.name), self) / "/".join(quote(part, safe="") for part in (schema, name))

    def serve(self, session: Callable[[], SparkSession]) -> None:
        """Open this lake's tables through a session from now on.

        Args:
            session: returns the session; called each time a table needs one, by any thread.
        """
        self._session = session

    def session(self) -> SparkSession:
        """Return the session through which the tables are opened.

        Raises:
            ConfigurationError: ``catalog-session``: no session serves this lake.
        """
        if self._session is None:
            raise ConfigurationError(
                f"only a Spark session reaches the tables of catalog {self.name!r}, and none is there",
                code="catalog-session",
                where=self.name,
                remedy="run this command where Spark can be started, or give lake.path",
            )
        return self._session()


Place: TypeAlias = Folder | Store | Catalog
"""Beside what each kind owns, every place answers:

* `needs_session`: whether a Spark session alone reaches the tables. Then this process sees none of their
  files, logs and folders, and Spark's history alone shows what their commits record.
* `folds_case`: whether names that differ in nothing but case are one table.
* `scheme`: of a store's URL, in small letters.
* `serve`: which session opens the tables from now on, where they need one.
"""


class Location(str):
    """A location that carries its place; every location of a lake's table is one.

    Text that is made of a location (`str.format`, slicing) is plain text and has lost the place. A location
    below another one is made with ``/``.
    """

    __slots__ = ("place",)
    place: Place

    def __new__(cls, text: str, place: Place | None = None) -> Self:
        """Return the location; without a place, of the place that the text names."""
        made = super().__new__(cls, text)
        made.place = place_of(text) if place is None else place
        return made

    @property
    def folder(self) -> Path | None:
        """The folder of a file system that the location names; None in a store or a catalog."""
        return local_folder(self)

    def __truediv__(self, below: str) -> Location:
        return Location(f"{self.rstrip('/')}/{below}", self.place)


def place_of(location: str) -> Place:
    """Return the place of a location; of plain text a new one, without options and session."""
    if isinstance(location, Location):
        return location.place
    if location.startswith(SCHEME):
        return Catalog(unquote(location.removeprefix(SCHEME).partition("/")[0]))
    return Folder(location) if local_folder(location) is not None else Store(location)


def in_store(location: str, options: Mapping[str, str], *, lease: float = LEASE_SECONDS) -> Location:
    """Return a store's location that carries these options."""
    return Location(location, Store(location, options, lease))


def options_of(location: str) -> dict[str, str] | None:
    """Return what `deltalake` and `obstore` need to reach a location; None where they need nothing."""
    options = place_of(location).options
    return {name: value for name, value in options.items() if not name.startswith(HADOOP)} or None


def client_root(location: str) -> tuple[str, str]:
    """Return the location that a client is made for, and the path from there to a location.

    One client, which keeps its connections, reaches all tables of a lake in a store.
    """
    place = place_of(location)
    return (place.root, place.below(location)) if isinstance(place, Store) else (location, "")


def catalog_of(location: str) -> Catalog:
    """Return the catalog that a table is in.

    Raises:
        TypeError: the location is of another kind.
    """
    place = place_of(location)
    if not isinstance(place, Catalog):
        raise TypeError(f"{location} is no table of a catalog")
    return place


def scheme_of(location: str) -> str | None:
    """Return the scheme of an object store's URL, in small letters; None of a local path."""
    found = None if local_folder(location) is not None else _URL.match(location)
    return None if found is None else found[1].lower()


def local_folder(location: str) -> Path | None:
    """Return the folder of a location; None in an object store.

    Args:
        location: a path; or ``file:`` before a path that is percent-encoded, as Spark and `deltalake` write
            the location of a local table.
    """
    file = _FILE.fullmatch(location)
    if file is not None:
        return Path(unquote(file["after"] or file["absolute"] or ""))
    return None if _URL.match(location) else Path(location)


def misread(location: str) -> str | None:
    """Return the first part of a location that `deltalake` or Spark would read as something else.

    `deltalake` 1.6 takes ``%20`` in a folder's name for a space, a backslash for a slash, and panics at some
    others. In a URL it takes ``%``, ``?`` and ``#`` for what they are in one, and Spark does not.

    Args:
        location: an absolute path, or a URL of an object store; no library reads that of a catalog.
    """
    if location.startswith(SCHEME):
        return None
    found = (_MISREAD if local_folder(location) is not None else _MISREAD_IN_URL).search(location)
    return None if found is None else found[0]


def root_of(catalog: str) -> str:
    """Return the location below which all tables of a catalog stand."""
    return SCHEME + quote(catalog, safe="")


def is_named(location: str) -> bool:
    """Check whether a location is a name in a catalog."""
    return location.startswith(SCHEME)


def parts_of(location: str) -> tuple[str, str, str]:
    """Return catalog, schema and name of a catalog's table.

    Raises:
        ValueError: the location is of another kind.
    """
    catalog, layer, name = map(unquote, location.removeprefix(SCHEME).split("/"))
    return catalog, layer, name


def scratch_name(purpose: str, layer: str, name: str) -> tuple[str, str]:
    """Return schema and name of a table that is there for a while (`bronze.lake.scratch`)."""
    return SCRATCH, f"{purpose}_{layer}_{name}"


def layer_of(location: str) -> str:
    """Return the layer of a catalog's table, also of a table that is there for a while."""
    _, schema, name = parts_of(location)
    return name.split("_")[1] if schema == SCRATCH else schema


def without_keys(text: str) -> str:
    """Return a text in which the keys of every place are masked, whoever wrote the text."""
    with _LOCK:
        keys = sorted(_KEYS, key=len, reverse=True)
    for key in keys:
        text = text.replace(key, "***")
    return _NUMBERS.sub("[…]", text)


def _plain(location: str) -> str:
    """Return a location as a person writes it: `deltalake` writes a table's percent-encoded."""
    scheme, _, rest = location.rstrip("/").partition("://")
    return f"{scheme.lower()}://{unquote(rest)}"


def _keys(options: Mapping[str, str]) -> frozenset[str]:
    """Return the values that no text may show, in each form in which a text may have them."""
    secret = (value for name, value in options.items() if _SHOWN.fullmatch(name) is None)
    return frozenset(form for value in secret for form in _forms(value) if len(form) >= _SHORTEST)


def _forms(value: str) -> list[str]:
    """Return a value as it is, decoded, and each text of a JSON object."""
    forms = [value, unquote(value)]
    try:
        inside = json.loads(value)
    except ValueError:
        return forms
    texts = [text for text in inside.values() if isinstance(text, str)] if isinstance(inside, dict) else []
    return [*forms, *texts, *(json.dumps(text)[1:-1] for text in texts)]
