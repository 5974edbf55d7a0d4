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

# The longest file name, in bytes, that all usual file systems accept.
LONGEST: Final = 255
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")
_UPPER: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_DEVICES: Final = re.compile(r"con|prn|aux|nul|com[0-9]|lpt[0-9]")
# No escaped name begins with ``-0`` and a digit. ``-00`` introduces the whole name in base 32, if the escaped
# form is too long; ``-01`` introduces a digest, if base 32 is too long, too. No database in UTF-8 has a name
# of such a length.
_WHOLE: Final = "-00"
_DIGEST: Final = "-01"
_ESCAPED: Final = re.compile(r"-(?:(-)|([a-z])|([0-9][0-9a-f]*)-)")


def folder_name(name: str) -> str:
    """Return the folder name of a table; a plain name is unchanged; raise ValueError for an empty name.

    Two names never give the same folder name; `table_name` is the inverse.
    """
    if not name:
        raise ValueError("the name of a table must not be empty")
    # Spark and further tools treat a folder with a leading underscore as hidden. The first letter of a
    # Windows device name is escaped, too.
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
    # A code point whose first digit is a letter gets a leading 0, unlike an escaped capital letter.
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
    """Return a text as a Spark SQL literal under default settings."""
    # Backslashes start escapes in Spark's string literals.
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"


def address_of(location: str) -> str:
    """Return the quoted name of a catalog's table for Spark SQL."""
    return ".".join(map(quoted, parts_of(location)))


Layer: TypeAlias = Literal["bronze", "silver", "gold", "control", "quality"]


@dataclass(frozen=True, slots=True)
class Lake:
    """The lake of one pipeline. Exactly one of `path` and `catalog` is set."""

    # absolute local path or object-store URL, without a trailing slash
    path: str | None = None
    # name of a catalog of the Spark session
    catalog: str | None = None
    # in a catalog, the purpose of temporary tables that are no part of the pipeline
    # (`bronze.lake.catalog.scratch`); None for the lake's own tables
    scratch: str | None = None
    # the place, if the caller already has a place; None to parse the location
    known: InitVar[Place | None] = None
    # decides how the tables are reached; every location of the lake carries the place
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

        Equal purposes (lower-case letters and digits) mean equal tables.
        """
        return Lake(catalog=self.catalog, scratch=purpose, known=self.place)

    def uri(self, layer: Layer, name: str) -> Location:
        """Return the location of a table; in a catalog the location stands for the table's name."""
        if isinstance(self.place, Catalog):
            return self.place.table(*self._placed(layer, name))
        return self.root / f"{layer}/{folder_name(name)}"

    def sql(self, layer: Layer, name: str) -> str:
        """Return the quoted table for Spark SQL."""
        if self.catalog is not None:
            return ".".join(map(quoted, (self.catalog, *self._placed(layer, name))))
        return f"delta.{quoted(self.uri(layer, name))}"

    def _placed(self, layer: Layer, name: str) -> tuple[str, str]:
        return (layer, name) if self.scratch is None else scratch_name(self.scratch, layer, name)
