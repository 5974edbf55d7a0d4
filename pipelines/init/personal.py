"""Propose rules for columns whose names suggest secrets or personal data. Pure.

A name consists of words, in any spelling (`gold.drafting.secrets`). The proposal is ``exclude`` for a secret,
``hash`` for a value that names a person, because hashes still join, and ``mask`` for a value with a shape.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from deltasmelt.gold.drafting.secrets import (
    is_value_of_secret,
    may_hold_secret,
    speaks_of_secret,
    table_speaks_of_secrets,
)

if TYPE_CHECKING:
    from deltasmelt.bronze.rules import Action

_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_EXCLUDED: Final = frozenset(
    {"cvc", "cvv", "iban", "medical", "passport", "pin", "religion", "salary", "ssn", "ethnicity"}
)
_HASHED: Final = frozenset({"email", "mail", "firstname", "lastname", "surname", "username"})
_MASKED: Final = frozenset({"birthdate", "birthday", "dob", "fax", "mobile", "phone", "telephone"})
_PAIRS: Final[dict[tuple[str, str], Action]] = {
    ("credit", "card"): "exclude", ("card", "number"): "exclude", ("bank", "account"): "exclude",
    ("social", "security"): "exclude", ("tax", "id"): "exclude", ("national", "id"): "exclude",
    ("e", "mail"): "hash", ("first", "name"): "hash", ("last", "name"): "hash", ("full", "name"): "hash",
    ("family", "name"): "hash", ("user", "name"): "hash", ("birth", "date"): "mask",
    ("of", "birth"): "mask", ("ip", "address"): "hash", ("street", "address"): "mask",
}  # fmt: skip
_FACTS: Final = frozenset(
    {"at", "count", "is", "has", "verified", "sent", "opt", "confirmed", "enabled", "subject", "template"}
)
"""Words of a name that speaks about a personal value and does not contain one: ``email_verified``."""
_TYPES_OF_FACTS: Final = frozenset({"BOOLEAN", "TIMESTAMP", "TIMESTAMP_NTZ"})


def proposed_action(name: str, *, key: bool, table: str = "", spark_type: str = "STRING") -> Action | None:
    """Return the proposed action for a column; None for a name that suggests nothing.

    `key` states whether the key or the replica identity needs the column: then only ``hash`` is possible.
    A column like ``key`` is a secret in a `table` like ``api_keys``. The column's type decides whether its
    values may be secrets: the number in ``api_token_id`` only references a token.
    """
    words = [word.lower() for word in _WORDS.findall(name)]
    if not _FACTS.isdisjoint(words) or spark_type in _TYPES_OF_FACTS:
        return None
    may_be_secret = may_hold_secret(spark_type)
    action = _action(words, secret=may_be_secret and speaks_of_secret(name))
    if may_be_secret and table_speaks_of_secrets(table) and is_value_of_secret(name):
        action = "exclude"
    return "hash" if action is not None and key else action


def _action(words: list[str], *, secret: bool) -> Action | None:
    if secret or not _EXCLUDED.isdisjoint(words):
        return "exclude"
    for pair in pairwise(words):
        if pair in _PAIRS:
            return _PAIRS[pair]
    if not _HASHED.isdisjoint(words):
        return "hash"
    return "mask" if not _MASKED.isdisjoint(words) else None
