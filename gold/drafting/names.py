"""Name drafted fields and documents: English plurals, names from foreign keys, clashes.

The rules of plurals are the rules of common schemas and need not be right. An odd name is still a legal name,
and the user may change the name.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from deltasmelt.gold.language.model import Definition

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.gold.drafting.foreign_keys import Described, ForeignKey

_IRREGULAR: Final = {
    "people": "person", "children": "child", "men": "man", "women": "woman",
    "staff": "staff", "series": "series", "news": "news", "data": "data", "media": "media",
}  # fmt: skip
_REFUSED: Final = re.compile(r"[\s,;{}()=.`\x00-\x1f\x7f-\x9f]+")
_SUFFIX: Final = re.compile(r"_(?:[iI][dD]|fk|uuid|guid|key|code|FK|UUID|GUID|KEY|CODE)$|(?<=[a-z0-9])I[dD]$")
_PREFIX: Final = re.compile(r"^(?:id|fk)_", re.IGNORECASE)
MAX_DOCUMENT_NAME: Final = 60


def singular(name: str) -> str:
    """Return the name for one row of a table: ``order_items`` gives ``order_item``."""
    head, word = _last_word(name)
    low = word.lower()
    if low in _IRREGULAR:
        return head + _like(word, _IRREGULAR[low])
    if low.endswith("ies") and len(low) > 4:
        return head + word[:-3] + "y"
    if low.endswith(("sses", "shes", "ches", "xes")) or (
        low.endswith("uses") and not low.endswith(("ouses", "auses")) and len(low) > 4
    ):
        return head + word[:-2]
    if low.endswith("s") and not low.endswith(("ss", "us", "is")) and len(low) > 2:
        return head + word[:-1]
    return name


def plural(name: str) -> str:
    """Return the name for several rows; a plural stays unchanged."""
    head, word = _last_word(name)
    low = word.lower()
    if not low[-1:].isalpha() or low in _IRREGULAR or singular(name) != name:
        return name
    irregular = next((many for many, word_of_one in _IRREGULAR.items() if word_of_one == low), None)
    if irregular is not None:
        return head + _like(word, irregular)
    if low.endswith("y") and low[-2:-1] not in "aeiou":
        return head + word[:-1] + "ies"
    if low.endswith(("s", "x", "z", "ch", "sh")):
        return head + word + "es"
    return head + word + "s"


def stem(column: str) -> str:
    """Return the name behind a foreign key's column: ``billing_address_id`` gives ``billing_address``."""
    return _PREFIX.sub("", _SUFFIX.sub("", column)) or column


def within(name: str, parent: str) -> str:
    """Return the name of a child below its parent: ``order_items`` of ``orders`` are ``items``."""
    for prefix in (f"{singular(parent)}_", f"{parent}_"):
        if name.lower().startswith(prefix.lower()) and len(name) > len(prefix):
            return name[len(prefix) :]
    return name


def names_of_one(key: ForeignKey, keys: Sequence[ForeignKey]) -> list[str]:
    """Return names for the row that a foreign key references, best first: ``billing_id`` gives billing."""
    row_name = singular(key.target.name)
    # A composite foreign key is named by the columns that no other key has.
    times = Counter(column for foreign_key in keys for column in foreign_key.columns)
    own_columns = (
        [column for column in key.columns if times[column] == 1] if len(key.columns) > 1 else [*key.columns]
    )
    if not own_columns:
        return [row_name, f"{row_name}_details"]
    short = _joint_stem(own_columns)
    if len(own_columns) > 1 and (not short or row_name.lower().startswith(short.lower())):
        return [row_name, f"{row_name}_by_{'_and_'.join(map(stem, own_columns))}"]
    return [short, f"{short}_details" if short.lower() == row_name.lower() else f"{short}_{row_name}"]


def _joint_stem(columns: Sequence[str]) -> str:
    """Return the common name of a foreign key's columns: ``boss`` of ``boss_tenant, boss_id``; or nothing."""
    if len(columns) == 1:
        return stem(columns[0])
    words = zip(*(column.split("_") for column in columns), strict=False)
    return "_".join(position[0] for position in takewhile(lambda position: len(set(position)) == 1, words))


def names_of_children(
    child: Described, key: ForeignKey, parent: TableName, *, alone: bool, several: bool
) -> list[str]:
    """Return names for the rows that reference a parent, best first: ``orders``, ``orders_by_address``.

    With `alone` at most one row references each parent; with `several` the child has more foreign keys to the
    parent.
    """
    name = child.name.name
    many = singular(within(name, parent.name)) if alone else plural(within(name, parent.name))
    last = singular(name) if alone else plural(name)
    by = _joint_stem(key.columns) or "_and_".join(map(stem, key.columns))
    qualified = f"{last}_{by}" if by.lower().endswith("_by") else f"{last}_by_{by}"
    if child.name == parent:
        words = by.lower().split("_")
        return ["children", qualified] if "parent" in words and not alone else [qualified]
    if several and by.lower() not in {singular(parent.name).lower(), parent.name.lower()}:
        return [qualified]
    return [many, last, qualified]


def field_name(text: str, *, top: bool = False) -> str:
    """Return the nearest allowed name of a field; with `top`, also different from gold's own columns."""
    name = text
    if _REFUSED.search(text):
        name = re.sub(r"\W+", "_", text).strip("_") or "column"
    if top and (name.lower() in Definition.OWN or name.lower().startswith(Definition.OWN_PREFIX)):
        name = f"source{name}"
    return name


def document_name(table: str) -> str:
    """Return the name of a table's document: ``customers`` gives ``customer``."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", singular(table)).strip("_")
    if not name[:1].isalpha():
        name = f"document_{name}".rstrip("_")
    return name[:MAX_DOCUMENT_NAME]


def unique(candidates: list[str], used: Container[str]) -> str:
    """Return the first free candidate, by lower case; without any, the last candidate with a number."""
    for name in candidates:
        if name.lower() not in used:
            return name
    number = 2
    while f"{candidates[-1]}_{number}".lower() in used:
        number += 1
    return f"{candidates[-1]}_{number}"


def _last_word(name: str) -> tuple[str, str]:
    """Split a name before its last word: ``order_items``, ``OrderItems``."""
    start = max(
        name.rfind("_") + 1, max((m.start() for m in re.finditer("(?<=[a-z])[A-Z]", name)), default=0)
    )
    return name[:start], name[start:]


def _like(model: str, word: str) -> str:
    return word.capitalize() if model[:1].isupper() else word
