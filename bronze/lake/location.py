"""Location of a lake's tables: ``<layer>.<name>``, under a path or in a catalog of the Spark session.

All code names the project's tables through `Lake`, wherever the lake lies (`bronze.lake.place`). The module
also writes table names as folder names, and names and texts as Spark SQL. Everything here is pure.

PostgreSQL accepts any text as a table's name: ``../control/cuts``, ``a/b``, ``CON``, ``Orders`` next to
``orders``. A folder's name contains only lower-case letters, digits, ``_`` and ``-``. Every file system,
every URL and Spark read these characters unchanged, even where case is ignored or letters beyond ASCII are
normalised. A ``-`` introduces every escaped character:

========================  ==================================  ============================
in the name               in the folder's name                for instance
========================  ==================================  ============================
a-z 0-9 _                 unchanged                           ``order_items``
A-Z                       ``-`` and the small letter          ``OrderItems``: ``-order-items``
``-``                     doubled                             ``a-b``: ``a--b``
anything else             ``-``, its code point in            ``a/b``: ``a-2f-b``;
                          hexadecimal, ``-``                  ``Größe``: ``-gr-0f6--0df-e``
========================  ==================================  ============================

A code point whose first digit is a letter gets a leading 0. A leading underscore is escaped as a code point,
because Spark and further tools treat a folder with a leading underscore as hidden. The first letter of a
Windows device name is escaped too.

No name escaped by these rules begins with ``-0`` and a digit. ``-00`` introduces the whole name in base 32,
for names whose escaped form is too long. ``-01`` introduces a digest of a name that is too long even in base
32; no database in UTF-8 has a name of such a length.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from deltasmelt.bronze.lake.place import (
    Catalog,
    Folder,
    Location,
    Place,
    parts_of,
    place_of,
    root_of,
    scratch_name,
)

if TYPE_CHECKING:
    from pathlib import Path

LONGEST: Final = 255
"""Longest file name, in bytes, that all usual file systems accept."""
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")
_UPPER: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_DEVICES: Final = re.compile(r"con|prn|aux|nul|com[0-9]|lpt[0-9]")
_WHOLE: Final = "-00"
_DIGEST: Final = "-01"
_ESCAPED: Final = re.compile(r"-(?:(-)|([a-z])|([0-9][0-9a-f]*)-)")


def folder_name(name: str) -> str:
    """Return the folder name of a table; a plain name is unchanged.

    Two names never give the same folder name; `table_name` is the inverse.

    Raises:
        ValueError: the name is empty.
    """
    if not name:
        raise ValueError("the name of a table must not be empty")
    first = _code(name[0]) if name[0] == "_" or _DEVICES.fullmatch(name) else _written(name[0])
    readable = first + "".join(map(_written, name[1:]))
    if len(readable) <= LONGEST:
        return readable
    text = name.encode("utf-8", "surrogatepass")
    whole = _WHOLE + _base32(text)
    return whole if len(whole) <= LONGEST else _DIGEST + _base32(hashlib.sha256(text).digest())


def table_name(folder: str) -> str | None:
    """Return the table name of a folder name; None for a digest, which cannot be reversed.

    Raises:
        ValueError: `folder_name` never returns this folder name.
    """
    if folder.startswith(_DIGEST):
        return None
    if folder.startswith(_WHOLE):
        text = folder.removeprefix(_WHOLE).upper()
        name = base64.b32decode(text + "=" * (-len(text) % 8)).decode("utf-8", "surrogatepass")
    else:
        name = _ESCAPED.sub(_read, folder)
    if not name or folder_name(name) != folder:
        raise ValueError(f"{folder!r} is not the folder of a table")
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
    """Return an identifier in backticks."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Return a text as a Spark SQL literal under default settings.

    Backslashes start escapes in Spark's string literals, so backslashes are doubled. Line ends are written as
    escapes.
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"


def address_of(location: str) -> str:
    """Return the quoted name of a catalog's table for Spark SQL."""
    return ".".join(map(quoted, parts_of(location)))


Layer: TypeAlias = Literal["bronze", "silver", "gold", "control", "quality"]


@dataclass(frozen=True, slots=True)
class Lake:
    """The lake of one pipeline. Exactly one of `path` and `catalog` is set.

    Attributes:
        path: absolute local path or object-store URL, without a trailing slash.
        catalog: name of a catalog of the Spark session.
        scratch: in a catalog, the purpose of temporary tables that are no part of the pipeline
            (`bronze.lake.catalog.scratch`); None for the lake's own tables.
        known: the place, if the caller already has a place; None to parse the location.
        place: decides how the tables are reached; every location of the lake carries the place.
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
    def is_remote(self) -> bool:
        """Whether each access to the lake costs a request to a store or a Spark statement."""
        return not isinstance(self.place, Folder)

    @property
    def label(self) -> str:
        """Name of the lake for people: the path, or the catalog's name."""
        return str(self.catalog if self.path is None else self.path)

    @property
    def root(self) -> Location:
        """Location below which the tables lie; in a catalog the location stands for the catalog's name."""
        return Location(root_of(str(self.catalog)) if self.path is None else self.path, self.place)

    @property
    def folder(self) -> Path | None:
        """Folder of the lake; None in a store or a catalog."""
        return self.root.folder

    @property
    def locks(self) -> Path | None:
        """Folder of a local lake's locks; None in a store or a catalog, which have leases."""
        return None if self.folder is None else self.folder / ".locks"

    def below(self, folder: str) -> Lake:
        """Return a lake in a folder of this lake, reached through the same place; not in a catalog."""
        return Lake(path=self.root / folder, known=self.place)

    def scratch_for(self, purpose: str) -> Lake:
        """Return the lake of a catalog's temporary tables (`bronze.lake.catalog.scratch`).

        Args:
            purpose: lower-case letters and digits; equal purposes mean equal tables.
        """
        return Lake(catalog=self.catalog, scratch=purpose, known=self.place)

    def uri(self, layer: Layer, name: str) -> Location:
        """Return the location of a table; `folder_name` writes the folder's name.

        The location of a catalog's table stands for the table's name (`bronze.lake.place`).
        """
        if isinstance(self.place, Catalog):
            return self.place.table(*self._placed(layer, name))
        return self.root / f"{layer}/{folder_name(name)}"

    def sql(self, layer: Layer, name: str) -> str:
        """Return the quoted table for Spark SQL."""
        if self.catalog is not None:
            return ".".join(map(quoted, (self.catalog, *self._placed(layer, name))))
        return f"delta.{quoted(self.uri(layer, name))}"

    def _placed(self, layer: Layer, name: str) -> tuple[str, str]:
        """Return schema and name of a table in the catalog."""
        return (layer, name) if self.scratch is None else scratch_name(self.scratch, layer, name)
