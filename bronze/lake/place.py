"""Places: this module alone parses a location, into a `Folder`, a `Store` or a `Catalog`.

A place owns the means of access to the tables: a store owns options and a lease duration, a catalog owns a
Spark session. Each lake has its own place (`bronze.lake.location.Lake`), which every location of the lake
carries (`Location`). Two lakes of a process therefore never mix options or sessions, even if both lie at the
same location. `without_keys` masks the keys of every place that the process has ever created.

Option names are the lower-case names of the Rust crate `object_store` (``aws_access_key_id``), which
`deltalake` reads unchanged. Settings without an option come from the environment (``AWS_ACCESS_KEY_ID``),
from a file, or from the platform (a machine role, a workload identity).

``catalog://main/silver/orders`` stands for the table ``main.silver.orders``. No code may use such a location
as a folder or a bucket: only the catalog knows where the files lie.

object_store: https://docs.rs/object_store (AmazonS3ConfigKey, AzureConfigKey, GoogleConfigKey).
"""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias
from urllib.parse import quote, unquote

from deltasmelt.bronze.config.timing import (
    FLUSH_INTERVAL_IN_CATALOGS,
    FLUSH_INTERVAL_IN_STORES,
    LEASE_SECONDS,
    LEASE_SECONDS_IN_CATALOGS,
)
from deltasmelt.bronze.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

OtherLayer: TypeAlias = Literal["bronze", "control", "quality"]
SCHEME: Final = "catalog://"
# The schema of a catalog's temporary tables.
SCRATCH: Final = "deltasmelt_scratch"
# The prefix of options for Spark alone: Hadoop's own option names.
HADOOP: Final = "fs."
_FILE: Final = re.compile(r"(?i:file):(?://(?i:localhost(?=/))?(?P<after>.*)|(?P<absolute>/.*))", re.DOTALL)
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_MISREAD: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]^|\\\x00-\x1f\x7f]")
_MISREAD_IN_URL: Final = re.compile(r"[%?#\[\]^|\\\x00-\x1f\x7f]")
# Names of options whose values a message may show; the values of all remaining options are keys.
_SHOWN: Final = re.compile(
    r"(?:.*_)?(?:region|endpoint|endpoint_url|allow_http|style_request|skip_signature)"
)
# Bytes that a library prints as numbers, for instance the bytes of an unreadable key.
_NUMBERS: Final = re.compile(r"\[\s*(?:\d{1,3},\s*){7,}\d{1,3}\s*\]")
# Minimum length of a masked key; masking shorter keys would mask words of ordinary text.
_SHORTEST: Final = 6

# Known to the whole process: an error message can come from any library and names no lake.
_KEYS: Final[set[str]] = set()
_LOCK: Final = threading.Lock()


class Place:
    """The interface of all places, with the values of a folder; no caller needs to know the kind."""

    __slots__ = ()
    lease: float = LEASE_SECONDS  # unused in a folder: the kernel's locks guard a folder
    options: Mapping[str, str] = MappingProxyType({})
    flush_interval: float | None = None  # seconds between the reader's commits; None: the general default
    clock_skew = 0.0  # seconds by which the clocks of two machines that use the lake may differ
    checkpoint_interval = 50  # versions of a table between two checkpoints
    folds_case = False  # whether names that differ only in case mean the same table
    shows_files = True  # whether this process sees the tables' files, and may put files beside them
    any_thread_reads = True  # else only a thread with the session
    replaces_tables = True  # whether CREATE OR REPLACE may replace a table with its owner and grants
    marks_in_metadata = False  # whether Spark's commits state marks in ``userMetadata``, too (`commit_marks`)
    shares_views = False  # whether a permanent view of a session could reach further users
    tended_by_spark: tuple[OtherLayer, ...] = ()  # further layers whose files only Spark compacts and removes

    @property
    def scheme(self) -> str | None:
        """Scheme of a store's URL, in lower case."""
        return None

    def serve(self, session: Callable[[], SparkSession]) -> bool:  # noqa: ARG002 - catalogs need one
        """Open tables through a session from now on; return False if no table needs a session."""
        return False


@dataclass(frozen=True, slots=True)
class Folder(Place):
    """A folder of a file system that this machine sees."""

    root: str


@dataclass(frozen=True, slots=True, eq=False)
class Store(Place):
    """An object store; one client reaches all tables below the root, a URL."""

    root: str
    # the store's options, including those for Spark alone; may contain keys
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    # seconds for which a lease is valid
    lease: float = LEASE_SECONDS
    flush_interval = FLUSH_INTERVAL_IN_STORES
    clock_skew = 20.0
    checkpoint_interval = 10  # opening a table requests each entry since the checkpoint

    def __post_init__(self) -> None:
        options = dict(self.options)
        if options.get("aws_endpoint_url", "").startswith("http://"):
            options.setdefault("aws_allow_http", "true")  # an http:// that was written is meant
        object.__setattr__(self, "options", options)
        object.__setattr__(self, "root", self.root.rstrip("/"))
        with _LOCK:
            _KEYS.update(_keys(options))

    def __reduce__(self) -> tuple[type[Store], tuple[str, dict[str, str], float]]:
        """Recreate the store on unpickling, so that the unpickling process masks the keys too."""
        return Store, (self.root, dict(self.options), self.lease)

    @property
    def scheme(self) -> str | None:
        """Scheme of the URL, in lower case."""
        return scheme_of(self.root)

    def below(self, location: str) -> str:
        """Return the path from the root to a location at or below the root."""
        return _plain(location)[len(_plain(self.root)) :].lstrip("/")


@dataclass(slots=True, eq=False)
class Catalog(Place):
    """A catalog of the Spark session, by its name in Spark SQL; only this session reaches the tables."""

    name: str
    lease: float = LEASE_SECONDS_IN_CATALOGS
    _session: Callable[[], SparkSession] | None = field(default=None, repr=False)
    flush_interval = FLUSH_INTERVAL_IN_CATALOGS
    clock_skew = 20.0
    folds_case = True
    shows_files = False
    any_thread_reads = False
    replaces_tables = False
    marks_in_metadata = True
    shares_views = True
    tended_by_spark = ("bronze", "control", "quality")

    def table(self, schema: str, name: str) -> Location:
        """Return the location that stands for a table of the catalog."""
        return Location(root_of(self.name), self) / "/".join(quote(part, safe="") for part in (schema, name))

    def serve(self, session: Callable[[], SparkSession]) -> bool:
        """Open this lake's tables through a session from now on, and return True.

        Any thread calls `session` each time a table needs the session.
        """
        self._session = session
        return True

    def session(self) -> SparkSession:
        """Return the session through which the tables are opened.

        Raises:
            ConfigurationError: ``catalog-session``: no session serves this lake.
        """
        if self._session is None:
            raise ConfigurationError(
                f"the tables of catalog {self.name!r} need a Spark session, and this command has no session",
                code="catalog-session",
                where=self.name,
                remedy="run this command where Spark can start, or set lake.path",
            )
        return self._session()


class Location(str):
    """A location with its place; every table location of a lake is a `Location`.

    Text made from a location (`str.format`, slicing) has no place; ``/`` makes a location below this
    location.
    """

    __slots__ = ("place",)
    place: Place

    def __new__(cls, text: str, place: Place | None = None) -> Self:
        """Return the location; without a place, parse the place from the text."""
        made = super().__new__(cls, text)
        # Without a place, the text itself shows the place.
        made.place = place_of(text) if place is None else place
        return made

    @property
    def folder(self) -> Path | None:
        """The file system folder that the location names; None in a store or a catalog."""
        return local_folder(self)

    def __truediv__(self, below: str) -> Location:
        return Location(f"{self.rstrip('/')}/{below}", self.place)


def place_of(location: str) -> Place:
    """Return the place of a location; for plain text a new place without options and session."""
    if isinstance(location, Location):
        return location.place
    if location.startswith(SCHEME):
        return Catalog(unquote(location.removeprefix(SCHEME).partition("/")[0]))
    return Folder(location) if local_folder(location) is not None else Store(location)


def in_store(location: str, options: Mapping[str, str], *, lease: float = LEASE_SECONDS) -> Location:
    """Return a store's location that carries these options."""
    return Location(location, Store(location, options, lease))


def options_of(location: str) -> dict[str, str] | None:
    """Return the options of `deltalake` and `obstore` for a location; None without options."""
    options = place_of(location).options
    return {name: value for name, value in options.items() if not name.startswith(HADOOP)} or None


def client_root(location: str) -> tuple[str, str]:
    """Return the location for which a client is created, and the path from this root to a location."""
    # A single client with cached connections reaches all tables of a lake in a store.
    place = place_of(location)
    return (place.root, place.below(location)) if isinstance(place, Store) else (location, "")


def catalog_of(location: str) -> Catalog:
    """Return the catalog that contains a table; raise TypeError for a location of another kind."""
    place = place_of(location)
    if not isinstance(place, Catalog):
        raise TypeError(f"{location} is not a table in a catalog")
    return place


def scheme_of(location: str) -> str | None:
    """Return the scheme of an object store's URL, in lower case; None for a local path."""
    found = None if local_folder(location) is not None else _URL.match(location)
    return None if found is None else found[1].lower()


def local_folder(location: str) -> Path | None:
    """Return the folder of a location; None in an object store."""
    # Spark and `deltalake` write the location of a local table as ``file:`` and a percent-encoded path.
    file = _FILE.fullmatch(location)
    if file is not None:
        return Path(unquote(file["after"] or file["absolute"] or ""))
    return None if _URL.match(location) else Path(location)


def misread(location: str) -> str | None:
    """Return the first part of an absolute path or URL that `deltalake` or Spark would read differently."""
    # Libraries never read the location of a catalog.
    if location.startswith(SCHEME):
        return None
    # In the name of a folder, `deltalake` 1.6 reads ``%20`` as a space and a backslash as a slash, and panics
    # at some further characters. In a URL `deltalake` interprets ``%``, ``?`` and ``#`` as URL syntax; Spark
    # does not.
    found = (_MISREAD if local_folder(location) is not None else _MISREAD_IN_URL).search(location)
    return None if found is None else found[0]


def root_of(catalog: str) -> str:
    """Return the location below which all tables of a catalog lie."""
    return SCHEME + quote(catalog, safe="")


def is_named(location: str) -> bool:
    """Check whether a location is a name in a catalog."""
    return location.startswith(SCHEME)


def parts_of(location: str) -> tuple[str, str, str]:
    """Return catalog, schema and name of a catalog's table; raise ValueError for another kind of location."""
    catalog, layer, name = map(unquote, location.removeprefix(SCHEME).split("/"))
    return catalog, layer, name


def scratch_name(purpose: str, layer: str, name: str) -> tuple[str, str]:
    """Return schema and name of a temporary table (`bronze.lake.catalog.scratch`)."""
    return SCRATCH, f"{purpose}_{layer}_{name}"


def layer_of(location: str) -> str:
    """Return the layer of a catalog's table, including temporary tables."""
    _, schema, name = parts_of(location)
    return name.split("_")[1] if schema == SCRATCH else schema


def without_keys(text: str) -> str:
    """Return a text with the keys of every place masked, whichever library wrote the text."""
    with _LOCK:
        keys = sorted(_KEYS, key=len, reverse=True)
    for key in keys:
        text = text.replace(key, "***")
    return _NUMBERS.sub("[…]", text)


def _plain(location: str) -> str:
    """Return a location without percent-encoding; `deltalake` encodes the location of a table."""
    scheme, _, rest = location.rstrip("/").partition("://")
    return f"{scheme.lower()}://{unquote(rest)}"


def _keys(options: Mapping[str, str]) -> frozenset[str]:
    """Return the secret option values in every form that a text may contain."""
    secret = (value for name, value in options.items() if _SHOWN.fullmatch(name) is None)
    return frozenset(form for value in secret for form in _forms(value) if len(form) >= _SHORTEST)


def _forms(value: str) -> list[str]:
    """Return a value unchanged, a percent-decoded copy, and each text of a JSON object."""
    forms = [value, unquote(value)]
    try:
        inside = json.loads(value)
    except ValueError:
        return forms
    texts = [text for text in inside.values() if isinstance(text, str)] if isinstance(inside, dict) else []
    return [*forms, *texts, *(json.dumps(text)[1:-1] for text in texts)]
