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
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from deltasmelt.bronze.lake.place import (
    Catalog,
    Location,
    Place,
    Store,
    parts_of,
    place_of,
    root_of,
    scratch_name,
)

if TYPE_CHECKING:
    from pathlib import Path

LONGEST: Final = 255
"""Bytes of a file's name that all usual file systems take."""
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")
_UPPER: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_DEVICES: Final = re.compile(r"con|prn|aux|nul|com[0-9]|lpt[0-9]")
_WHOLE: Final = "-00"
_DIGEST: Final = "-01"
_ESCAPED: Final = re.compile(r"-(?:(-)|([a-z])|([0-9][0-9a-f]*)-)")


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


def quoted(name: str) -> str:
    """An identifier in backticks."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text as Spark SQL reads it under default settings.

    Backslashes start escapes in its string literals, so they are doubled; line ends are written as escapes.
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"


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
        scratch: in a catalog, the purpose of tables that exist for a while and are no part of the pipeline
            (`bronze.lake.scratch`); None: the lake's own tables.
        known: the place, where it is known already; None: the location is parsed.
        place: how the tables are reached; every location of the lake carries it.
    """

    path: str | None = None
    catalog: str | None = None
    scratch: str | None = None
    known: InitVar[Place | None] = None
    place: Place = field(init=False, compare=False, repr=False)

    def __post_init__(self, known: Place | None) -> None:
        if (self.path is None) == (self.catalog is None):
            raise ValueError("a lake has either a path or a catalog")
        root = root_of(str(self.catalog)) if self.path is None else self.path
        place = place_of(root) if known is None else known
        object.__setattr__(self, "place", place)
        if self.path is not None:
            object.__setattr__(self, "path", Location(self.path, place))

    @property
    def in_store(self) -> bool:
        """Whether the lake lies in an object store."""
        return isinstance(self.place, Store)

    @property
    def is_remote(self) -> bool:
        """Whether each look at the lake costs a request to a store, or a statement of Spark."""
        return self.path is None or self.in_store

    @property
    def label(self) -> str:
        """What a person knows the lake by: its path, or the catalog's name."""
        return str(self.catalog) if self.path is None else self.path

    @property
    def root(self) -> Location:
        """The location below which the tables lie; in a catalog it stands for the name."""
        return Location(root_of(str(self.catalog)) if self.path is None else self.path, self.place)

    @property
    def folder(self) -> Path | None:
        """The lake's folder; None in a store or a catalog."""
        return self.root.folder

    def below(self, folder: str) -> Lake:
        """Return a lake in a folder of this one, which is reached as this one is; not in a catalog."""
        return Lake(path=self.root / folder, known=self.place)

    def scratch_for(self, purpose: str) -> Lake:
        """Return the lake of a catalog's tables that exist for a while (`bronze.lake.scratch`).

        Args:
            purpose: small letters and digits; the same purpose means the same tables.
        """
        return Lake(catalog=self.catalog, scratch=purpose, known=self.place)

    def uri(self, layer: Layer, name: str) -> Location:
        """Location of a table; the folder bears its name as `folder_name` writes it.

        Of a catalog's table it stands for the name (`bronze.lake.place`).
        """
        if isinstance(self.place, Catalog):
            return self.place.table(*self._placed(layer, name))
        return self.root / f"{layer}/{folder_name(name)}"

    def sql(self, layer: Layer, name: str) -> str:
        """The table as Spark SQL, quoted."""
        if self.catalog is not None:
            return ".".join(map(quoted, (self.catalog, *self._placed(layer, name))))
        return f"delta.{quoted(self.uri(layer, name))}"

    def _placed(self, layer: Layer, name: str) -> tuple[str, str]:
        """Schema and name of a table in the catalog."""
        return (layer, name) if self.scratch is None else scratch_name(self.scratch, layer, name)
