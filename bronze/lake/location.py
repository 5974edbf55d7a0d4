"""Where the Delta tables lie: ``<layer>.<name>``, under a path or in a catalog of the Spark session.

Everything that names a table of ours does it through `Lake`, so that both kinds of lake differ in one place.

Names of tables as names of folders, and locations as `deltalake` and Spark say them. Pure.

PostgreSQL takes any text for a table's name: ``../control/cuts``, ``a/b``, ``CON``, ``Orders`` beside
``orders``. A folder's name is made of lower-case letters, digits, ``_`` and ``-`` alone. They mean themselves
to every file system, in every URL and to Spark, also where case does not count or letters beyond ASCII are
normalised. A ``-`` stands before what is written otherwise:

========================  ==================================  ============================
in the name               in the folder's name                for instance
========================  ==================================  ============================
a-z 0-9 _                 the same                            ``order_items``
A-Z                       ``-`` and the small letter          ``OrderItems``: ``-order-items``
``-``                     twice                               ``a-b``: ``a--b``
anything else             ``-``, its code point in            ``a/b``: ``a-2f-b``;
                          hexadecimal, ``-``                  ``Größe``: ``-gr-0f6--0df-e``
========================  ==================================  ============================

A code point that begins with a letter gets a 0 before it. An underscore in the first place is written as a
code point, for Spark and others take such a folder for a hidden one. So is the first letter of a name that
Windows keeps for a device.

No name written so begins with ``-0`` and a digit. What follows ``-00`` is the whole name in base 32, where it
would be too long otherwise. What follows ``-01`` is a digest of one that is too long even so (of which no
database in UTF-8 has any).

Names and texts as Spark SQL writes them. Pure.

Locations of a catalog's tables: ``catalog://main/silver/orders`` is the table ``main.silver.orders``.

All that opens a table does so by a location. One of these says that the catalog alone knows where the files
lie, so nobody takes it for a folder or a bucket.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias
from urllib.parse import quote, unquote

LONGEST: Final = 255
"""Bytes of a file's name that all usual file systems take."""
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")
_UPPER: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_DEVICES: Final = re.compile(r"con|prn|aux|nul|com[0-9]|lpt[0-9]")
_WHOLE: Final = "-00"
_DIGEST: Final = "-01"
_ESCAPED: Final = re.compile(r"-(?:(-)|([a-z])|([0-9][0-9a-f]*)-)")
_FILE: Final = re.compile(r"(?i:file):(?://(?i:localhost(?=/))?(?P<after>.*)|(?P<absolute>/.*))", re.DOTALL)
_STORE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_MISREAD: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]^|\\\x00-\x1f\x7f]")
_MISREAD_IN_URL: Final = re.compile(r"[%?#\[\]^|\\\x00-\x1f\x7f]")


def folder_name(name: str) -> str:
    """The name of the folder in which a table of that name lies: unchanged where it is plain.

    Two names never give one folder; `table_name` is the inverse.

    Raises:
        ValueError: the name is empty.
    """
    if not name:
        raise ValueError("a table's name is not empty")
    first = _code(name[0]) if name[0] == "_" or _DEVICES.fullmatch(name) else _written(name[0])
    readable = first + "".join(map(_written, name[1:]))
    if len(readable) <= LONGEST:
        return readable
    text = name.encode("utf-8", "surrogatepass")
    whole = _WHOLE + _base32(text)
    return whole if len(whole) <= LONGEST else _DIGEST + _base32(hashlib.sha256(text).digest())


def table_name(folder: str) -> str | None:
    """The table's name that `folder_name` made a folder's name of; None of a digest, which does not tell it.

    Raises:
        ValueError: it made none.
    """
    if folder.startswith(_DIGEST):
        return None
    if folder.startswith(_WHOLE):
        text = folder.removeprefix(_WHOLE).upper()
        name = base64.b32decode(text + "=" * (-len(text) % 8)).decode("utf-8", "surrogatepass")
    else:
        name = _ESCAPED.sub(_read, folder)
    if not name or folder_name(name) != folder:
        raise ValueError(f"{folder!r} is no folder of a table")
    return name


def _written(one: str) -> str:
    if one in _PLAIN:
        return one
    if one in _UPPER:
        return f"-{one.lower()}"
    return "--" if one == "-" else _code(one)


def _code(one: str) -> str:
    code = f"{ord(one):x}"
    return f"-{code}-" if code[0].isdigit() else f"-0{code}-"


def _read(match: re.Match[str]) -> str:
    dash, letter, code = match.groups()
    if code is not None:
        return chr(int(code, 16))
    return str(dash or letter.upper())


def _base32(text: bytes) -> str:
    return base64.b32encode(text).decode().rstrip("=").lower()


def local_folder(location: str) -> Path | None:
    """The folder of a location; None in an object store.

    Args:
        location: a path; or ``file:`` before a path that is percent-encoded, as `deltalake` says it of every
            table (`DeltaTable.table_uri`) and Spark of a local one.
    """
    file = _FILE.fullmatch(location)
    if file is not None:
        return Path(unquote(file["after"] or file["absolute"] or ""))
    return None if _STORE.match(location) else Path(location)


def misread(location: str) -> str | None:
    """The first part of a lake's location that does not mean itself to `deltalake`, or not the same to Spark.

    `deltalake` 1.6 takes ``%20`` in a folder's name for a space, a backslash for a slash, and panics at some
    others. In a URL it takes ``%``, ``?`` and ``#`` for what they are in one, and Spark does not.

    Args:
        location: an absolute path, or a URL of an object store.
    """
    found = (_MISREAD if local_folder(location) is not None else _MISREAD_IN_URL).search(location)
    return None if found is None else found[0]


def quoted(name: str) -> str:
    """An identifier in backticks."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text as Spark SQL reads it under default settings.

    Backslashes start escapes in its string literals, so they are doubled; line ends are written as escapes.
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"


SCHEME: Final = "catalog://"
SCRATCH: Final = "deltasmelt_scratch"
"""Schema of the tables that are there for a while."""


def location_of(catalog: str, layer: str, name: str) -> str:
    """The location that stands for a name."""
    return "/".join((root_of(catalog), *(quote(part, safe="") for part in (layer, name))))


def root_of(catalog: str) -> str:
    """The location below which all tables of a catalog stand."""
    return SCHEME + quote(catalog, safe="")


def is_named(location: str) -> bool:
    """Whether a location is a name in a catalog."""
    return location.startswith(SCHEME)


def parts_of(location: str) -> tuple[str, str, str]:
    """Catalog, schema and name of a table.

    Raises:
        ValueError: the location is of another kind.
    """
    catalog, layer, name = map(unquote, location.removeprefix(SCHEME).split("/"))
    return catalog, layer, name


def scratch_name(purpose: str, layer: str, name: str) -> tuple[str, str]:
    """Schema and name of a table that is there for a while (`bronze.lake.scratch`)."""
    return SCRATCH, f"{purpose}_{layer}_{name}"


def layer_of(location: str) -> str:
    """The layer whose table it is, for a while or for good."""
    _, schema, name = parts_of(location)
    return name.split("_")[1] if schema == SCRATCH else schema


def address_of(location: str) -> str:
    """The table as Spark SQL, quoted."""
    return ".".join(map(quoted, parts_of(location)))


Layer: TypeAlias = Literal["bronze", "silver", "gold", "control", "quality"]


@dataclass(frozen=True, slots=True)
class Lake:
    """The lake of one pipeline. Exactly one of `path` and `catalog` is set.

    Attributes:
        path: absolute local path or object-store URL, without a trailing slash.
        catalog: a catalog of the Spark session.
        scratch: in a catalog, what the tables are for a while and no part of the pipeline
            (`bronze.lake.scratch`); None: its own.
    """

    path: str | None = None
    catalog: str | None = None
    scratch: str | None = None

    def __post_init__(self) -> None:
        if (self.path is None) == (self.catalog is None):
            raise ValueError("a lake has either a path or a catalog")

    @property
    def in_store(self) -> bool:
        """Whether the lake lies in an object store."""
        return self.path is not None and local_folder(self.path) is None

    @property
    def is_remote(self) -> bool:
        """Whether each look at the lake costs a request to a store, or a statement of Spark."""
        return self.path is None or self.in_store

    @property
    def place(self) -> str:
        """What a person knows the lake by: its path, or the catalog's name."""
        return str(self.catalog) if self.path is None else self.path

    @property
    def root(self) -> str:
        """The location below which the tables lie; in a catalog it stands for the name."""
        return root_of(str(self.catalog)) if self.path is None else self.path

    def uri(self, layer: Layer, name: str) -> str:
        """Location of a table; the folder bears its name as `bronze.lake.location` writes it.

        Of a catalog's table it stands for the name (`bronze.lake.location`).
        """
        if self.path is None:
            return location_of(str(self.catalog), *self._placed(layer, name))
        return f"{self.path}/{layer}/{folder_name(name)}"

    def sql(self, layer: Layer, name: str) -> str:
        """The table as Spark SQL, quoted."""
        if self.catalog is not None:
            return ".".join(map(quoted, (self.catalog, *self._placed(layer, name))))
        return f"delta.{quoted(self.uri(layer, name))}"

    def _placed(self, layer: Layer, name: str) -> tuple[str, str]:
        """Schema and name of a table in the catalog."""
        return (layer, name) if self.scratch is None else scratch_name(self.scratch, layer, name)
