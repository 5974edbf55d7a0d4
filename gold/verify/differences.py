"""Where two documents differ. Pure: JSON text in, a path out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

_LENGTH: Final = 120
"""Characters of a value that are shown."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One place at which two documents differ.

    Attributes:
        path: fields from the document down, ``orders[2].items[0].sku``; elements are counted from 0.
        stored: what the first document has there, as JSON; None where it has nothing there.
        rebuilt: what the second one has.
    """

    path: str
    stored: str | None
    rebuilt: str | None


def first_difference(stored: str, rebuilt: str) -> Difference | None:
    """The first place, in the order of the fields, at which documents differ; None where they are equal."""
    return _between(_read(stored), _read(rebuilt), "")


def _read(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


def _between(one: Any, other: Any, path: str) -> Difference | None:
    left, right = _parts(one, path), _parts(other, path)
    if left is None or right is None or isinstance(one, dict) != isinstance(other, dict):
        same = type(one) is type(other) and one == other
        return None if same else Difference(path, _text(one), _text(other))
    for place in dict.fromkeys([*left, *right]):
        if place not in left or place not in right:
            shown = [_text(parts[place]) if place in parts else None for parts in (left, right)]
            return Difference(place, *shown)
        found = _between(left[place], right[place], place)
        if found is not None:
            return found
    # Entries of a map in another order are another content.
    return None if [*left] == [*right] else Difference(path, _text(one), _text(other))


def _parts(value: Any, path: str) -> dict[str, Any] | None:
    """What an object or a list holds, by path; None for any other value."""
    if isinstance(value, dict):
        return {f"{path}.{name}" if path else name: inner for name, inner in value.items()}
    if isinstance(value, list):
        return {f"{path}[{index}]": inner for index, inner in enumerate(value)}
    return None


def _text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LENGTH else text[:_LENGTH] + "…"
