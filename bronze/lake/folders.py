"""Names of tables as names of folders, and locations as `deltalake` and Spark say them. Pure.

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
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote

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
